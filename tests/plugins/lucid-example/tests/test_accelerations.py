"""The accelerations change no byte of a fit. No GPU is needed."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from lucid_accel import Acceleration, NetworkReplay
from lucid_accel.acceleration import Undo
from lucid_accel.adapters import take
from lucid_accel.site import Site
from lucid_accel.testing import assert_parity, cpu_engine
from lucid_example.classifier import Classifier
from lucid_example.collection import ScheduledCollection
from lucid_example.criterion import CriterionReplay
from lucid_example.optimizer import CentredSGD


def module() -> Classifier:
    optimizer = functools.partial(CentredSGD, lr=0.1, momentum=0.9, weight_decay=1e-3)
    return Classifier(["cat", "dog", "owl"], width=4, optimizer=optimizer)


def batches() -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(0)
    sizes = 4, 4, 4, 4, 3
    return [(torch.rand(n, 3, 8, 8, generator=random), torch.randint(0, 3, (n,), generator=random)) for n in sizes]


@pytest.mark.parametrize(
    "accelerations",
    [
        [CriterionReplay(strict=True)],
        [NetworkReplay(strict=True)],
        [ScheduledCollection(every=2, strict=True)],
        [NetworkReplay(strict=True), CriterionReplay(strict=True), ScheduledCollection(every=3, strict=True)],
    ],
    ids=lambda accelerations: "+".join(item.name for item in accelerations),
)
def test_an_accelerated_fit_has_the_bytes_of_a_native_one(accelerations: list[Acceleration]) -> None:
    with cpu_engine():
        assert_parity(module, batches, accelerations, max_epochs=3)


class Doubled(CriterionReplay):
    """Wrong on purpose."""

    def install(self, site: Site) -> Undo:
        part = self.part(site)
        assert part is not None
        return take(site.module, self.claims[0], self.name, part, lambda native, *args: 2 * native(*args))


def test_a_wrong_acceleration_is_caught() -> None:
    with cpu_engine(), pytest.raises(AssertionError, match="Doubled: differs from the native fit"):
        assert_parity(module, batches, [Doubled()])
