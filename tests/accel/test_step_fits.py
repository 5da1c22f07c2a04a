"""StepReplay within Lightning: whatever a run does, checkpoint, losses, hooks and logs are those of the native run."""

from __future__ import annotations

import copy
import csv
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateMonitor,
    ModelCheckpoint,
    WeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.swa_utils import get_ema_avg_fn
from torch.utils.data import DataLoader

from lucid_accel.graphs.tape import TapeEngine
from lucid_accel.replay.step import StepReplay
from lucid_accel.site import Site
from lucid_accel.testing import assert_parity, digest, first_difference, run, tiny_batches, tiny_detector
from lucid_core.optim.musgd import MuSGD
from tests.accel.conftest import Net, Validated, batches, fit, trainer_for, warned
from tests.accel.muon import Apart, Muon, at, counted, of
from tests.accel.steps import CLIPPED, Averaged, Parts, Trace, compare, even_batches, half, hooked, parity

pytestmark = pytest.mark.usefixtures("tape")


# Settings of the Trainer


@pytest.mark.parametrize(
    ("settings", "counts", "parts"),
    [
        ({}, {"replayed": 10, "warmup": 4, "partial_batch": 2}, [0, 7]),
        (CLIPPED, {"replayed": 10, "warmup": 4, "partial_batch": 2}, [7, 7]),
        ({**CLIPPED, "precision": "bf16-mixed"}, {"replayed": 10, "warmup": 4, "partial_batch": 2}, [7, 7]),
        ({"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}, {"replayed": 10}, [0, 7]),
        # Three batches, three and two: a window that the end of the epoch cuts.
        ({**CLIPPED, "accumulate_grad_batches": 3, "max_epochs": 3}, {"replayed": 17}, [4, 4]),
        ({"accumulate_grad_batches": 20, "max_epochs": 3}, {"replayed": 17}, [0, 0]),
        ({"max_epochs": 4, "max_steps": 11}, {"replayed": 6}, [0, 3]),
        ({"fast_dev_run": 7}, {"replayed": 3}, [0, 0]),
        ({"max_epochs": 6, "overfit_batches": 2}, {"replayed": 8}, [0, 5]),
        ({"limit_train_batches": 6}, {"replayed": 8}, [0, 5]),
    ],
    ids=str,
)
def test_a_setting_of_the_trainer_changes_no_byte(
    settings: dict[str, Any], counts: dict[str, int], parts: list[int]
) -> None:
    replay = parity(**settings)
    assert counted(replay).items() >= counts.items()
    assert replay.replays() == parts


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("scale", [2.0**4, 2.0**24])
def test_sixteen_bits_with_and_without_overflow(accumulate: int, scale: float) -> None:
    """A step that overflows is left out by the scaler; the average moves all the same."""
    seen: list[float] = []

    def note(module: Any) -> None:
        seen.append(module.trainer.precision_plugin.scaler.get_scale())

    replay = parity(
        Averaged,
        plugins=lambda: half(scale),
        callbacks=hooked("on_train_batch_end", note, lambda _: True),
        accumulate_grad_batches=accumulate,
        max_epochs=4,
        **CLIPPED,
    )
    native, replayed = seen[:32], seen[32:]
    assert native == replayed
    assert any(later < earlier for earlier, later in pairwise(native[10:])) is (scale > 2.0**20)
    clip, update, follow = replay.replays()
    assert update <= clip <= follow
    assert min(clip, update, follow) > 0


def targets_that_grow() -> Any:
    return tiny_batches(10, batch=3, size=32, objects=(2, 2, 2, 2, 0, 7, 1, 0, 2, 2))


@pytest.mark.slow
def test_the_detector_with_targets_that_grow_and_are_empty() -> None:
    replay = parity(tiny_detector, targets_that_grow, max_epochs=1, precision="bf16-mixed", gradient_clip_val=1.0)
    assert counted(replay) == {"replayed": 3, "warmup": 6, "partial_batch": 1}
    assert replay.replays() == [0, 0, 7]


# What the run does beside


@pytest.mark.parametrize("settings", [{}, {"accumulate_grad_batches": 3, **CLIPPED}], ids=str)
def test_hooks_counters_rates_and_gradients_are_the_native_ones_in_order(settings: dict[str, Any]) -> None:
    traces: list[Trace] = []

    def traced() -> list[Callback]:
        traces.append(Trace())
        return [traces[-1]]

    parity(Logging, callbacks=traced, max_epochs=3, **settings)
    native, replayed = traces
    assert len(native.rows) > 120
    for index, (one, other) in enumerate(zip(native.rows, replayed.rows, strict=True)):
        assert first_difference(one, other) is None, (index, one["/hook"])


class Logging(Muon):
    """Logs its step in every way."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        self.log("twice", loss * 2)
        self.log_dict({"root": loss.sqrt(), "square": loss.square()}, on_epoch=True, batch_size=len(batch[0]))
        return {"itself": loss.detach(), "loss": loss, "found": loss.detach() * 3, "note": "as ever"}


def test_what_is_logged_and_returned_stays_as_it_was() -> None:
    kept: list[Any] = []

    class Keeping(Logging):
        def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
            kept.append((name, value))
            super().log(name, value, *args, **kwargs)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            kept.append(outputs)

    seen = []
    for accelerations in ([], [StepReplay(strict=True)]):
        kept.clear()
        torch.manual_seed(0)
        fit(accelerations, Keeping(), max_epochs=2, deterministic=True)
        seen.append(digest(kept))
    assert first_difference(*seen) is None
    assert len(seen[0]) == 16 * (4 * 2 + 4)


def rows_of(folder: Path) -> list[dict[str, str]]:
    """The rows of a CSV log, without what accelerations say of themselves at the end."""
    with (folder / "metrics.csv").open() as file:
        rows = [{name: x for name, x in row.items() if "accel/" not in name} for row in csv.DictReader(file)]
    return [row for row in rows if any(x for name, x in row.items() if name not in ("epoch", "step"))]


def test_the_log_has_the_native_bytes(tmp_path: Path) -> None:
    logged = []
    for name, accelerations in (("native", []), ("replayed", [StepReplay(strict=True)])):
        logger = CSVLogger(tmp_path, name, version=0)
        beside = [LearningRateMonitor(), *accelerations]
        run(Logging, batches, beside, logger=logger, log_every_n_steps=1, max_epochs=2, enable_progress_bar=True)
        logged.append(rows_of(tmp_path / name / "version_0"))
    assert logged[0] == logged[1]
    assert len(logged[0]) > 16
    assert all(row["loss_step"] for row in logged[0] if row["root_step"])


def test_a_step_that_logs_other_names_at_times_is_not_proven() -> None:
    class Sometimes(Muon):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            self.log("always", loss)
            self.calls = getattr(self, "calls", 0) + 1
            return loss

    replay = StepReplay()
    with warned() as texts:
        assert compare(Sometimes, batches, replay) is None
    assert len(texts) == 1
    assert "calls" in texts[0]


def test_validation_in_every_epoch_with_the_average() -> None:
    replay = parity(Averaged, max_epochs=3, val_check_interval=4, **CLIPPED)
    assert replay.replays() == [14, 14, 21]
    assert counted(replay) == {"replayed": 17, "warmup": 4, "partial_batch": 3}


def test_the_stacks_of_the_update_are_recorded_as_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    parted, branches = [], TapeEngine.branches

    def counting(engine: TapeEngine, bodies: Sequence[Any]) -> list[Any]:
        parted.append(len(bodies))
        return branches(engine, bodies)

    monkeypatch.setattr(TapeEngine, "branches", counting)
    parity(Muon)
    assert parted == [2]


def test_steps_at_a_rate_that_changes_with_every_step_and_a_momentum_too() -> None:
    class Cycling(Muon):
        def configure_optimizers(self) -> Any:
            optimizer = MuSGD(self.parameters(), lr=0.05)
            schedule = OneCycleLR(optimizer, 0.1, total_steps=100, cycle_momentum=True)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    # A momentum is a number in the update, which stays native; the step does not.
    assert parity(Cycling).replays() == [0, 0]


@pytest.mark.parametrize("end", ["early", "asked", "steps"])
def test_a_run_that_stops_early(end: str) -> None:
    ways: dict[str, Callable[[], list[Callback]]] = {
        "early": lambda: [EarlyStopping("val", patience=1, mode="max", check_on_train_epoch_end=False)],
        "asked": lambda: at(9, do=lambda m: setattr(m.trainer, "should_stop", True))(),
        "steps": list,
    }
    steps = {"max_steps": 13} if end == "steps" else {}
    parity(Averaged, callbacks=ways[end], max_epochs=5, **steps)


@pytest.mark.parametrize("of_a_replayed_run", [False, True])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_run_is_resumed_in_the_middle_of_an_epoch(tmp_path: Path, of_a_replayed_run: bool, accumulate: int) -> None:
    saved = []
    for place, accelerations in (("native", []), ("replayed", [StepReplay(strict=True)])):
        keep = ModelCheckpoint(tmp_path / place, every_n_train_steps=2, save_top_k=-1, filename="{step}")
        settings = {"enable_checkpointing": True, "max_epochs": 2, "accumulate_grad_batches": accumulate}
        run(Averaged, batches, [keep, *accelerations], **settings)
        saved.append(sorted(path.name for path in (tmp_path / place).iterdir()))
    assert saved[0] == saved[1]
    start = tmp_path / ("replayed" if of_a_replayed_run else "native") / "step=4.ckpt"
    settings = {"max_epochs": 3, "accumulate_grad_batches": accumulate}
    replay = StepReplay(strict=True)
    resumed = run(Averaged, batches, [replay], ckpt_path=start, **settings)
    native = run(Averaged, batches, [], ckpt_path=tmp_path / "native" / "step=4.ckpt", **settings)
    assert first_difference(native, resumed) is None
    assert replay.tally.replayed


class Following(WeightAveraging):
    def __init__(self) -> None:
        super().__init__(use_buffers=True, avg_fn=get_ema_avg_fn(0.5))


@pytest.mark.parametrize(
    "others",
    [lambda: [Following()], lambda: [GradientAccumulationScheduler({0: 1, 1: 2})]],
    ids=["averages", "growing accumulation"],
)
def test_other_callbacks_beside_it(others: Callable[[], list[Callback]]) -> None:
    class Both(Muon, Validated):
        pass

    parity(Both, callbacks=others, max_epochs=4)


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_with_and_without_workers(workers: int) -> None:
    class Loading(Muon):
        def train_dataloader(self) -> Any:
            return DataLoader(batches(), batch_size=None, num_workers=workers)  # type: ignore[arg-type]

    weights = []
    for accelerations in ([], [replay := StepReplay(strict=True)]):
        torch.manual_seed(0)
        trainer_for(accelerations, max_epochs=2, deterministic=True).fit(module := Loading())
        weights.append(torch.cat([x.flatten() for x in module.state_dict().values()]))
    assert torch.equal(*weights)
    assert replay.tally.replayed == 10


# Modules of all kinds


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class Residual(Net):
    """A classifier as most people write one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3), Block(), Block(), nn.Dropout(0.1))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        images, labels = batch
        found = self(images)
        loss = nn.functional.cross_entropy(found, labels)
        self.log("train/loss", loss, prog_bar=True)
        self.log("train/accuracy", (found.argmax(1) == labels).float().mean())
        return loss


class Adaptive(Residual):
    def configure_optimizers(self) -> Any:
        return AdamW(self.parameters(), 1e-2)


@pytest.mark.parametrize("kind", [Residual, Adaptive])
def test_a_foreign_classifier_replays_its_step_and_says_what_its_update_needs(kind: type[Net]) -> None:
    replay = parity(kind, max_epochs=2, **CLIPPED)
    assert counted(replay) == {"replayed": 10, "warmup": 4, "partial_batch": 2}
    assert replay.replays() == [7]
    trainer = trainer_for([])
    trainer.strategy._lightning_module = module = kind()
    trainer.strategy.optimizers = [SGD(module.parameters(), 0.1)]
    answer = StepReplay().eligible(Site(trainer, module, started=True))
    assert str(answer) == (
        "yes, without the update, which needs MuSGD, whose learning rate is on the device, and this run has SGD"
    )


@pytest.mark.parametrize("kind", [Apart, Net])
def test_groups_of_their_own_and_plain_descent(kind: type[Net]) -> None:
    parity(kind, max_epochs=3, **CLIPPED)


def test_sizes_that_alternate_are_recorded_each() -> None:
    def alternating() -> Any:
        random = torch.Generator().manual_seed(3)
        return [
            (torch.rand(4, 3, side, side, generator=random), torch.randint(0, 3, (4,), generator=random))
            for side in (8, 12) * 6
        ]

    replay = parity(Muon, alternating, max_epochs=3, accumulate_grad_batches=3)
    assert counted(replay) == {"replayed": 36 - 14, "warmup": 7, "shape": 7}
    assert replay.tally.proofs >= 2


class Branching(Muon):
    """Has a second head, for large pictures only; smaller ones leave it without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(6, 3)
        self.gain = 0.5

    def loss(self, batch: Any) -> Tensor:
        images, labels = batch
        found = self.body(images).mean((2, 3))
        return nn.functional.cross_entropy((self.large if images.shape[-1] > 8 else self.head)(found), labels)

    def large(self, found: Tensor) -> Tensor:
        return self.other(found) * self.gain


def two_sizes(sizes: tuple[int, ...] = (8, 12, 12) * 5) -> Any:
    random = torch.Generator().manual_seed(3)
    return [
        (torch.rand(4, 3, side, side, generator=random), torch.randint(0, 3, (4,), generator=random)) for side in sizes
    ]


@pytest.mark.parametrize("settings", [{}, {"accumulate_grad_batches": 2, **CLIPPED}], ids=str)
def test_signatures_that_reach_other_parameters(settings: dict[str, Any]) -> None:
    replay = parity(Branching, two_sizes, max_epochs=4, **settings)
    assert replay.tally.replayed > 30
    assert replay.tally.proofs >= 2


def test_a_setting_that_only_a_later_signature_reads_is_watched() -> None:
    def change(module: Any) -> None:
        module.gain = 0.9

    def small_then_large() -> Any:
        return two_sizes((8,) * 6 + (12,) * 14)

    replay = StepReplay()
    with warned() as texts:
        assert compare(Branching, small_then_large, replay, callbacks=at(32, do=change), max_epochs=2) is None
    assert len(texts) == 1
    assert "the attribute gain changed" in texts[0]
    assert replay.tally.proofs == 2 + 1


# Who touches gradients

EDITS: dict[str, Callable[[Any], Any]] = {
    "scaled in place": lambda m: [x.grad.mul_(0.5) for x in graded(m)],
    "given other memory": lambda m: [setattr(x.grad, "data", x.grad.data * 0.5) for x in graded(m)[:2]],
    "cloned": lambda m: [setattr(x, "grad", x.grad.clone()) for x in graded(m)[:2]],
    "dropped": lambda m: [setattr(x, "grad", None) for x in graded(m)[:2]],
    "all exchanged": lambda m: [setattr(x, "grad", x.grad * 2) for x in graded(m)],
}


def graded(module: LightningModule) -> list[nn.Parameter]:
    return [x for x in module.parameters() if x.grad is not None]


@pytest.mark.parametrize(
    ("hook", "accumulate"),
    [
        ("on_after_backward", 1),
        ("on_before_optimizer_step", 3),
        ("on_before_zero_grad", 1),
        ("on_before_backward", 3),
    ],
)
@pytest.mark.parametrize("edit", EDITS)
def test_gradients_may_be_edited_and_exchanged(hook: str, accumulate: int, edit: str) -> None:
    """Not at all at first, then at every other step, then not any more."""
    when = lambda call: 8 < call < 14 and call % 2 == 0  # noqa: E731
    replay = parity(
        callbacks=hooked(hook, EDITS[edit], when), accumulate_grad_batches=accumulate, max_epochs=3, **CLIPPED
    )
    assert counted(replay) == {"replayed": 17, "warmup": 4, "partial_batch": 3}


def test_gradients_that_are_always_exchanged_leave_the_rest_of_each_step_native() -> None:
    replay = parity(callbacks=hooked("on_after_backward", EDITS["all exchanged"], lambda _: True), **CLIPPED)
    assert replay.replays() == [0, 0]


def test_gradients_that_are_dropped_at_odd_steps_and_cloned_at_even_ones() -> None:
    def both() -> list[Callback]:
        drop = hooked("on_before_optimizer_step", EDITS["dropped"], lambda call: call % 2 == 1)
        return [*drop(), *hooked("on_before_optimizer_step", EDITS["cloned"], lambda call: call % 2 == 0)()]

    parity(callbacks=both, max_epochs=3, **CLIPPED)


# What a module has of its own


class OwnBackward(Muon):
    def backward(self, loss: Tensor) -> None:
        (loss * (1.0 + 0.1 * self.trainer.global_step)).backward()


class OwnStep(Muon):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
        if batch_idx % 3:
            optimizer.step(closure=closure)
        else:
            closure()


class Zeroing(Muon):
    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        optimizer.zero_grad(set_to_none=False)


class Never(Muon):
    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        pass


class OwnClipping(Muon):
    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        if self.trainer.global_step % 4:
            self.clip_gradients(optimizer, gradient_clip_val=0.05, gradient_clip_algorithm="norm")


class Twice(Muon):
    """Steps through a batch, then once more with the same closure."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
        optimizer.step(closure=closure)
        optimizer.step(closure=closure)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("kind", [OwnBackward, OwnStep, Zeroing, Never, OwnClipping, Twice])
def test_what_a_module_has_of_its_own_stays_in_force(kind: type[Muon], accumulate: int) -> None:
    parity(kind, accumulate_grad_batches=accumulate, max_epochs=3)


def test_an_optimizer_that_calls_the_step_several_times() -> None:
    class Searching(Net):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.SiLU())

        def configure_optimizers(self) -> Any:
            return LBFGS(self.parameters(), lr=0.1, max_iter=4)

    replay = parity(Searching, even_batches)
    assert replay.tally.replayed > 16


def test_steps_that_make_no_loss_for_some_shapes() -> None:
    class Sometimes(Muon):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss(batch) if len(batch[0]) == 4 else None

    parity(Sometimes, max_epochs=3)


# In the middle of a fit


def frozen(module: Any) -> None:
    module.body[0].requires_grad_(False)


def thawed(module: Any) -> None:
    module.body[0].requires_grad_(True)


def settled(module: Any) -> None:
    module.body[1].eval()


def reloaded(module: Any) -> None:
    of(module).load_state_dict(copy.deepcopy(of(module).state_dict()))


def loaded(module: Any) -> None:
    module.load_state_dict({name: x * 0.5 for name, x in module.state_dict().items()})


def split(module: Any) -> None:
    """Move one parameter to a group of its own."""
    last = of(module).param_groups[0]["params"].pop()
    of(module).add_param_group({"params": [last], "lr": 0.01})


class Steady(Muon):
    """Has a constant rate: a schedule would not know of an added group."""

    def configure_optimizers(self) -> Any:
        return MuSGD(self.parameters(), lr=0.05, weight_decay=0.01)


MIDDLES: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "a layer is frozen": (frozen, ["the set of trainable parameters changed"]),
    "a layer is evaluated": (settled, ["a part of it was switched between training and evaluation"]),
    "the optimizer's state is loaded": (reloaded, ["the optimizer's state was loaded, or its groups changed"]),
    "weights are loaded": (loaded, []),
    "a parameter gets a group": (split, ["the optimizer's state was loaded, or its groups changed"]),
}


@pytest.mark.parametrize("hook", ["on_train_epoch_start", "on_before_optimizer_step"])
@pytest.mark.parametrize("middle", MIDDLES)
def test_a_change_in_the_middle_is_recorded_again(middle: str, hook: str) -> None:
    change, rearmed = MIDDLES[middle]
    count = 2 if "epoch" in hook else 17
    replay = parity(Steady, callbacks=hooked(hook, change, lambda call: call == count), max_epochs=5, **CLIPPED)
    assert replay.tally.rearmed == rearmed
    clip, update = replay.replays()
    assert clip >= 20
    assert update >= 20


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_layer_that_is_frozen_for_a_while(accumulate: int) -> None:
    change = lambda: [*at(9, do=frozen)(), *at(22, do=thawed)()]  # noqa: E731
    replay = parity(callbacks=change, max_epochs=5, accumulate_grad_batches=accumulate, **CLIPPED)
    assert len(replay.tally.rearmed) == 2


def test_a_limit_that_changes_in_the_middle() -> None:
    def limit(value: Any) -> Callable[[Any], Any]:
        return lambda module: setattr(module.trainer, "gradient_clip_val", value)

    change = lambda: [*at(9, do=limit(0.01))(), *at(14, do=limit(None))(), *at(20, do=limit(0.1))()]  # noqa: E731
    replay = parity(callbacks=change, max_epochs=4, **CLIPPED)
    # The first limit is replayed, and when it comes back; another one has to stay to be recorded.
    assert replay.replays() == [11, 21]


def test_it_is_suspended_and_resumed() -> None:
    replay = Parts(strict=True)
    change = lambda: [*at(6, do=lambda _: replay.suspend())(), *at(9, do=lambda _: replay.resume())()]  # noqa: E731
    assert compare(Muon, batches, replay, callbacks=change, max_epochs=3, accumulate_grad_batches=2) is None
    assert counted(replay) == {"replayed": 15, "warmup": 4, "partial_batch": 2, "disabled": 3}


def test_a_second_fit_replays_again() -> None:
    replay = Parts(strict=True)
    for _ in range(2):
        assert compare(Averaged, batches, replay) is None
        assert counted(replay) == {"replayed": 10, "warmup": 4, "partial_batch": 2}


def test_the_same_module_fits_again() -> None:
    outcomes = []
    for accelerations in ([], [StepReplay(strict=True)]):
        torch.manual_seed(0)
        module = Averaged()
        for _ in range(2):
            fit(accelerations, module, max_epochs=2, deterministic=True)
        outcomes.append(torch.cat([x.flatten() for x in module.state_dict().values()]))
    assert torch.equal(*outcomes)


def poisoned() -> Any:
    made = even_batches(10)
    made[7][0][0, 0, 0, 0] = torch.nan
    return made


def test_a_batch_of_nans_is_replayed_alike() -> None:
    replay = parity(Averaged, poisoned, **CLIPPED)
    assert replay.tally.replayed == 16


def test_without_proof() -> None:
    replay = Parts(strict=True, proof="off")
    assert compare(Averaged, batches, replay, **CLIPPED) is None
    assert counted(replay) == {"replayed": 11, "warmup": 3, "partial_batch": 2}
    assert replay.tally.proofs == 0


def test_the_second_proof_comes_after_a_hundred_replays() -> None:
    replay = parity(Averaged, even_batches, max_epochs=14, **CLIPPED)
    assert replay.tally.proofs == 2 * 4


# Controls: each breaks one thing, and the comparison sees it


def unlike(replay: StepReplay, module: Callable[[], LightningModule] = Averaged, **settings: Any) -> None:
    with warned(), pytest.raises(AssertionError, match="differs from the native fit"):
        assert_parity(module, even_batches, [replay], **{**CLIPPED, **settings})
    assert replay.tally.replayed


def test_a_frozen_learning_rate_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_scalars(self: MuSGD) -> None:
        if of_first.setdefault(id(self), 0) < 6:
            native(self)
        of_first[id(self)] += 1

    of_first: dict[int, int] = {}
    native = MuSGD.write_scalars

    class Frozen(StepReplay):
        def install(self, site: Any) -> Any:
            monkeypatch.setattr(MuSGD, "write_scalars", write_scalars)
            return super().install(site)

    unlike(Frozen())


def test_an_input_that_is_not_copied_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from lucid_accel.graphs.recording import Recording

    native = Recording._load
    monkeypatch.setattr(Recording, "_load", lambda self, x: native(self, x) if self._turn == 0 else None)
    unlike(StepReplay(proof="off"))


def test_an_average_that_stands_still_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    import lucid_accel.replay.step as module

    def still(routine: Any, average: Any) -> Any:
        return lambda native: None

    monkeypatch.setattr(module, "averaging", still)
    unlike(StepReplay())


def test_gradients_that_are_written_and_not_added_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from lucid_accel.graphs.packed import Packed

    monkeypatch.setattr(Packed, "add_", Packed.copy_)
    unlike(StepReplay(), accumulate_grad_batches=3, max_epochs=4)
