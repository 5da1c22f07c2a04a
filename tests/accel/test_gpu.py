"""On a GPU: whole checkpoints, accelerated and native, are equal in bits; and each way to get it wrong is seen."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn

from lucid_accel import LossReplay, NetworkReplay, Replay
from lucid_accel.graphs import region
from lucid_accel.graphs.cuda import CudaGraphEngine
from lucid_accel.graphs.engine import use_engine
from lucid_accel.graphs.recording import Recording
from lucid_accel.testing import assert_parity, first_difference, run, tiny_batches, tiny_detector
from lucid_core.types import Batch

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*is retired at.*")]

GPU: dict[str, Any] = {"accelerator": "gpu", "devices": 1, "gradient_clip_val": 10.0}
KINDS: dict[str, Callable[..., list[Replay]]] = {
    "network": lambda **options: [NetworkReplay(strict=True, **options)],
    "loss": lambda **options: [LossReplay(strict=True, **options)],
    "both": lambda **options: [LossReplay(strict=True, **options), NetworkReplay(strict=True, **options)],
}
OBJECTS = (2, 5, 0, 1, 3, 9, 33, 4, 0, 2)


def batches(count: int = 10) -> list[Batch]:
    """Ten batches of 320 pixels, over and over: growing, shrinking and empty targets, and a smaller one at the end."""
    return tiny_batches(count, batch=4, size=320, objects=OBJECTS)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "32-true"])
def test_forty_steps_are_equal(precision: str, accumulate: int) -> None:
    settings = {**GPU, "precision": precision, "accumulate_grad_batches": accumulate, "max_epochs": 4}
    native = run(tiny_detector, batches, **settings)
    assert first_difference(native, run(tiny_detector, batches, **settings)) is None
    for kind, make in KINDS.items():
        accelerations = make()
        accelerated = run(tiny_detector, batches, accelerations, **settings)
        assert first_difference(native, accelerated) is None, kind
        assert all(item.tally.replayed >= 25 for item in accelerations), kind


def test_two_hundred_steps_are_equal_and_proven_again() -> None:
    accelerations = KINDS["both"]()
    settings = {**GPU, "precision": "bf16-mixed", "max_epochs": 20}
    native = run(tiny_detector, batches, **settings)
    assert first_difference(native, run(tiny_detector, batches, accelerations, **settings)) is None
    # The objective's room grew from 8 to 64; and the smaller batch came often enough to be recorded too.
    assert [item.tally.proofs for item in accelerations] == [4, 3]


def test_sixteen_bits_overflow_and_recover() -> None:
    class Scale(Callback):
        def on_train_start(self, trainer: Any, *args: Any) -> None:
            trainer.precision_plugin.scaler._init_scale = 2.0**40

    scales = []

    class Watch(Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            scales.append(trainer.precision_plugin.scaler.get_scale())

    assert_parity(
        tiny_detector,
        batches,
        KINDS["both"](),
        callbacks=lambda: [Scale(), Watch()],
        precision="16-mixed",
        max_epochs=5,
        **GPU,
    )
    assert max(scales) > 2.0**30 > min(scales), "the scale should fall during replays"


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_a_batch_of_nan_is_replayed(precision: str) -> None:
    def with_nan() -> list[Batch]:
        made = batches()
        made[8].targets.boxes[:] = torch.nan
        made[8].targets.valid[:] = True
        return made

    accelerations = KINDS["both"]()
    assert_parity(tiny_detector, with_nan, accelerations, precision=precision, max_epochs=1, **GPU)
    assert all(item.tally.replayed >= 2 for item in accelerations)


def test_a_resumed_run_is_equal(tmp_path: Path) -> None:
    path = tmp_path / "half.ckpt"
    settings = {**GPU, "precision": "bf16-mixed"}
    run(tiny_detector, batches, KINDS["both"](), keep=path, max_epochs=2, **settings)
    resumed = run(tiny_detector, batches, KINDS["both"](), ckpt_path=path, max_epochs=4, **settings)
    plain = run(tiny_detector, batches, keep=tmp_path / "plain.ckpt", max_epochs=2, **settings)
    assert plain
    again = run(tiny_detector, batches, ckpt_path=tmp_path / "plain.ckpt", max_epochs=4, **settings)
    assert first_difference(again, resumed) is None


def test_memory_that_nobody_owns_may_hold_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything a recording reads is written by this very step."""
    forward, backward = Recording.run_forward, Recording.run_backward

    def poison(tensors: Sequence[Tensor | None]) -> None:
        for x in tensors:
            if x is not None:
                x.detach().fill_(torch.nan if x.is_floating_point() else 1)

    def poisoned_forward(self: Recording, inputs: Sequence[Tensor]) -> list[Tensor]:
        poison([*self._inputs, *self._outputs._room.values(), *self._gradients._room.values()])
        junk = [torch.full((1 << 20,), torch.nan, device="cuda") for _ in range(8)]
        del junk
        return forward(self, inputs)

    def poisoned_backward(self: Recording, cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        poison(self._cotangents)
        return backward(self, cotangents)

    monkeypatch.setattr(Recording, "run_forward", poisoned_forward)
    monkeypatch.setattr(Recording, "run_backward", poisoned_backward)
    assert_parity(tiny_detector, batches, KINDS["both"](), precision="bf16-mixed", max_epochs=2, **GPU)


def test_recordings_of_two_batch_sizes_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """They share a pool, and must not read each other's memory."""
    monkeypatch.setattr(region, "LATER_WARMUP", 3)

    def alternating() -> list[Batch]:
        pairs = zip(tiny_batches(8, 4, 320, OBJECTS), tiny_batches(8, 6, 256, OBJECTS), strict=True)
        return [batch for pair in pairs for batch in pair]

    accelerations = KINDS["both"]()
    assert_parity(tiny_detector, alternating, accelerations, precision="bf16-mixed", max_epochs=2, **GPU)
    assert all(item.tally.replayed > 10 for item in accelerations)


# Modules that know nothing of lucid


class Classifier(LightningModule):
    """A body with an extra layer, dropout, and a branch whose result nobody uses."""

    def __init__(self, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.body = Body(layer or nn.Identity())

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        used, _ = self.body(batch[0])
        return nn.functional.cross_entropy(used, batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-2, weight_decay=0.3)


class Body(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.BatchNorm2d(16), nn.ReLU(), layer, nn.Dropout(0.3))
        self.used, self.unused = nn.Linear(16, 5), nn.Linear(16, 5)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.stem(images).mean((2, 3))
        return self.used(features), self.unused(features)


def pictures() -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(8, 3, 32, 32), torch.randint(0, 5, (8,))) for _ in range(12)]


def body_replay(**options: Any) -> NetworkReplay:
    return NetworkReplay(module="body", **options)


@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
def test_a_branch_without_gradient_and_dropout_are_equal(precision: str) -> None:
    item = body_replay(strict=True)
    outcome = assert_parity(Classifier, pictures, [item], precision=precision, accelerator="gpu", devices=1)
    assert item.tally.replayed == 20
    assert "/optimizer_states/0/state/5/exp_avg" in outcome
    assert not [
        place for place in outcome if place.startswith(("/optimizer_states/0/state/6", "/optimizer_states/0/state/7"))
    ]


def test_zeros_in_place_of_absent_gradients_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    backward = Recording.run_backward

    def filled(self: Recording, cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        gradients = backward(self, cotangents)
        return [torch.zeros_like(w) if g is None else g for g, w in zip(gradients, self._wanted, strict=True)]

    monkeypatch.setattr(Recording, "run_backward", filled)
    with pytest.raises(AssertionError, match="differs from the native fit"):
        assert_parity(Classifier, pictures, [body_replay(proof="off")], accelerator="gpu", devices=1)


class Cached(nn.Module):
    """Reads a tensor that only a cache outside of the module holds."""

    cache: ClassVar[dict[str, Tensor]] = {}

    def forward(self, x: Tensor) -> Tensor:
        if "scale" not in self.cache:
            self.cache["scale"] = torch.full((1, 16, 1, 1), 0.5, device=x.device)
        return x * self.cache["scale"]


def test_what_a_recording_reads_lives_as_long_as_it_does() -> None:
    class Evict(Callback):
        """Throws the cached tensor away, and takes its memory."""

        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 8:
                Cached.cache.clear()
                self.taken = [torch.full((1, 16, 1, 1), torch.nan, device="cuda") for _ in range(64)]

    Cached.cache.clear()
    item = body_replay(strict=True)
    make, settings = (lambda: Classifier(Cached())), {"accelerator": "gpu", "devices": 1}
    native = run(make, pictures, [Evict()], **settings)
    Cached.cache.clear()
    assert first_difference(native, run(make, pictures, [Evict(), item], **settings)) is None
    assert item.tally.replayed == 20


class FromHost(nn.Module):
    """Brings numbers from the host in every call, without waiting."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.tensor([0.5] * 16).pin_memory().to(x.device, non_blocking=True).view(1, 16, 1, 1)


def test_numbers_from_the_host_are_not_recorded() -> None:
    item = body_replay()
    assert_parity(lambda: Classifier(FromHost()), pictures, [item], must_replay=False, accelerator="gpu", devices=1)
    assert "capture_failed" in item.verdict


class Twice(LightningModule):
    """Uses a parameter of the part natively too, before the part, and keeps a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Body(nn.Identity())
        self.last: Tensor | None = None

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        penalty = self.body.used.weight.square().sum()
        self.last = self.body(batch[0])[0]
        return nn.functional.cross_entropy(self.last, batch[1]) + 0.1 * penalty

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-2, momentum=0.9)


def test_a_parameter_that_is_used_natively_too_and_a_graph_that_is_kept_are_equal() -> None:
    item = body_replay()
    assert_parity(Twice, pictures, [item], must_replay=False, accelerator="gpu", devices=1)


# Faults


class HostRead(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * float(x.sum().item() > 0)


class Explode(nn.Module):
    """Fails inside a capture only."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            raise ValueError("no recordings, please")
        return x


class Hungry(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            torch.empty(1 << 40, dtype=torch.uint8, device=x.device)
        return x


class Neighbour(nn.Module):
    """Another thread uses the device while this one records."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            thread = threading.Thread(target=self.work)
            thread.start()
            thread.join()
        return x

    @staticmethod
    def work() -> None:
        host = torch.empty(1 << 22).pin_memory()
        host.to("cuda", non_blocking=True)
        torch.cuda.current_stream().synchronize()


@pytest.mark.parametrize("layer", [HostRead, Explode, Hungry])
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_capture_that_fails_changes_nothing(layer: type[nn.Module]) -> None:
    item = body_replay()
    enabled = gc.isenabled()
    assert_parity(lambda: Classifier(layer()), pictures, [item], must_replay=False, accelerator="gpu", devices=1)
    assert item.state == "retired"
    assert "capture_failed" in item.verdict
    assert gc.isenabled() is enabled
    assert not torch.cuda.is_current_stream_capturing()
    # And the device still records.
    again = body_replay(strict=True)
    assert_parity(Classifier, pictures, [again], accelerator="gpu", devices=1)


def test_a_capture_that_fails_may_stop_the_run() -> None:
    with pytest.raises(RuntimeError, match=r"NetworkReplay.* is retired") as raised:
        run(lambda: Classifier(HostRead()), pictures, [body_replay(on_failure="raise")], accelerator="gpu", devices=1)
    assert raised.value.__cause__ is not None
    run(Classifier, pictures, [body_replay(strict=True)], accelerator="gpu", devices=1)


def test_another_thread_may_use_the_device_meanwhile() -> None:
    item = body_replay(strict=True)
    assert_parity(lambda: Classifier(Neighbour()), pictures, [item], accelerator="gpu", devices=1)


def test_garbage_that_holds_a_graph_is_collected_before() -> None:
    class Cycle:
        pass

    def rubbish() -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.zeros(3, device="cuda")
        cycle = Cycle()
        cycle.__dict__.update(me=cycle, graph=graph)

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        rubbish()
        assert_parity(Classifier, pictures, [body_replay(strict=True)], accelerator="gpu", devices=1)
    finally:
        gc.set_threshold(*threshold)
    assert gc.isenabled()


def test_another_stream_is_native() -> None:
    class OtherStream(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            torch.cuda.synchronize()
            torch.cuda.set_stream(torch.cuda.Stream() if batch_idx == 7 else torch.cuda.default_stream())

    item = body_replay(strict=True)
    assert_parity(Classifier, pictures, [item], callbacks=lambda: [OtherStream()], accelerator="gpu", devices=1)
    assert item.tally.native["stream"] == 2


def test_retiring_gives_the_memory_back() -> None:
    reserved: list[int] = []

    class Hook(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx in (3, 8):
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
                reserved.append(torch.cuda.memory_reserved())
            if batch_idx == 7:
                module.network.backbone.register_forward_hook(lambda *a: None)

    items = KINDS["network"]()
    for item in items:
        item.strict = False
    run(tiny_detector, batches, [*items, Hook()], max_epochs=1, precision="bf16-mixed", **GPU)
    assert items[0].state == "retired"
    assert items[0].tally.replayed == 3
    assert reserved[1] <= reserved[0] + (8 << 20)


# Controls: each breaks one thing, and the comparison must see it.


@pytest.fixture
def unequal() -> Iterator[Callable[..., None]]:
    def check(kind: str, **options: Any) -> None:
        with pytest.raises(AssertionError, match="differs from the native fit"):
            assert_parity(tiny_detector, batches, KINDS[kind](**options), max_epochs=2, precision="bf16-mixed", **GPU)

    yield check


def test_rows_that_are_not_cleared_are_seen(unequal: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Recording.run_forward

    def stale(self: Recording, inputs: Sequence[Tensor]) -> list[Tensor]:
        kept = [
            torch.cat((x, own.detach()[:, x.shape[1] :]), 1) if own.shape != x.shape else x
            for own, x in zip(self._inputs, inputs, strict=True)
        ]
        return forward(self, kept)

    monkeypatch.setattr(Recording, "run_forward", stale)
    unequal("loss", proof="off")


def test_inputs_that_are_not_copied_are_seen(unequal: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    forward, calls = Recording.run_forward, [0]

    def skipping(self: Recording, inputs: Sequence[Tensor]) -> list[Tensor]:
        calls[0] += 1
        return forward(self, [x.detach() for x in self._inputs] if calls[0] == 5 else inputs)

    monkeypatch.setattr(Recording, "run_forward", skipping)
    unequal("network", proof="off")


def test_a_shared_pool_is_seen(unequal: Callable[..., None]) -> None:
    engine = CudaGraphEngine(torch.device("cuda", 0))
    with use_engine(lambda device: engine):
        unequal("both", proof="off")


def test_replays_launch_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = count_launches(monkeypatch)
    items = KINDS["both"](proof="off")
    run(tiny_detector, batches, items, max_epochs=1, precision="bf16-mixed", **GPU)
    assert launched() == 2 * sum(item.tally.replayed for item in items)


def test_an_eager_pretence_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = count_launches(monkeypatch)

    def pretend(self: Recording, inputs: Sequence[Tensor]) -> Any:
        return self._function(inputs)

    monkeypatch.setattr(Recording, "__call__", pretend)
    items = KINDS["both"](proof="off")
    run(tiny_detector, batches, items, max_epochs=1, precision="bf16-mixed", **GPU)
    assert all(item.tally.replayed for item in items)
    assert launched() == 0


def count_launches(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    count, replay = [0], torch.cuda.CUDAGraph.replay

    def counting(self: torch.cuda.CUDAGraph) -> None:
        count[0] += 1
        replay(self)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", counting)
    return lambda: count[0]
