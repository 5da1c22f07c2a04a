"""What authors test with: fits that leave nothing behind, and outcomes that tell any two fits apart."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils import deterministic

from lucid_accel import NetworkReplay
from lucid_accel.testing import assert_parity, digest, first_difference, run
from tests.accel.conftest import Act, Net, Validated, batches

_VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "PL_GLOBAL_SEED", "PL_SEED_WORKERS")


def process() -> dict[str, Any]:
    """What seeding and a Trainer change outside of the fit."""
    return {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn": (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
        "filled": deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        "environment": {name: os.environ.get(name) for name in _VARIABLES},
        "random": (repr(random.getstate()), repr(np.random.get_state()), torch.get_rng_state().tolist()),
    }


def _all_off() -> None:
    for name in _VARIABLES:
        os.environ.pop(name, None)
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = False, False
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _all_on() -> None:
    for name in _VARIABLES:
        os.environ[name] = "7"
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, True
    deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]


@pytest.fixture
def settings_kept() -> Iterator[None]:
    """Leave to other tests what was there."""
    settings = process()
    yield
    for name, value in settings["environment"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    torch.use_deterministic_algorithms(settings["deterministic"], warn_only=settings["warn only"])
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = settings["cudnn"]
    deterministic.fill_uninitialized_memory = settings["filled"]  # type: ignore[attr-defined]


def boom(*_: Any) -> None:
    raise ZeroDivisionError("boom")


def spoil(*_: Any) -> None:
    """Change what a fit that is deterministic does not change by itself."""
    deterministic.fill_uninitialized_memory = not deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    random.random()
    np.random.rand()


@pytest.mark.parametrize("before", [_all_off, _all_on])
@pytest.mark.parametrize("happens", [spoil, boom])
def test_a_fit_leaves_the_process_as_it_found_it(
    settings_kept: None, before: Callable[[], None], happens: Callable[..., None]
) -> None:
    before()
    torch.manual_seed(5)
    found = process()
    try:
        run(Net, batches, [Act("on_train_batch_start", 2, happens)], max_epochs=1, benchmark=not found["cudnn"][1])
    except ZeroDivisionError:
        assert happens is boom
    assert process() == found


@pytest.mark.gpu
def test_a_fit_leaves_the_random_generators_of_gpus_as_it_found_them() -> None:
    torch.cuda.manual_seed(5)
    torch.rand(3, device="cuda")
    before = torch.cuda.get_rng_state()
    run(Net, batches, accelerator="gpu", devices=1, max_epochs=1)
    assert torch.equal(torch.cuda.get_rng_state(), before)


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(4, dtype=torch.int32),
        torch.zeros(2, 2),
        torch.zeros(4, 1),
        torch.tensor([0.0, 0.0, 0.0, -0.0]),
    ],
)
def test_tensors_of_another_type_shape_or_bit_have_another_digest(other: torch.Tensor) -> None:
    one = torch.zeros(4)
    assert digest(one) == digest(torch.zeros(4))
    assert digest(one) != digest(other)


def test_an_outcome_has_weights_losses_and_metrics() -> None:
    outcome = run(Validated, batches, max_epochs=1)
    assert outcome["/state_dict/head.bias"].startswith("torch.float32 [3] ")
    assert outcome["metric/val"].startswith("torch.float32 [] ")
    assert [place for place in outcome if place.startswith("batch ")]


def test_parity_notices_a_metric_that_differs(tape: None) -> None:
    replay = NetworkReplay(module="body")

    class Telling(Net):
        """Logs who called its body."""

        def on_train_epoch_end(self) -> None:
            self.log("replayed", float(replay.tally.replayed))

    with pytest.raises(AssertionError, match="differs from the native fit at metric/replayed"):
        assert_parity(Telling, batches, [replay])


def test_the_first_difference_is_named_where_one_outcome_has_less() -> None:
    assert first_difference({"a": "1", "b": "2"}, {"a": "1"}) == "b"
    assert first_difference({"a": "1"}, {"a": "1", "b": "2"}) == "b"


def test_parity_refuses_runs_that_differ_natively() -> None:
    noise = torch.Generator()

    def shake(_: Trainer, module: LightningModule) -> None:
        with torch.no_grad():
            module.head.bias.add_(torch.rand((), generator=noise))  # type: ignore[operator, union-attr]

    with pytest.raises(AssertionError, match=r"two native fits differ at .*: make the run deterministic"):
        assert_parity(Net, batches, [], callbacks=lambda: [Act("on_train_batch_start", 2, shake)])
