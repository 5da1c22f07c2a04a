"""Replays of the optimizer within Lightning: whole fits have the bytes of native ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import BaseFinetuning
from torch import Tensor
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader

from lucid_accel import OrthogonalizationReplay, UpdateReplay
from lucid_accel.testing import assert_parity, tiny_batches, tiny_detector
from lucid_core.optim.musgd import MuSGD
from lucid_core.seams import SeamConflict
from tests.accel.conftest import Validated, batches, fit, trainer_for, warned
from tests.accel.muon import Apart, Muon, at, counted, given_back, of

REPLAYS = (UpdateReplay, OrthogonalizationReplay)

both_replays = pytest.mark.parametrize("replay", REPLAYS, ids=lambda kind: kind.__name__)


# Whole fits


@both_replays
@pytest.mark.parametrize(
    ("settings", "counts"),
    [
        ({}, {"replayed": 13, "warmup": 3}),
        ({"accumulate_grad_batches": 3}, {"replayed": 3, "warmup": 3}),
        ({"gradient_clip_val": 0.1}, {"replayed": 13, "warmup": 3}),
        ({"precision": "bf16-mixed"}, {"replayed": 13, "warmup": 3}),
        ({"max_steps": 5}, {"replayed": 2, "warmup": 3}),
    ],
    ids=str,
)
def test_a_fit_at_a_rate_that_warms_up_and_decays(
    tape: None, replay: Any, settings: dict[str, Any], counts: dict[str, int]
) -> None:
    accelerations = [replay(strict=True)]
    assert_parity(Muon, batches, accelerations, **settings)
    assert counted(accelerations[0]) == counts


@both_replays
def test_without_proof(tape: None, replay: Any) -> None:
    accelerations = [replay(strict=True, proof="off")]
    assert_parity(Muon, batches, accelerations)
    assert counted(accelerations[0]) == {"replayed": 14, "warmup": 2}


@pytest.mark.parametrize(
    ("replay", "counts"),
    [
        (UpdateReplay, {"replayed": 2 * 21, "warmup": 2 * 3}),
        # The second set of stacks looks to it like another shape of the first one.
        (OrthogonalizationReplay, {"replayed": 21 + 14, "warmup": 3 + 2, "shape": 8}),
    ],
)
def test_two_groups(tape: None, replay: Any, counts: dict[str, int]) -> None:
    accelerations = [replay(strict=True)]
    assert_parity(Apart, batches, accelerations, max_epochs=3)
    assert counted(accelerations[0]) == counts
    assert accelerations[0].tally.replayed_steps == 21


@both_replays
def test_validation_in_between(tape: None, replay: Any) -> None:
    class Both(Muon, Validated):
        pass

    accelerations = [replay(strict=True)]
    assert_parity(Both, batches, accelerations, val_check_interval=2)
    assert counted(accelerations[0]) == {"replayed": 13, "warmup": 3}


@pytest.mark.slow
@both_replays
def test_the_detector(tape: None, replay: Any) -> None:
    accelerations = [replay(strict=True)]
    assert_parity(tiny_detector, tiny_batches, accelerations, max_epochs=1)
    # The last batch is one image: a gradient of shape (n, 1, 3, 3) then has another stride where its size is 1.
    native = {} if replay is OrthogonalizationReplay else {"stride": 1}
    assert counted(accelerations[0]) == {"replayed": 3 - len(native), "warmup": 3, **native}


class Baked(UpdateReplay):
    """Keeps the rate of its first call for ever."""

    def call(self, routine: Any, native: Any, params: Any, group: Any, weight_decay: Tensor) -> Any:  # type: ignore[override]
        self._rate = getattr(self, "_rate", group["lr"])
        self.replayed()
        return torch._foreach_mul(native(params, group, weight_decay), self._rate / group["lr"])


def test_a_frozen_rate_is_caught(tape: None) -> None:
    with pytest.raises(AssertionError, match="Baked: differs from the native fit at /state_dict"):
        assert_parity(Muon, batches, [Baked()])


# In the middle of a fit


def reload(module: LightningModule) -> None:
    of(module).load_state_dict(copy.deepcopy(of(module).state_dict()))


def test_loaded_state_is_recorded_again_three_times(tape: None) -> None:
    replay = UpdateReplay(strict=True)
    assert_parity(Muon, batches, [replay], callbacks=at(5, 10, 15, do=reload), max_epochs=3)
    assert replay.tally.rearmed == ["the optimizer's state was loaded, or its groups changed"] * 3
    assert counted(replay) == {"replayed": 24 - 12, "warmup": 12}


def test_the_fourth_loaded_state_retires(tape: None) -> None:
    replay = UpdateReplay()
    with warned() as texts:
        assert_parity(Muon, batches, [replay], callbacks=at(5, 10, 15, 20, do=reload), max_epochs=3)
    assert counted(replay) == {"replayed": 8, "warmup": 12, "storage": 1, "retired": 3}
    assert len(texts) == 1
    assert "UpdateReplay is retired at batch 20 (storage)" in texts[0]


class Unfreezing(BaseFinetuning):
    """Learns the head alone for two epochs."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.body)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Optimizer) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.body, optimizer, lr=0.01)


class Later(Muon):
    def configure_optimizers(self) -> Any:
        return MuSGD([x for x in self.parameters() if x.requires_grad], lr=0.05)


@both_replays
def test_a_backbone_that_is_unfrozen_and_added_as_a_group(tape: None, replay: Any) -> None:
    accelerations = [replay(strict=True)]
    assert_parity(Later, batches, accelerations, callbacks=lambda: [Unfreezing()], max_epochs=4)
    assert accelerations[0].tally.replayed > 24
    assert len(accelerations[0].tally.rearmed) == (1 if replay is UpdateReplay else 0)


def frozen(module: Any) -> None:
    module.body[0].requires_grad_(False)
    module.body[0].zero_grad()


def thawed(module: Any) -> None:
    module.body[0].requires_grad_(True)


@both_replays
def test_a_layer_that_is_frozen_for_a_while(tape: None, replay: Any) -> None:
    accelerations = [replay(strict=True)]
    change = lambda: [*at(6, do=frozen)(), *at(9, do=thawed)()]  # noqa: E731
    assert_parity(Muon, batches, accelerations, callbacks=change)
    counts = counted(accelerations[0])
    assert counts["replayed"] == 3 + 7
    assert (counts["warmup"], accelerations[0].tally.rearmed) == (3, [])


def moved(module: Any) -> None:
    module.body[0].weight.data = module.body[0].weight.data.clone()


def test_a_parameter_that_was_moved_retires_once(tape: None) -> None:
    replay = UpdateReplay()
    with warned() as texts:
        assert_parity(Muon, batches, [replay], callbacks=at(6, do=moved))
    assert counted(replay) == {"replayed": 3, "warmup": 3, "storage": 1, "retired": 9}
    assert len(texts) == 1


def halved(module: Any) -> None:
    of(module).param_groups[0]["momentum"] = 0.5


def test_a_momentum_that_changes_is_recorded_too(tape: None) -> None:
    replay = UpdateReplay(strict=True)
    assert_parity(Muon, batches, [replay], callbacks=at(6, do=halved), max_epochs=3)
    assert counted(replay) == {"replayed": 3 + 8, "warmup": 4, "scalars": 9}


@both_replays
def test_a_number_of_iterations_that_is_none_raises_the_native_error(tape: None, replay: Any) -> None:
    def broken(module: Any) -> None:
        of(module).param_groups[0]["ns_steps"] = 5.0

    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        fit([replay(), *at(6, do=broken)()], module := Muon())
    assert given_back(module)


def test_it_is_suspended_and_resumed(tape: None) -> None:
    replay = UpdateReplay(strict=True)
    change = lambda: [*at(5, do=lambda _: replay.suspend())(), *at(8, do=lambda _: replay.resume())()]  # noqa: E731
    assert_parity(Muon, batches, [replay], callbacks=change)
    assert counted(replay) == {"replayed": 10, "warmup": 3, "disabled": 3}


def test_an_exchanged_optimizer_retires_at_the_next_epoch(tape: None) -> None:
    class Exchanging(Muon):
        def on_train_epoch_end(self) -> None:
            if self.current_epoch == 0:
                self.trainer.strategy.optimizers = [MuSGD(self.parameters(), lr=0.01)]

    replay = UpdateReplay()
    with warned() as texts:
        assert_parity(Exchanging, batches, [replay])
    assert len(texts) == 1
    assert "(structure)" in texts[0]


# Who may not have it


def test_the_two_are_refused_together_by_name_and_path(tape: None) -> None:
    for order in ([UpdateReplay(), OrthogonalizationReplay()], [OrthogonalizationReplay(), UpdateReplay()]):
        with pytest.raises(SeamConflict) as caught:
            fit(order, module := Muon())
        for word in ("UpdateReplay", "OrthogonalizationReplay", "update.prepare", "update.prepare.orthogonalize"):
            assert word in str(caught.value)
        assert given_back(module)


@both_replays
def test_another_optimizer_gets_one_line(tape: None, replay: Any) -> None:
    class Adam(Muon):
        kind = AdamW

    with warned() as texts:
        assert_parity(Adam, batches, [replay()], must_replay=False)
    assert texts == [
        f"{replay.__name__} is off, training goes on without it: it needs the optimizer MuSGD, but this run has AdamW. "
        "To get a yes: set model.optimizer=musgd"
    ]


class Ordered(MuSGD):
    """Moves the parameters one by one."""

    @torch.no_grad()
    def update(self) -> None:
        for group, scalars in zip(self.param_groups, self._scalars, strict=True):
            for param in [p for p in group["params"] if p.grad is not None]:
                self.apply([param], self.prepare([param], group, scalars.weight_decay), scalars.lr)


class OrderedNet(Muon):
    kind = Ordered


class Heir(MuSGD):
    """Changes nothing."""


class HeirNet(Muon):
    kind = Heir


def test_a_subclass_with_an_update_of_its_own_is_refused_by_name(tape: None) -> None:
    with warned() as texts:
        assert_parity(OrderedNet, batches, [UpdateReplay()], must_replay=False)
    assert len(texts) == 1
    assert "it needs the update of MuSGD, but Ordered has one of its own" in texts[0]


def test_its_orthogonalisation_is_replayed(tape: None) -> None:
    assert_parity(OrderedNet, batches, [OrthogonalizationReplay(strict=True)], max_epochs=3)


@both_replays
def test_a_subclass_that_inherits_is_replayed(tape: None, replay: Any) -> None:
    assert_parity(HeirNet, batches, [replay(strict=True)])


class Twice(MuSGD):
    """Prepares twice, then applies both."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure()
        self.write_scalars()
        for group, scalars in zip(self.param_groups, self._scalars, strict=True):
            params = [p for p in group["params"] if p.grad is not None]
            for moves in [self.prepare(params, group, scalars.weight_decay) for _ in range(2)]:
                self.apply(params, moves, scalars.lr)
        return loss


class TwiceNet(Muon):
    kind = Twice


def test_a_step_of_its_own_may_keep_what_was_prepared(tape: None) -> None:
    assert_parity(TwiceNet, batches, [UpdateReplay(strict=True)])


class Listed(MuSGD):
    """Scales directions by what a list holds."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.scales = [1.0]

    def orthogonalize(self, stacks: Any, steps: int) -> list[Tensor]:
        return [x * self.scales[0] for x in super().orthogonalize(stacks, steps)]


class ListedNet(Muon):
    kind = Listed


def test_a_setting_that_is_changed_in_place_is_seen(tape: None) -> None:
    def double(module: Any) -> None:
        module.trainer.optimizers[0].scales[0] = 2.0

    replay = UpdateReplay(strict=True)
    assert_parity(ListedNet, batches, [replay], callbacks=at(6, do=double))
    assert counted(replay)["scalars"]


def test_the_optimizer_of_an_earlier_fit_says_nothing_about_this_one(tape: None) -> None:
    replay = UpdateReplay()
    trainer = trainer_for([replay])
    loader: Any = DataLoader(batches(), batch_size=None)  # type: ignore[arg-type]
    with warned() as texts:
        trainer.fit(OrderedNet(), loader)
        assert not replay.tally.replayed
        trainer.fit_loop.max_epochs = 2
        trainer.fit(Muon(), loader)
    assert len(texts) == 1
    assert replay.tally.replayed


@both_replays
def test_without_a_gpu_it_is_off(replay: Any) -> None:
    with warned() as texts:
        assert_parity(Muon, batches, [replay()], must_replay=False)
    assert len(texts) == 1
    assert "it needs an NVIDIA GPU, but this run computes on cpu" in texts[0]
