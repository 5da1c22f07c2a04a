"""On a GPU: the optimizer's work and the norm of the gradients, replayed and native, are equal in bits."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BaseFinetuning
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import StepLR

from lucid_accel import (
    AccelerationError,
    GradientNormReplay,
    LossReplay,
    NetworkReplay,
    OptimizerReplay,
    OrthogonalizationReplay,
    Replay,
    UpdateReplay,
)
from lucid_accel.acceleration import State
from lucid_accel.graphs.job import Job
from lucid_accel.graphs.routine import Routine
from lucid_accel.graphs.single import SingleRecording
from lucid_accel.testing import Outcome, assert_parity, digest, first_difference, run, tiny_batches, tiny_detector
from lucid_core.optim.musgd import MuSGD
from lucid_core.optim.newton_schulz import newton_schulz
from lucid_core.seams import seam
from lucid_core.types import Batch
from tests.accel.conftest import Net
from tests.accel.conftest import batches as pictures

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.*is retired at.*"),
    pytest.mark.filterwarnings("ignore:.*already exist within another group.*"),
]

GPU: dict[str, Any] = {"accelerator": "gpu", "devices": 1}
#: The gradients of the detector are longer than that, so that they are clipped.
CLIPPED: dict[str, Any] = {**GPU, "gradient_clip_val": 1.0}
BF16: dict[str, Any] = {**CLIPPED, "precision": "bf16-mixed"}
EPOCHS = 6

Kinds = dict[str, Callable[..., list[Replay]]]

UPDATES: Kinds = {
    "update": lambda **options: [UpdateReplay(strict=True, **options)],
    "orthogonalization": lambda **options: [OrthogonalizationReplay(strict=True, **options)],
}
NORM: Kinds = {"norm": lambda **options: [GradientNormReplay(strict=True, **options)]}
ALL: Kinds = {
    "all": lambda **options: [
        kind(strict=True, **options) for kind in (NetworkReplay, LossReplay, GradientNormReplay, UpdateReplay)
    ]
}
KINDS = {**UPDATES, **NORM, **ALL}


def detector(**options: Any) -> LightningModule:
    """The learning rate rises for two epochs, then falls: no two steps in a row have the same."""
    return tiny_detector(**{"warmup_epochs": 2.0, **options})


def batches() -> list[Batch]:
    """Ten batches of 64 pixels: growing, shrinking and empty targets, and a smaller one at the end."""
    return tiny_batches(10, batch=4, size=64, objects=(2, 5, 0, 1, 3, 9, 17, 4, 0, 2))


def compare(
    kinds: Kinds,
    least: int,
    module: Callable[[], LightningModule] = detector,
    data: Callable[[], Iterable[Any]] = batches,
    callbacks: Callable[[], list[Callback]] = list,
    **settings: Any,
) -> tuple[Outcome, dict[str, list[Replay]]]:
    """Compare each kind with one native fit; each acceleration is proven, and replays at least so often."""
    native = run(module, data, callbacks(), **settings)
    made = {}
    for kind, make in kinds.items():
        made[kind] = items = make()
        accelerated = run(module, data, [*callbacks(), *items], **settings)
        assert first_difference(native, accelerated) is None, kind
        for item in items:
            assert item.tally.replayed >= least, (kind, item.name, item.tally)
            assert item.tally.proofs, (kind, item.name)
    return native, made


def calls(item: Replay) -> int:
    """How often its seam was called."""
    return item.tally.replayed + sum(item.tally.native.values())


# Whole fits of the detector


def test_sixty_steps_are_equal() -> None:
    native, made = compare(KINDS, 40, **BF16, max_epochs=EPOCHS)
    assert first_difference(native, run(detector, batches, **BF16, max_epochs=EPOCHS)) is None
    for part in ("/state_dict/", "momentum", "/ema/", "/lr_schedulers/", "batch "):
        assert any(part in place for place in native), part
    routines = [item for items in made.values() for item in items if not isinstance(item, NetworkReplay | LossReplay)]
    assert [calls(item) for item in routines] == [60] * 5


def test_sixty_steps_without_clipping_are_equal() -> None:
    native, _ = compare(UPDATES, 50, **GPU, precision="bf16-mixed", max_epochs=EPOCHS)
    clipped = run(detector, batches, **BF16, max_epochs=EPOCHS)
    assert first_difference(native, clipped) is not None, "clipping should matter here"


def test_thirty_two_bits_are_equal() -> None:
    compare(KINDS, 40, **CLIPPED, precision="32-true", max_epochs=EPOCHS)


def test_accumulated_gradients_are_equal() -> None:
    # Three batches, three, three, and the one that is left over: four steps in each epoch.
    _, made = compare(KINDS, 12, **BF16, accumulate_grad_batches=3, max_epochs=EPOCHS)
    assert calls(made["update"][0]) == calls(made["norm"][0]) == 24


class Scale(Callback):
    """Starts 16-mixed with a scale that nothing overflows with."""

    scale = 2.0**4

    def on_train_start(self, trainer: Any, *args: Any) -> None:
        if (scaler := getattr(trainer.precision_plugin, "scaler", None)) is not None:
            scaler._init_scale = self.scale


class Overflow(Scale):
    """Lets a step overflow, and another one, both long after recording."""

    def __init__(self) -> None:
        self.scales: list[float] = []

    def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
        if (number := len(self.scales)) in (20, 40):
            trainer.precision_plugin.scaler.update(2.0**60)
        elif number in (21, 41):
            trainer.precision_plugin.scaler.update(self.scale)

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        self.scales.append(trainer.precision_plugin.scaler.get_scale())


def test_sixteen_bits_overflow_and_go_on() -> None:
    seen: list[Overflow] = []

    def overflow() -> list[Callback]:
        seen.append(Overflow())
        return [seen[-1]]

    _, made = compare(KINDS, 35, callbacks=overflow, **CLIPPED, precision="16-mixed", max_epochs=EPOCHS)
    assert len(seen) == 5
    for item in seen:
        assert item.scales[20] == item.scales[40] == 2.0**59, "a step that overflows halves the scale"
        assert {*item.scales} == {2.0**59, Overflow.scale}
    # The scaler leaves the update out; the norm, by then infinite, comes before.
    assert calls(made["update"][0]) == calls(made["orthogonalization"][0]) == 58
    assert calls(made["norm"][0]) == 60
    assert made["norm"][0].tally.first.keys() <= {"warmup", "stride"}


class Spoil(Scale):
    """Makes a gradient of one step, which replays, NaN."""

    def on_after_backward(self, trainer: Any, module: Any) -> None:
        if trainer.global_step == 7:
            next(x.grad for x in module.parameters() if x.grad is not None).fill_(torch.nan)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        spoilt = any(not torch.isfinite(x).all() for x in module.network.parameters())
        assert spoilt is (trainer.precision != "16-mixed"), "only the scaler leaves such a step out"


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_nan_is_replayed(precision: str) -> None:
    small = partial(detector, warmup_epochs=0.5)
    _, made = compare(KINDS, 2, small, callbacks=lambda: [Spoil()], **CLIPPED, precision=precision, max_epochs=1)
    assert made["update"][0].tally.replayed == (6 if precision == "16-mixed" else 7)
    assert made["norm"][0].tally.replayed == 7


# Changes in the middle


@pytest.mark.parametrize("kind", ["update", "all"])
def test_a_resumed_run_is_equal(kind: str, tmp_path: Any) -> None:
    path, plain = tmp_path / "half.ckpt", tmp_path / "plain.ckpt"
    halves = [
        run(detector, batches, keep=plain, max_epochs=3, **BF16),
        run(detector, batches, KINDS[kind](), keep=path, max_epochs=3, **BF16),
    ]
    assert first_difference(*halves) is None
    items = KINDS[kind]()
    resumed = run(detector, batches, items, ckpt_path=path, max_epochs=EPOCHS, **BF16)
    assert first_difference(run(detector, batches, ckpt_path=plain, max_epochs=EPOCHS, **BF16), resumed) is None
    assert all(item.tally.replayed >= 15 and item.tally.proofs for item in items)


class GoBack(Callback):
    """Loads the optimizer's state of two epochs ago."""

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        (optimizer,) = trainer.optimizers
        if trainer.current_epoch == 1:
            self._kept = copy.deepcopy(optimizer.state_dict())
        if trainer.current_epoch == 3:
            optimizer.load_state_dict(self._kept)


def test_loaded_state_is_recorded_anew() -> None:
    native, made = compare(KINDS, 40, callbacks=lambda: [GoBack()], **BF16, max_epochs=EPOCHS)
    assert first_difference(native, run(detector, batches, **BF16, max_epochs=EPOCHS)) is not None
    for kind, items in made.items():
        expected = ["the optimizer's state was loaded, or its groups changed"] if kind in ("update", "all") else []
        assert items[-1].tally.rearmed == expected, kind
        assert items[-1].tally.proofs == 1 + len(expected), kind


class Unfreeze(Callback):
    """Trains the backbone, which the optimizer has from the start, from the third epoch on."""

    def on_train_start(self, trainer: Any, module: Any) -> None:
        module.network.backbone.requires_grad_(False)

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        if trainer.current_epoch == 2:
            module.network.backbone.requires_grad_(True)


def test_what_is_unfrozen_in_the_middle_is_recorded_too() -> None:
    _, made = compare(KINDS, 35, callbacks=lambda: [Unfreeze()], **BF16, max_epochs=EPOCHS)
    for kind in ("update", "orthogonalization", "norm"):
        assert made[kind][0].tally.proofs == 2, "one recording without the backbone, one with it"


class Finetune(BaseFinetuning):
    """Trains the backbone, which the optimizer gets then, in a group of its own, from the third epoch on."""

    def freeze_before_training(self, module: Any) -> None:
        self.freeze(module.network.backbone)

    def finetune_function(self, module: Any, epoch: int, optimizer: Optimizer) -> None:
        if epoch == 2:
            self.unfreeze_and_add_param_group(module.network.backbone, optimizer)
            # The schedule needs to know of it too.
            schedule = module.lr_schedulers()
            schedule.base_lrs.append(schedule.base_lrs[0] / 2)
            schedule.lr_lambdas.append(schedule.lr_lambdas[0])


def test_a_group_that_is_added_in_the_middle_is_recorded_too() -> None:
    _, made = compare(KINDS, 35, callbacks=lambda: [Finetune()], **BF16, max_epochs=EPOCHS)
    (update,), (norm,) = made["update"], made["norm"]
    assert calls(update) == 20 + 2 * 40
    assert (calls(norm), norm.tally.proofs, norm.tally.rearmed) == (60, 2, [])
    assert update.tally.replayed >= 70
    assert (update.tally.proofs, len(update.tally.rearmed)) == (3, 1)


# Modules and optimizers of strangers


class Fused(Net):
    """With an optimizer that undoes the scale of 16-mixed by itself."""

    def configure_optimizers(self) -> Any:
        return AdamW(self.parameters(), 1e-2, weight_decay=0.3, fused=True)


PLAIN: dict[str, Any] = {**GPU, "gradient_clip_val": 0.05, "max_epochs": 2}


@pytest.mark.parametrize(
    ("module", "precision"),
    [(Net, "bf16-mixed"), (Net, "16-mixed"), (Net, "32-true"), (Fused, "32-true")],
)
def test_the_norm_of_any_module_is_equal(module: type[Net], precision: str) -> None:
    native, made = compare(NORM, 13, module, pictures, **PLAIN, precision=precision)
    assert calls(made["norm"][0]) == 16
    free = run(module, pictures, **{**PLAIN, "gradient_clip_val": None}, precision=precision)
    assert first_difference(native, free) is not None, "clipping should matter here"


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_lightning_still_refuses_to_clip_for_fused_optimizers(precision: str) -> None:
    for items in ([], [GradientNormReplay()]):
        with pytest.raises(RuntimeError, match="does not allow for gradient clipping"):
            run(Fused, pictures, items, **PLAIN, precision=precision)
    assert calls(items[0]) == 0


class Limit(Callback):
    """Clips more from the second epoch on."""

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        if trainer.current_epoch == 1:
            trainer.gradient_clip_val = 0.01


def test_a_limit_that_changes_is_honoured_at_once() -> None:
    native, made = compare(NORM, 13, Net, pictures, callbacks=lambda: [Limit()], **PLAIN, precision="bf16-mixed")
    assert made["norm"][0].state is State.RECORDED
    assert first_difference(native, run(Net, pictures, **PLAIN, precision="bf16-mixed")) is not None


# Matrices of all shapes


class Shapes(LightningModule):
    """Convolutions in both memory formats; tall, wide and square matrices, two alike; vectors; and dropout."""

    def __init__(self, optimizer: Callable[..., Optimizer] = MuSGD, grouped: bool = False) -> None:
        super().__init__()
        self.grouped = grouped
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Conv2d(8, 6, 3).to(memory_format=torch.channels_last), nn.Flatten(),  # type: ignore[call-overload]
            nn.Linear(96, 12), nn.SiLU(), nn.Linear(12, 40), nn.SiLU(), nn.Dropout(0.2), nn.Linear(40, 12),
            nn.Linear(12, 12), nn.SiLU(), nn.Linear(12, 12), nn.Linear(12, 3),
        )  # fmt: skip
        self.optimizer = optimizer

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        groups = [{"params": [*part.parameters()]} for part in (self.layers[:5], self.layers[5:])]
        optimizer = self.optimizer(groups if self.grouped else self.parameters(), lr=0.02)
        return [optimizer], [{"scheduler": StepLR(optimizer, 2, 0.9), "interval": "step"}]


SHORT: dict[str, Any] = {**GPU, "max_epochs": 2}


def test_matrices_of_all_shapes_are_equal() -> None:
    _, made = compare(UPDATES, 13, Shapes, pictures, **SHORT)
    assert [calls(items[0]) for items in made.values()] == [16, 16]


class UnfreezeFirst(Callback):
    """Trains one layer of the first group from the second epoch on."""

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        module.layers[0].requires_grad_(trainer.current_epoch > 0)


def test_groups_that_are_recorded_in_another_order_than_they_run_are_equal() -> None:
    """They share a pool: the first group's second recording may lie in memory that the second group's one works in."""
    settings = {**GPU, "max_epochs": 4}
    _, made = compare(UPDATES, 40, partial(Shapes, grouped=True), pictures, lambda: [UnfreezeFirst()], **settings)
    assert made["update"][0].tally.proofs == 3


def test_without_muon_there_is_nothing_to_orthogonalise() -> None:
    without = partial(Shapes, partial(MuSGD, w_muon=0.0))
    compare({"update": UPDATES["update"]}, 13, without, pictures, **SHORT)
    (item,) = UPDATES["orthogonalization"]()
    with pytest.raises(AccelerationError, match="never called"):
        run(without, pictures, [item], **SHORT)
    assert (calls(item), item.tally.reserved) == (0, 0)


def test_replays_launch_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    launched, replay = [0], torch.cuda.CUDAGraph.replay

    def counting(graph: torch.cuda.CUDAGraph) -> None:
        launched[0] += 1
        replay(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", counting)
    for kind in (UpdateReplay, OrthogonalizationReplay, GradientNormReplay):
        launched[0] = 0
        item = kind(strict=True, proof="off")
        run(Shapes, pictures, [item], **SHORT, gradient_clip_val=0.1)
        assert launched[0] == item.tally.replayed == 14


class OtherStream(Callback):
    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        torch.cuda.synchronize()
        torch.cuda.set_stream(torch.cuda.Stream() if batch_idx == 5 else torch.cuda.default_stream())


@pytest.mark.parametrize("kind", [UpdateReplay, OrthogonalizationReplay, GradientNormReplay])
def test_another_stream_is_native(kind: type[Replay]) -> None:
    item = kind(strict=True)
    assert_parity(Shapes, pictures, [item], callbacks=lambda: [OtherStream()], **SHORT, gradient_clip_val=0.1)
    assert item.tally.native == {"warmup": 3, "stream": 2}
    assert item.tally.replayed == 11


# Faults while recording


def capturing() -> bool:
    return torch.cuda.is_current_stream_capturing()


def read_on_host(stack: Tensor) -> None:
    stack.sum().item()


def explode(stack: Tensor) -> None:
    if capturing():
        raise ValueError("no recordings, please")


def devour(stack: Tensor) -> None:
    if capturing():
        torch.empty(1 << 40, dtype=torch.uint8, device=stack.device)


FAULTS = [read_on_host, explode, devour]


class Faulty(MuSGD):
    """Draws random numbers as it orthogonalises, and fails where it is recorded."""

    def __init__(self, *args: Any, fault: Callable[[Tensor], None], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.fault = fault

    @seam("update.prepare.orthogonalize")
    def orthogonalize(self, stacks: Sequence[Tensor], steps: int) -> list[Tensor]:
        turned = [newton_schulz(stack, steps) for stack in stacks]
        torch.rand(3, device=stacks[0].device)
        self.fault(stacks[0])
        return turned


def snapshot(optimizer: Any) -> dict[str, Any]:
    """What a recording may not change."""
    params = [x for group in optimizer.param_groups for x in group["params"]]
    gradients, momenta = [x.grad for x in params], [optimizer.state[x]["momentum"] for x in params]
    return {
        **digest([params, gradients, momenta, torch.cuda.get_rng_state()]),
        "gradients": [*map(id, gradients)],
        "momenta": [*map(id, momenta)],
        "stream": torch.cuda.current_stream(),
        "collector": gc.isenabled(),
    }


def watched(kind: Any) -> tuple[Replay, list[dict[str, Any]]]:
    """Return an acceleration, and the state before the call in which it retires and when it does."""
    seen: list[dict[str, Any]] = []

    class Watched(kind):
        def call(self, *args: Any) -> Any:
            seen[:] = [snapshot(self._taken)]
            return super().call(*args)

        def retired(self, *args: Any) -> None:
            seen.append(snapshot(self._taken))
            super().retired(*args)

    return Watched(), seen


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", [UpdateReplay, OrthogonalizationReplay])
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_capture_that_fails_changes_nothing(kind: type[Replay], fault: Callable[[Tensor], None]) -> None:
    item, seen = watched(kind)
    module = partial(Shapes, partial(Faulty, fault=fault))
    assert_parity(module, pictures, [item], must_replay=False, **SHORT)
    assert item.state is State.RETIRED
    assert "capture_failed" in item.verdict
    before, after = seen
    assert before == after
    assert before["collector"]
    assert gc.isenabled()
    assert not capturing()
    # And the device still records.
    compare({"again": lambda: [kind(strict=True)]}, 13, Shapes, pictures, **SHORT)


@pytest.mark.parametrize("kind", [UpdateReplay, OrthogonalizationReplay])
def test_a_capture_that_fails_may_stop_the_run(kind: type[Replay]) -> None:
    with pytest.raises(AccelerationError, match="capture_failed") as raised:
        run(partial(Shapes, partial(Faulty, fault=explode)), pictures, [kind(on_failure="raise")], **SHORT)
    assert "no recordings, please" in str(raised.value)
    assert raised.value.__cause__ is not None


# Memory


MIB = 1 << 20
#: MiB that the allocator takes for tensors of more than one: a small one that stays keeps it all.
SEGMENT = 22


def memory() -> tuple[int, int]:
    """MiB that tensors take, and that the process holds on the device, when it holds only what it needs."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated() // MIB, torch.cuda.memory_reserved() // MIB


def memory_around_a_fit(kind: str) -> tuple[tuple[int, int], tuple[int, int]]:
    run(detector, batches, max_epochs=1, **BF16)
    before, items = memory(), KINDS[kind]()
    run(detector, batches, items, max_epochs=1, **BF16)
    assert all(item.tally.replayed and item.tally.reserved for item in items)
    return before, memory()


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_a_fit_gives_the_memory_back(kind: str) -> None:
    # In a process of its own: what other tests left lies in between, and keeps segments of which little is used.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        before, after = pool.submit(memory_around_a_fit, kind).result()
    assert after[0] <= before[0] + 1
    assert after[1] <= before[1] + SEGMENT


def move_parameter(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    param = trainer.optimizers[0].param_groups[0]["params"][0]
    param.data = param.data.clone()


def replace_clipping(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *args, **kwargs: clip(*args, **kwargs))


@pytest.mark.parametrize(("kind", "spoil"), [(UpdateReplay, move_parameter), (GradientNormReplay, replace_clipping)])
def test_retiring_gives_the_memory_back(kind: type[Replay], spoil: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[int, tuple[int, int]] = {}

    class Hook(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx in (1, 6, 9):
                trainer.optimizers[0].zero_grad()
                seen[batch_idx] = memory()
            if batch_idx == 7:
                spoil(trainer, monkeypatch)

    item = kind()
    run(detector, batches, [Hook(), item], max_epochs=1, **BF16)
    assert item.state is State.RETIRED
    assert (item.tally.replayed, item.tally.proofs) == (4, 1)
    assert seen[6][0] > seen[1][0] + 6, "a recording has a copy of all gradients"
    assert seen[9][0] <= seen[1][0] + 1
    assert seen[9][1] <= seen[1][1] + SEGMENT


# Controls: each breaks one thing, and the comparison must see it.


class BakedRate(OptimizerReplay):
    """Records the whole update, with the learning rate as the number that it was then."""

    claims = ("update",)

    def call(self, routine: Routine, native: Any, *args: Any) -> Any:
        optimizer: Any = self._taken
        (group,), (scalars,) = optimizer.param_groups, optimizer._scalars
        params, gradients = group["params"], [x.grad for x in group["params"]]

        def whole() -> list[Tensor]:
            native()
            return []

        def frozen(copies: Sequence[Tensor]) -> list[Tensor]:
            try:
                for param, gradient in zip(params, copies, strict=True):
                    param.grad = gradient
                updates = optimizer.prepare(params, group, scalars.weight_decay)
                optimizer.apply(params, updates, torch.full((), group["lr"], device=routine.device))
            finally:
                for param, gradient in zip(params, gradients, strict=True):
                    param.grad = gradient
            return []

        def describe() -> Job:
            state = [*params, *(optimizer.state[x]["momentum"] for x in params)]
            return Job(frozen, gradients, routine.device, fixed=[*state, scalars.weight_decay], written=state)

        return routine(whole, describe)


def unequal(
    make: Callable[..., Replay], module: Callable[[], LightningModule], data: Any = pictures, **settings: Any
) -> None:
    """Without proof the fit is another one; with proof the acceleration retires, and it is not."""
    unproven = make(proof="off")
    with pytest.raises(AssertionError, match="differs from the native fit"):
        assert_parity(module, data, [unproven], **settings)
    assert unproven.tally.replayed
    item = make()
    assert_parity(module, data, [item], must_replay=False, **settings)
    assert item.state is State.RETIRED
    assert "(unlike)" in item.verdict
    assert (item.tally.replayed, item.tally.proofs) == (0, 0)


def test_a_frozen_learning_rate_is_seen() -> None:
    settings = {**BF16, "max_epochs": 2}
    # Where the rate is the same at every step, freezing it is right: what is seen below is the rate alone.
    constant = partial(detector, warmup_epochs=0.0, lrf=1.0)
    compare({"baked": lambda: [BakedRate(strict=True)]}, 13, constant, **settings)
    unequal(BakedRate, partial(detector, warmup_epochs=1.0), batches, **settings)


def of_last_replay(recording: SingleRecording, job: Job) -> Job:
    slots = recording._inputs.slots
    return Job(job.run, slots, slots[0].device)


@pytest.mark.parametrize("kind", [UpdateReplay, OrthogonalizationReplay, GradientNormReplay])
def test_gradients_that_are_not_copied_are_seen(kind: type[Replay], monkeypatch: pytest.MonkeyPatch) -> None:
    replay = SingleRecording.__call__

    def stale(self: SingleRecording, job: Job) -> list[Tensor]:
        return replay(self, of_last_replay(self, job))

    monkeypatch.setattr(SingleRecording, "__call__", stale)
    unequal(kind, Shapes, **SHORT, gradient_clip_val=0.1)


@pytest.mark.parametrize("kind", [UpdateReplay, OrthogonalizationReplay, GradientNormReplay])
def test_one_step_with_old_gradients_is_seen(kind: type[Replay], monkeypatch: pytest.MonkeyPatch) -> None:
    replay, count = SingleRecording.__call__, [0]

    def skipping(self: SingleRecording, job: Job) -> list[Tensor]:
        count[0] += 1
        return replay(self, of_last_replay(self, job) if count[0] == 5 else job)

    monkeypatch.setattr(SingleRecording, "__call__", skipping)
    with pytest.raises(AssertionError, match="differs from the native fit"):
        assert_parity(Shapes, pictures, [kind(strict=True)], **SHORT, gradient_clip_val=0.1)
    assert count[0] > 5
