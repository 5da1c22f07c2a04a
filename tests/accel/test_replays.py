"""Replays within Lightning: whatever a run does, its checkpoint and its losses have the bytes of the native run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    GradientAccumulationScheduler,
    LearningRateMonitor,
    ModelCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.optim.swa_utils import get_ema_avg_fn
from torch.utils.data import DataLoader

from lucid_accel import Acceleration, LossReplay, NetworkReplay
from lucid_accel.graphs import recording
from lucid_accel.testing import assert_parity, digest, first_difference, run, tiny_batches, tiny_detector
from lucid_core.module import Detector
from lucid_core.objective.objective import Gains
from lucid_core.types import Batch
from tests.accel.conftest import Act, Batches, Net, Validated, batches, fit, warned


def body(**options: Any) -> NetworkReplay:
    return NetworkReplay(module="body", **options)


def counted(replay: Acceleration) -> dict[str, int]:
    return {"replayed": replay.tally.replayed, **{str(reason): n for reason, n in replay.tally.native.items()}}


# Settings of the Trainer


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"accumulate_grad_batches": 3},
        {"gradient_clip_val": 0.1},
        {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
        {"precision": "bf16-mixed"},
        {"limit_train_batches": 6},
        {"max_epochs": 4, "max_steps": 11},
        {"max_epochs": 6, "overfit_batches": 2},
        {"fast_dev_run": 6},
        {"use_distributed_sampler": False, "inference_mode": False},
    ],
    ids=str,
)
def test_a_setting_of_the_trainer_changes_no_byte(tape: None, settings: dict[str, Any]) -> None:
    assert_parity(Net, batches, [body(strict=True)], **settings)


def test_a_replay_that_forgets_to_copy_in_is_caught(tape: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(self: recording.Recording, inputs: Any) -> list[Tensor]:
        if self._turn == 0:
            return native(self, inputs)
        return native(self, self._inputs)

    native = recording.Recording.run_forward
    monkeypatch.setattr(recording.Recording, "run_forward", stale)
    with pytest.raises(AssertionError, match="NetworkReplay: differs from the native fit at /state_dict"):
        assert_parity(Net, batches, [body()])


def test_validation_in_between_is_native_and_changes_no_byte(tape: None) -> None:
    replay = body(strict=True)
    assert_parity(Validated, batches, [replay], val_check_interval=2, max_epochs=2)
    assert counted(replay) == {"replayed": 10, "warmup": 4, "partial_batch": 2, "eval": 16}


def test_a_run_is_resumed_in_the_middle_of_an_epoch(tape: None, tmp_path: Path) -> None:
    keep = ModelCheckpoint(tmp_path, every_n_train_steps=5, save_top_k=-1, filename="{step}")
    fit([keep], enable_checkpointing=True, max_epochs=1)
    replay = body(strict=True)
    assert_parity(Net, batches, [replay], ckpt_path=tmp_path / "step=5.ckpt", max_epochs=3)
    assert replay.batches == 19


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_with_and_without_workers(tape: None, workers: int) -> None:
    class Loading(Net):
        def train_dataloader(self) -> Any:
            return DataLoader(batches(), batch_size=None, num_workers=workers)  # type: ignore[arg-type]

    weights = []
    for accelerations in ([], [replay := body(strict=True)]):
        torch.manual_seed(0)
        trainer = Trainer(
            accelerator="cpu", max_epochs=2, callbacks=list(accelerations), logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(module := Loading())
        weights.append(torch.cat([x.flatten() for x in module.state_dict().values()]))
    assert torch.equal(*weights)
    assert replay.tally.replayed == 10


# Callbacks beside it


class Averaging(WeightAveraging):
    def __init__(self) -> None:
        super().__init__(use_buffers=True, avg_fn=get_ema_avg_fn(0.5))


OTHERS: dict[str, Callable[[], list[Callback]]] = {
    "averages": lambda: [Averaging()],
    "stochastic averages": lambda: [StochasticWeightAveraging(0.01, swa_epoch_start=2)],
    "growing accumulation": lambda: [GradientAccumulationScheduler({0: 1, 1: 2})],
}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", OTHERS)
def test_other_callbacks_before_or_after_it_change_no_byte(tape: None, name: str, first: bool) -> None:
    replay = body()
    with warned():
        native = run(Validated, batches, OTHERS[name](), max_epochs=4)
        accelerated = [*OTHERS[name](), replay] if first else [replay, *OTHERS[name]()]
        assert first_difference(native, run(Validated, batches, accelerated, max_epochs=4)) is None
    assert replay.tally.replayed


def test_a_logger_a_monitor_and_checkpoints_beside_it_change_no_byte(tape: None, tmp_path: Path) -> None:
    def train(name: str, accelerations: list[Callback]) -> dict[str, str]:
        keep = ModelCheckpoint(tmp_path / name, monitor="val", save_last=True, save_top_k=2)
        # A logger draws no random numbers, and writes nothing into a checkpoint.
        run(
            Validated, batches, [LearningRateMonitor(), keep, *accelerations], enable_checkpointing=True,
            logger=CSVLogger(tmp_path, name), log_every_n_steps=1,
        )  # fmt: skip
        assert keep.best_model_path
        kept = torch.load(tmp_path / name / "last.ckpt", weights_only=False)
        return {place.replace(name, ""): value.replace(name, "") for place, value in digest(kept).items()}

    assert first_difference(train("native", []), train("replayed", [body(strict=True)])) is None


# What users do in the middle


def at(batch: int, do: Callable[[LightningModule], Any], hook: str = "on_train_batch_start") -> list[Callback]:
    return [Act(hook, batch, lambda _, module: do(module))]


def freeze(module: Any) -> None:
    module.body[0].requires_grad_(False)


def hooked(module: Any) -> None:
    module.body[1].register_forward_hook(lambda _, __, out: out * 1.5)


def momentum(module: Any) -> None:
    module.body[1].momentum = 0.5


def exchange(module: Any) -> None:
    module.body[5] = torch.nn.Dropout(0.5)


def dropout(module: Any) -> None:
    module.body[5].p = 0.6


def halve(module: Any) -> None:
    module.body[0].weight.data.mul_(0.5)


def replaced(module: Any) -> None:
    module.body[0].weight.data = module.body[0].weight.data * 0.5


def statistics(module: Any) -> None:
    module.body[1].running_mean = torch.ones_like(module.body[1].running_mean)


def settled(module: Any) -> None:
    module.body[1].eval()


MIDDLES: dict[str, tuple[Callable[[Any], None], str, int]] = {
    "a layer is frozen": (freeze, "recorded", 0),
    "a hook is registered": (hooked, "retired", 1),
    "a setting changes": (momentum, "retired", 1),
    "the rate of dropout changes": (dropout, "retired", 1),
    "a part is exchanged": (exchange, "retired", 1),
    "a weight is changed in place": (halve, "recorded", 0),
    "a weight gets other memory": (replaced, "retired", 1),
    "a buffer is exchanged": (statistics, "retired", 1),
    "a part is switched to evaluation": (settled, "recorded", 0),
}


@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_train_epoch_start"])
@pytest.mark.parametrize("middle", MIDDLES)
def test_a_change_in_the_middle_is_seen_and_changes_no_byte(tape: None, middle: str, hook: str) -> None:
    change, state, warnings = MIDDLES[middle]
    replay = body()
    with warned() as texts:
        callbacks = lambda: at(6 if hook == "on_train_batch_start" else 1, change, hook)  # noqa: E731
        assert_parity(Net, batches, [replay], callbacks=callbacks, max_epochs=2)
    assert (str(replay.state), len(texts)) == (state, warnings)


class Scaled(torch.nn.Module):
    """Reads a list that is changed in place, which only a complete comparison sees."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = [1.0]

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scales[0]


class Wide(Net):
    """Has more parts than are compared whole at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.body.extend([torch.nn.Identity() for _ in range(20)])
        self.body.append(Scaled())

    def on_train_epoch_start(self) -> None:
        self.body[-1].scales[0] = 1.0 + self.current_epoch


def test_every_epoch_begins_with_a_complete_comparison(tape: None) -> None:
    replay = body()
    with warned() as texts:
        assert_parity(Wide, batches, [replay], max_epochs=3)
    assert len(texts) == 1
    assert "(scalars)" in texts[0]
    assert ".scales changed" in texts[0]


class Revised(Wide):
    """Changes the list in the middle of its only epoch, while it is validated."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.body[-1].scales[0] = 2.0

    def val_dataloader(self) -> Any:
        return DataLoader(batches(1), batch_size=None)  # type: ignore[arg-type]


def test_after_every_validation_comes_a_complete_comparison(tape: None) -> None:
    replay = body()
    with warned() as texts:
        assert_parity(Revised, batches, [replay], max_epochs=1, val_check_interval=6, num_sanity_val_steps=0)
    assert len(texts) == 1
    assert ".scales changed" in texts[0]
    assert replay.tally.replayed == 2


def test_unfreezing_a_backbone_after_an_epoch_records_again(tape: None) -> None:
    class Frozen(Net):
        def __init__(self) -> None:
            super().__init__()
            self.body[0].requires_grad_(False)

        def on_train_epoch_start(self) -> None:
            if self.current_epoch == 1:
                self.body[0].requires_grad_(True)

    replay = body(strict=True)
    assert_parity(Frozen, batches, [replay], max_epochs=3)
    assert replay.tally.rearmed == ["the set of trainable parameters changed"]


def test_switching_a_part_back_and_forth_ends_after_three_times(tape: None) -> None:
    class Switching(Net):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == 6:
                self.body[1].train(not self.body[1].training)

    replay = body()
    with warned() as texts:
        assert_parity(Switching, batches, [replay], max_epochs=9)
    assert len(replay.tally.rearmed) == 3
    assert len(texts) == 1
    assert "for the 4th time" in texts[0]


def test_steps_that_return_no_loss_are_skipped_alike(tape: None) -> None:
    class Sometimes(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            return None if batch_idx in (1, 5) else loss

    replay = body(strict=True)
    assert_parity(Sometimes, batches, [replay], max_epochs=3)
    assert replay.tally.replayed == 16


def test_steps_that_do_not_call_the_part_are_skipped_alike(tape: None) -> None:
    class Seldom(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.head.weight.sum() if batch_idx == 5 else self.loss(batch)

    assert_parity(Seldom, batches, [body(strict=True)], max_epochs=3)


def test_two_calls_in_a_step_are_added_up(tape: None) -> None:
    class Twice(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss(batch) + self.loss((batch[0].flip(3), batch[1]))

    replay = body(strict=True)
    assert_parity(Twice, batches, [replay], max_epochs=2)
    assert replay.tally.native["outstanding_backward"]  # type: ignore[index]


def poisoned() -> Batches:
    made = batches()
    made[5][0][0, 0, 0, 0] = torch.nan
    return made


def test_a_batch_of_nans_is_replayed_alike(tape: None) -> None:
    replay = body(strict=True)
    assert_parity(Net, poisoned, [replay], max_epochs=2)
    assert replay.tally.replayed == 10


def test_sizes_that_alternate_are_recorded_each(tape: None) -> None:
    def alternating() -> Batches:
        random = torch.Generator().manual_seed(3)
        return [
            (torch.rand(4, 3, side, side, generator=random), torch.randint(0, 3, (4,), generator=random))
            for side in (8, 12) * 8
        ]

    replay = body(strict=True)
    assert_parity(Net, alternating, [replay], max_epochs=3)
    assert counted(replay) == {"replayed": 34, "warmup": 7, "shape": 7}
    assert replay.tally.proofs == 2


# The detector


def wild_batches() -> list[Batch]:
    """Capacities that grow, shrink and are empty; one image of NaN; a partial batch."""
    made = tiny_batches(10, objects=(2, 3, 0, 1, 2, 0, 7, 1, 5, 3))
    made[7].images.fill_(255)
    return made


class Poisoned(Detector):
    """The eighth batch of an epoch is not finite."""

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        images = batch.images * torch.nan if batch_idx == 7 else batch.images
        return super().training_step(batch._replace(images=images), batch_idx)


@pytest.mark.slow
def test_both_replays_of_the_detector_over_changing_targets_change_no_byte(tape: None) -> None:
    replays = [LossReplay(strict=True), NetworkReplay(strict=True)]
    assert_parity(
        lambda: Poisoned(["a", "b", "c"], warmup_epochs=0.5), wild_batches, replays,
        max_epochs=1, accumulate_grad_batches=3, gradient_clip_val=10.0,
    )  # fmt: skip
    assert counted(replays[1]) == {"replayed": 5, "warmup": 4, "partial_batch": 1}
    assert replays[0].tally.replayed >= 3


@pytest.mark.slow
def test_gains_that_change_at_a_step_retire_the_loss_once(tape: None) -> None:
    def change(module: Any) -> None:
        module.objective.gains = Gains(3.0, 0.5, 6.0)

    replay = LossReplay()
    with warned() as texts:
        assert_parity(
            tiny_detector, lambda: tiny_batches(7, objects=(2,)), [replay],
            callbacks=lambda: at(5, change), max_epochs=1,
        )  # fmt: skip
    assert counted(replay) == {"replayed": 1, "warmup": 4, "scalars": 1, "retired": 1}
    assert len(texts) == 1
    assert "LossReplay is retired at batch 5 (scalars)" in texts[0]
