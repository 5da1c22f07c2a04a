"""On a GPU: the whole step, replayed and native, is equal in bits, and gives back what it took."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lucid_accel import AccelerationError
from lucid_accel.acceleration import State
from lucid_accel.graphs.attached import Attached
from lucid_accel.graphs.packed import Packed
from lucid_accel.graphs.recording import Recording
from lucid_accel.replay import step as step_module
from lucid_accel.replay.step import StepReplay
from lucid_accel.testing import assert_parity, digest, first_difference, run, tiny_batches
from lucid_core.module import Detector
from lucid_core.optim.musgd import MuSGD
from lucid_core.types import Batch
from tests.accel.conftest import Net, trainer_for
from tests.accel.conftest import batches as pictures
from tests.accel.muon import Muon
from tests.accel.steps import Averaged, Parts
from tests.accel.test_gpu_updates import BF16, CLIPPED, GPU, SEGMENT, Overflow, Scale, batches, detector, memory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.*is retired at.*"),
    pytest.mark.filterwarnings("ignore:.*already exist within another group.*"),
]


class Validated(Detector):
    """Validates with its averaged weights."""

    def __init__(self) -> None:
        super().__init__(["a", "b", "c"], warmup_epochs=2.0)

    def val_dataloader(self) -> Any:
        return DataLoader(tiny_batches(2, batch=2), batch_size=None)  # type: ignore[arg-type]


def large() -> list[Batch]:
    """Ten batches of 320 pixels: targets that grow, shrink and are empty, and a smaller batch at the end."""
    return tiny_batches(10, batch=4, size=320, objects=(2, 5, 0, 1, 3, 9, 17, 4, 0, 2))


def equal(
    least: int,
    module: Callable[[], LightningModule] = detector,
    data: Callable[[], Iterable[Any]] = batches,
    callbacks: Callable[[], list[Callback]] = list,
    **settings: Any,
) -> tuple[Parts, dict[str, str]]:
    """Compare with one native fit; it is proven, and replays at least so often."""
    native = run(module, data, callbacks(), **settings)
    replay = Parts(strict=True, keep="always")
    accelerated = run(module, data, [*callbacks(), replay], **settings)
    assert first_difference(native, accelerated) is None
    assert replay.tally.replayed >= least, replay.tally
    assert replay.tally.proofs
    return replay, native


# Whole fits of the detector


def test_two_hundred_steps_are_equal_and_proven_again() -> None:
    replay, native = equal(165, **BF16, max_epochs=20)
    for part in ("/state_dict/", "momentum", "/ema/", "/lr_schedulers/", "batch "):
        assert any(part in place for place in native), part
    assert replay.tally.proofs >= 8
    clip, update, follow = replay.replays()
    assert min(clip, update) > 150
    assert follow == 200 - 4


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "32-true"])
def test_forty_steps_are_equal(precision: str, accumulate: int) -> None:
    """With validation in every epoch, targets that grow and are empty, and a smaller batch at the end."""
    beside = Overflow if precision == "16-mixed" else Scale
    settings = {**CLIPPED, "accumulate_grad_batches": accumulate, "max_epochs": 5}
    replay, _ = equal(25, Validated, large, lambda: [beside()], **settings, precision=precision)
    assert min(replay.replays()) >= (2 if accumulate == 3 else 20)


def test_a_run_is_resumed_in_the_middle(tmp_path: Path) -> None:
    path, plain = tmp_path / "half.ckpt", tmp_path / "plain.ckpt"
    settings = {**BF16, "max_steps": 25, "max_epochs": 6}
    halves = [
        run(Validated, batches, keep=plain, **settings),
        run(Validated, batches, [StepReplay(strict=True)], keep=path, **settings),
    ]
    assert first_difference(*halves) is None
    replay = StepReplay(strict=True)
    resumed = run(Validated, batches, [replay], ckpt_path=path, max_epochs=5, **BF16)
    assert first_difference(run(Validated, batches, ckpt_path=plain, max_epochs=5, **BF16), resumed) is None
    # Twenty steps are left, of which each of two shapes is seen three times before.
    assert replay.tally.replayed >= 10


class FreezeOnce(Callback):
    """Freezes the backbone from the third epoch on."""

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        if trainer.current_epoch == 2:
            module.network.backbone.requires_grad_(False)


def test_layers_that_are_frozen_in_the_middle_are_equal() -> None:
    replay, _ = equal(30, callbacks=lambda: [FreezeOnce()], **BF16, max_epochs=6)
    assert replay.tally.rearmed == ["the set of trainable parameters changed"]
    assert min(replay.replays()) > 30


# Modules of strangers


class Dropping(Averaged):
    """With statistics, randomness, an average and a log."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("loss", loss, prog_bar=True, on_epoch=True)
        return {"loss": loss, "root": loss.detach().sqrt()}


SHORT: dict[str, Any] = {**GPU, "gradient_clip_val": 0.05, "max_epochs": 3}


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "32-true"])
@pytest.mark.parametrize("module", [Dropping, Net])
def test_any_module_is_equal(module: type[Net], precision: str, accumulate: int) -> None:
    beside = lambda: [Scale()]  # noqa: E731
    equal(17, module, pictures, beside, **SHORT, precision=precision, accumulate_grad_batches=accumulate)


class Touch(Callback):
    """Edits gradients in place, exchanges one, gives one other memory, drops one."""

    def on_after_backward(self, trainer: Any, module: Any) -> None:
        step, graded = trainer.global_step, [x for x in module.parameters() if x.grad is not None]
        if step in (9, 15):
            graded[0].grad.mul_(0.5)
        elif step in (10, 16):
            graded[1].grad = graded[1].grad * 2
        elif step in (11, 17):
            graded[2].grad.data = graded[2].grad.data * 0.5
        elif step in (12, 18):
            graded[3].grad = None


def test_gradients_that_somebody_touches_are_equal() -> None:
    equal(17, Dropping, pictures, lambda: [Touch()], **SHORT)


def test_a_step_launches_five_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    launched, replay = [0], torch.cuda.CUDAGraph.replay

    def counting(graph: torch.cuda.CUDAGraph) -> None:
        launched[0] += 1
        replay(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", counting)
    item = Parts(strict=True, proof="off", keep="always")
    run(Dropping, pictures, [item], **SHORT)
    assert launched[0] == 2 * item.tally.replayed + sum(item.replays())
    assert min(item.replays()) >= 12


class OtherStream(Callback):
    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        torch.cuda.synchronize()
        torch.cuda.set_stream(torch.cuda.Stream() if batch_idx == 5 else torch.cuda.default_stream())


def test_another_stream_is_native() -> None:
    replay, _ = equal(10, Dropping, pictures, lambda: [OtherStream()], **SHORT)
    assert replay.tally.native["stream"] == 3  # type: ignore[index]


# The loader beside it


class Pinned(Dropping):
    def train_dataloader(self) -> Any:
        return DataLoader(pictures(24), batch_size=None, num_workers=4, pin_memory=True, prefetch_factor=4)  # type: ignore[arg-type]


def test_workers_and_the_thread_that_pins_are_not_disturbed_by_recording() -> None:
    weights = []
    for accelerations in ([], [StepReplay(strict=True)], [StepReplay(strict=True)]):
        torch.manual_seed(0)
        trainer = trainer_for(accelerations, deterministic=True, **{**SHORT, "max_epochs": 2})
        trainer.fit(module := Pinned())
        weights.append(digest(module.state_dict()))
    assert weights[0] == weights[1] == weights[2]


def test_garbage_that_holds_a_graph_is_collected_before() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.graph, self.own = torch.cuda.CUDAGraph(), self
            with torch.cuda.graph(self.graph):
                self.made = torch.ones(2, device="cuda") * 2

    Cycle()
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        equal(17, Dropping, pictures, **SHORT)
    finally:
        gc.set_threshold(*threshold)
    assert gc.isenabled()


# Faults while recording


def capturing() -> bool:
    return torch.cuda.is_current_stream_capturing()


class Faulty(Dropping):
    """Fails where it is recorded, in one way or another."""

    fault = ""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        made = super().training_step(batch, batch_idx)
        fault = type(self).fault
        if fault == "reads":
            made["loss"].item()
        elif fault == "raises" and capturing():
            raise ValueError("no recordings, please")
        elif fault == "devours" and capturing():
            torch.empty(1 << 40, dtype=torch.uint8, device=self.device)
        return made


class Stumbling(torch.autograd.Function):
    """Fails where its backward is recorded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if capturing():
            raise ValueError("no recordings, please")
        return gradient.clone()


class Backwards(Dropping):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        made = super().training_step(batch, batch_idx)
        return {**made, "loss": Stumbling.apply(made["loss"])}  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("fault", ["reads", "raises", "devours", "backward"])
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_capture_that_fails_changes_nothing(fault: str) -> None:
    module = Backwards if fault == "backward" else type("Failing", (Faulty,), {"fault": fault})
    item = StepReplay()
    assert_parity(module, pictures, [item], must_replay=False, **SHORT)
    assert item.state is State.RETIRED
    assert "capture_failed" in item.verdict
    assert gc.isenabled()
    assert not capturing()
    with pytest.raises(AccelerationError, match="capture_failed"):
        run(module, pictures, [StepReplay(on_failure="raise")], **SHORT)
    # And the device still records.
    equal(17, Dropping, pictures, **SHORT)


# Memory


def test_the_end_of_a_fit_and_a_retirement_give_the_memory_back() -> None:
    seen: dict[int, tuple[int, int]] = {}

    class Look(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step in (1, 12, 15):
                trainer.optimizers[0].zero_grad()
                seen[trainer.global_step] = memory()
            if trainer.global_step == 13:
                weight = module.network.backbone.parameters().__next__()
                weight.data = weight.data.clone()

    item = StepReplay()
    run(detector, batches, max_epochs=1, **BF16)
    before = memory()
    run(detector, batches, [Look(), item], max_epochs=2, **BF16)
    after = memory()
    assert item.state is State.RETIRED
    assert "(storage)" in item.verdict
    assert item.tally.reserved
    assert seen[12][0] > seen[1][0] + 12, "a recording has two sets of gradients"
    assert seen[15][0] <= seen[1][0] + 1
    assert seen[15][1] <= seen[1][1] + SEGMENT
    assert after[0] <= before[0] + 1
    assert after[1] <= before[1] + SEGMENT


class Peak(Callback):
    """What is reserved when all is recorded and proven."""

    reserved = 0

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 10:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def on_train_end(self, *_: Any) -> None:
        self.reserved = torch.cuda.max_memory_reserved()


def sixteen() -> list[Batch]:
    # Without the last one, which has a picture fewer, and whose native step needs activations of its own.
    return tiny_batches(15, batch=16, size=320, objects=(4,))[:-1]


def peak_of(accelerated: bool) -> int:
    """Bytes that a fit keeps reserved."""
    peak = Peak()
    run(detector, sixteen, [*([StepReplay(strict=True)] if accelerated else []), peak], max_epochs=1, **BF16)
    return peak.reserved


def test_reserved_memory_grows_by_little_more_than_the_activations() -> None:
    peaks = []
    for accelerated in (False, True):
        # In a process of its own: where others have been, what they left holds memory that cannot be given back.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            peaks.append(pool.submit(peak_of, accelerated).result())
    assert peaks[1] <= 1.6 * peaks[0], peaks


def test_memory_that_nobody_owns_may_hold_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    take, load = Attached.take, Recording._load

    def poisoned_take(self: Attached, reached: Any) -> None:
        take(self, reached)
        for room in self.written._room.values():
            room.fill_(torch.nan)

    def poisoned_load(self: Recording, inputs: Any) -> None:
        rooms = [*self._outputs._room.values(), *(x for x in self._cotangents if x is not None)]
        for x in (*self._inputs, *rooms):
            if x.is_floating_point():
                x.fill_(torch.nan)
        load(self, inputs)

    monkeypatch.setattr(Attached, "take", poisoned_take)
    monkeypatch.setattr(Recording, "_load", poisoned_load)
    equal(17, Dropping, pictures, **SHORT, accumulate_grad_batches=2)


class Heads(Muon):
    """Uses another head for large pictures, and leaves the first one without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(6, 3)

    def loss(self, batch: Any) -> Tensor:
        images, labels = batch
        found = self.body(images).mean((2, 3))
        return nn.functional.cross_entropy((self.other if images.shape[-1] > 8 else self.head)(found), labels)


def two_sizes() -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(3)
    sizes = (8, 12, 12) * 5
    return [(torch.rand(4, 3, x, x, generator=random), torch.randint(0, 3, (4,), generator=random)) for x in sizes]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_sizes_that_reach_other_parameters_are_equal(accumulate: int) -> None:
    settings = {**SHORT, "max_epochs": 4, "accumulate_grad_batches": accumulate}
    replay, _ = equal(30, Heads, two_sizes, **settings)
    assert replay.tally.proofs >= 2


# Controls: each breaks one thing, and the comparison must see it


def unequal(module: Callable[[], LightningModule] = Dropping, data: Any = pictures, **settings: Any) -> None:
    unproven = StepReplay(proof="off", keep="always")
    with pytest.raises(AssertionError, match="differs from the native fit"):
        assert_parity(module, data, [unproven], **{**SHORT, **settings})
    assert unproven.tally.replayed


def test_a_frozen_learning_rate_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    native, installed = MuSGD.write_scalars, [False]

    class Frozen(StepReplay):
        def install(self, site: Any) -> Any:
            installed[0] = True
            return super().install(site)

    def write_scalars(self: MuSGD) -> None:
        calls[0] += 1
        if not installed[0] or calls[0] < 8:
            native(self)

    calls = [0]
    monkeypatch.setattr(MuSGD, "write_scalars", write_scalars)
    expected = run(Dropping, pictures, **SHORT)
    calls[0] = 0
    assert first_difference(expected, run(Dropping, pictures, [Frozen()], **SHORT)) is not None


def test_inputs_that_are_not_copied_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Recording._load
    monkeypatch.setattr(Recording, "_load", lambda self, x: load(self, x) if self._turn == 0 else None)
    unequal()


def test_an_average_that_stands_still_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "averaging", lambda routine, average: lambda native: None)
    unequal()


def test_gradients_that_are_written_and_not_added_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Packed, "add_", Packed.copy_)
    unequal(accumulate_grad_batches=3)


def test_a_loss_that_is_not_scaled_in_the_backward_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Recording._launch_backward

    def unscaled(self: Recording, cotangents: Any) -> Any:
        return launch(self, [None if x is None else torch.ones_like(x) for x in cotangents])

    monkeypatch.setattr(Recording, "_launch_backward", unscaled)
    unequal(accumulate_grad_batches=3)
