"""GradientNormReplay within Lightning: gradients are clipped to the byte as natively, whoever's module it is."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from lucid_accel import AccelerationError, GradientNormReplay, LossReplay, NetworkReplay, Replay, UpdateReplay
from lucid_accel.acceleration import State
from lucid_accel.graphs import single
from lucid_accel.graphs.engine import CaptureError
from lucid_accel.graphs.packed import Packed
from lucid_accel.graphs.tape import TapeEngine
from lucid_accel.replay import norm
from lucid_accel.testing import assert_parity, first_difference, run, tiny_batches, tiny_detector
from tests.accel.conftest import Act, Net, batches, fit, trainer_for, warned
from tests.accel.test_life import assert_free, footprint, restored_interrupt

#: Below the norm of every batch, so that it acts at each step.
CLIP: dict[str, Any] = {"gradient_clip_val": 0.05}
METHODS = ("clip_gradients", "clip_grad_by_norm", "main_params")

Change = Callable[[Trainer, LightningModule], Any]


def counted(replay: Replay) -> dict[str, int]:
    return {"replayed": replay.tally.replayed, **{str(reason): n for reason, n in replay.tally.native.items()}}


def at(batch: int, do: Change, hook: str = "on_train_batch_start") -> Callable[[], list[Callback]]:
    return lambda: [Act(hook, batch, do)]


def accelerated(module: Callable[[], LightningModule] = Net, **settings: Any) -> GradientNormReplay:
    """Show that the bytes are those of the native run, with something replayed and nothing said."""
    replay = GradientNormReplay(strict=True)
    assert_parity(module, batches, [replay], **{**CLIP, **settings})
    return replay


def warned_once(module: Callable[[], LightningModule] = Net, **settings: Any) -> tuple[GradientNormReplay, str]:
    """Show that the bytes are those of the native run, with one warning; return it."""
    replay = GradientNormReplay()
    with warned() as texts:
        assert_parity(module, batches, [replay], must_replay=False, **{**CLIP, **settings})
    assert len(texts) == 1, texts
    return replay, texts[0]


class Adam(Net):
    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 0.01)


class Newton(Net):
    """Calls its closure, and so clips, several times a step."""

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), 0.1, max_iter=3)


class Fused(Net):
    """Undoes the scale of 16-mixed in its own step."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.05, momentum=0.9, fused=True)


# The bytes


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"precision": "bf16-mixed"},
        {"gradient_clip_algorithm": "norm"},
        {"gradient_clip_val": 1e-12},
        {"gradient_clip_val": 1e12},
        {"gradient_clip_val": float("inf")},
        {"gradient_clip_val": 1},
        {"max_epochs": 4, "max_steps": 11},
    ],
    ids=str,
)
@pytest.mark.parametrize("module", [Net, Adam])
def test_the_bytes_of_a_stranger_are_those_of_the_native_run(
    tape: None, module: type[Net], settings: dict[str, Any]
) -> None:
    steps = settings.get("max_steps", 16)
    replay = accelerated(module, **settings)
    assert counted(replay) == {"replayed": steps - 3, "warmup": 3}
    assert replay.tally.proofs == 1


def test_the_limit_acts_at_all() -> None:
    """Else no other test here would show anything."""
    clipped, free = run(Net, batches, **CLIP), run(Net, batches)
    assert first_difference(clipped, free) == "/state_dict/body.0.weight"


def test_an_optimizer_that_clips_several_times_a_step_is_replayed_each_time(tape: None) -> None:
    replay = accelerated(Newton)
    assert replay.tally.replayed > replay.batches


def test_accumulated_gradients_are_clipped_when_they_are_complete(tape: None) -> None:
    assert counted(accelerated(accumulate_grad_batches=3)) == {"replayed": 3, "warmup": 3}


def test_without_proof_it_replays_from_the_third_step_on(tape: None) -> None:
    replay = GradientNormReplay(proof="off", strict=True)
    assert_parity(Net, batches, [replay], **CLIP)
    assert counted(replay) == {"replayed": 14, "warmup": 2}


def test_it_is_proven_once_more_after_a_hundred_replays(tape: None) -> None:
    replay = accelerated(max_epochs=15)
    assert counted(replay) == {"replayed": 116, "warmup": 4}
    assert replay.tally.proofs == 2


def test_a_detector_is_clipped_alike(tape: None) -> None:
    replay = GradientNormReplay(strict=True)
    assert_parity(tiny_detector, tiny_batches, [replay], max_epochs=1, **CLIP)
    # Of one image, gradients have other strides.
    assert counted(replay) == {"replayed": 2, "warmup": 3, "stride": 1}


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
def test_four_replays_together_change_no_byte(tape: None, accumulate: int) -> None:
    kinds = (NetworkReplay, LossReplay, GradientNormReplay, UpdateReplay)
    replays: list[Replay] = [kind(strict=True) for kind in kinds]
    assert_parity(
        tiny_detector, lambda: tiny_batches(12, objects=(2, 1)), replays,
        max_epochs=1, accumulate_grad_batches=accumulate, **CLIP,
    )  # fmt: skip
    assert all(item.tally.proofs for item in replays)


def pieces(monkeypatch: pytest.MonkeyPatch, factor: float) -> list[bool]:
    """Note whether inputs are copied as one piece; what is copied is ``factor`` times it."""
    find, found = Packed._piece, list[bool]()

    def noted(self: Packed, tensors: Any, addresses: Any) -> Tensor | None:
        whole = find(self, tensors, addresses)
        found.append(whole is not None)
        return whole if whole is None or factor == 1 else whole * factor

    monkeypatch.setattr(Packed, "_piece", noted)
    return found


def test_gradients_of_a_replay_are_copied_as_one_piece(tape: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = pieces(monkeypatch, 1)
    replays = [kind(strict=True) for kind in (NetworkReplay, GradientNormReplay, UpdateReplay)]
    assert_parity(tiny_detector, lambda: tiny_batches(14, objects=(2, 1)), replays, max_epochs=1, **CLIP)
    # Of the steps whose network was replayed, all but the one that proves it.
    assert sum(found) >= 2 * (replays[0].tally.replayed - 1) > 0


def test_a_piece_of_other_values_is_seen(tape: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = pieces(monkeypatch, 2)
    replays = [NetworkReplay(strict=True), UpdateReplay(strict=True, proof="off")]
    with pytest.raises(AssertionError, match="differs from the native fit"):
        assert_parity(tiny_detector, lambda: tiny_batches(14, objects=(2, 1)), replays, max_epochs=1, **CLIP)
    assert any(found)


def test_it_is_independent_of_a_recorded_part(tape: None) -> None:
    replays = [NetworkReplay(module="body", strict=True), GradientNormReplay(strict=True)]
    assert_parity(Net, batches, replays, **CLIP)
    assert [item.tally.replayed for item in replays] == [10, 13]


# What a proof and a parity would see


def stale(self: single.SingleRecording, job: Any) -> list[Tensor]:
    """A replay that copies nothing in."""
    assert self._graph is not None
    self._graph.replay()
    return list(self._lent)


def test_a_replay_that_copies_nothing_in_is_caught_by_its_proof(tape: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single.SingleRecording, "__call__", stale)
    replay, text = warned_once()
    assert "(unlike)" in text
    assert "result 0 of a replay has other bytes than that of the native run" in text
    assert counted(replay) == {"replayed": 0, "warmup": 3, "retired": 13}


def test_unproven_it_is_caught_by_the_checkpoint(tape: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single.SingleRecording, "__call__", stale)
    with pytest.raises(AssertionError, match="GradientNormReplay: differs from the native fit at /state_dict"):
        assert_parity(Net, batches, [GradientNormReplay(proof="off")], **CLIP)


def test_the_norm_of_a_replay_is_lent_to_the_scaling(tape: None, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Tensor] = []

    def keep(params: Any, limit: Any, total: Tensor) -> None:
        held.append(total)
        native(params, limit, total)

    native = norm.clip_grads_with_norm_
    monkeypatch.setattr(norm, "clip_grads_with_norm_", keep)
    replay = accelerated()
    assert len({total.data_ptr() for total in held}) == 1 + len(held) - replay.tally.replayed


# The limit


def lower(trainer: Trainer, _: LightningModule) -> None:
    trainer.gradient_clip_val = 0.001


def test_the_limit_of_each_step_is_read_at_that_step(tape: None) -> None:
    assert counted(accelerated(callbacks=at(9, lower))) == {"replayed": 13, "warmup": 3}


def test_a_limit_that_is_frozen_would_show(tape: None, monkeypatch: pytest.MonkeyPatch) -> None:
    native = norm.clip_grads_with_norm_
    monkeypatch.setattr(norm, "clip_grads_with_norm_", lambda params, limit, total: native(params, 0.05, total))
    with pytest.raises(AssertionError, match="GradientNormReplay: differs from the native fit"):
        assert_parity(Net, batches, [GradientNormReplay()], callbacks=at(9, lower), **CLIP)


OFF: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"gradient_clip_val": None}, "clipping is off, with gradient_clip_val=None"),
    "zero": ({"gradient_clip_val": 0}, "clipping is off, with gradient_clip_val=0"),
    "negative": ({"gradient_clip_val": -1.0}, "clipping is off, with gradient_clip_val=-1.0"),
    "by value": ({**CLIP, "gradient_clip_algorithm": "value"}, "gradients are clipped by value"),
}


@pytest.mark.parametrize("off", OFF)
def test_where_nothing_is_clipped_by_norm_it_says_so_before_training(tape: None, off: str) -> None:
    settings, seen = OFF[off]
    replay, text = warned_once(**settings)
    assert text == (
        "GradientNormReplay is off, training goes on without it: it needs clipping by norm, but "
        f"{seen}. To get a yes: set trainer.gradient_clip_val to a positive number"
    )
    assert replay.state is State.INELIGIBLE
    assert not replay.tally.native


@pytest.mark.parametrize("off", OFF)
def test_switched_off_in_the_middle_it_retires_once(tape: None, off: str) -> None:
    settings, seen = OFF[off]

    def switch(trainer: Trainer, _: LightningModule) -> None:
        for name, value in settings.items():
            setattr(trainer, name, value)

    # At the end of the sixth batch: the seventh one begins without.
    replay, text = warned_once(callbacks=at(5, switch, "on_train_batch_end"))
    assert text == f"GradientNormReplay is retired at batch 6 (disabled), training goes on without it: {seen}"
    assert counted(replay) == {"replayed": 3, "warmup": 3, "retired": 10}


def test_switched_off_and_on_again_it_stays_retired(tape: None) -> None:
    def switch(trainer: Trainer, _: LightningModule) -> None:
        trainer.gradient_clip_val = 0.05 if trainer.gradient_clip_val is None else None

    callbacks = lambda: [Act("on_train_batch_end", n, switch) for n in (5, 8)]  # noqa: E731
    replay, _ = warned_once(callbacks=callbacks)
    assert replay.tally.replayed == 3


# Precision, and optimizers that scale by themselves


def scaled(start: float = 2.0**16) -> Any:
    return [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=start))]


def sixteen(start: float, *callbacks: Callback) -> tuple[dict[str, str], dict[str, str]]:
    """Fits in float16, natively and with what is given; a plugin is for one Trainer."""
    return run(Net, batches, plugins=scaled(start), **CLIP), run(Net, batches, callbacks, plugins=scaled(start), **CLIP)


def test_gradients_in_sixteen_bits_are_clipped_after_their_scale_is_undone(tape: None) -> None:
    replay = GradientNormReplay(strict=True)
    native, other = sixteen(2.0**16, replay)
    assert first_difference(native, other) is None
    assert counted(replay) == {"replayed": 13, "warmup": 3}


def test_sixteen_bits_overflow_and_recover(tape: None) -> None:
    scales: list[float] = []

    def note(trainer: Any, _: LightningModule) -> None:
        scales.append(trainer.precision_plugin.scaler.get_scale())

    replay = GradientNormReplay(strict=True)
    notes = [Act("on_train_batch_end", batch, note) for batch in range(16)]
    native, other = sixteen(2.0**24, replay, *notes)
    assert first_difference(native, other) is None
    falls = [before > after for before, after in zip([2.0**24, *scales], scales, strict=False)]
    assert any(falls[3:]), "it should overflow in replays"
    assert not falls[-1], "and recover"
    assert replay.tally.replayed == 13


@pytest.mark.parametrize("settings", [lambda: {"precision": "bf16-mixed"}, lambda: {"plugins": scaled()}])
def test_lightning_refuses_to_clip_for_a_fused_optimizer_as_without_it(
    tape: None, settings: Callable[[], dict[str, Any]]
) -> None:
    errors = []
    for replays in ([], [GradientNormReplay()]):
        module = Fused()
        with pytest.raises(RuntimeError, match="does not allow for gradient clipping") as caught:
            fit(replays, module, **CLIP, **settings())
        errors.append(str(caught.value))
        assert_free(module)
    assert errors[0] == errors[1]
    assert "HINT: Are you using a 'fused' optimizer?" in errors[1]


def test_in_full_precision_a_fused_optimizer_is_clipped_alike(tape: None) -> None:
    assert counted(accelerated(Fused)) == {"replayed": 13, "warmup": 3}


@pytest.mark.parametrize("kind", [Precision, MixedPrecision])
def test_the_plugin_refuses_above_the_seam(tape: None, kind: type[Precision]) -> None:
    """What it refuses is never counted, nor recorded."""
    seen: list[Any] = []

    def clip(trainer: Trainer, module: LightningModule) -> None:
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
        before = counted(replay)
        plugin: Any = trainer.precision_plugin
        with pytest.raises(RuntimeError, match="not allow") if kind is MixedPrecision else nullcontext():
            plugin.clip_gradients(optimizer, 0.05)
        seen.append(sum(counted(replay).values()) - sum(before.values()))

    replay = GradientNormReplay()
    precision = {"precision": "bf16-mixed"} if kind is MixedPrecision else {}
    fit([replay, Act("on_before_optimizer_step", 6, clip)], **CLIP, **precision)
    assert seen == [int(kind is Precision)]


# Customised clipping


class OwnClipping(Net):
    def configure_gradient_clipping(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        nn.utils.clip_grad_norm_(self.parameters(), 0.02)


class Above(Net):
    """Overrides what is not asked of it."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.log("clipped", 1.0)


class Gentle(Precision):
    def clip_grad_by_norm(self, optimizer: Any, clip_val: Any) -> None:
        super().clip_grad_by_norm(optimizer, clip_val / 2)


class Bounded(Precision):
    def clip_gradients(self, optimizer: Any, clip_val: Any = 0.0, *args: Any, **kwargs: Any) -> None:
        super().clip_gradients(optimizer, min(clip_val, 0.01), *args, **kwargs)


class Picky(Precision):
    def main_params(self, optimizer: Any) -> Any:
        yield from list(super().main_params(optimizer))[:2]


class Inheriting(Precision):
    """Says nothing of clipping."""


class Quiet(MixedPrecision):
    """Says nothing of clipping."""


def plugged(make: Callable[[], Precision], *replays: Replay) -> dict[str, str]:
    return run(Net, batches, replays, plugins=[make()], **CLIP)


def test_a_module_with_a_clipping_of_its_own_is_named(tape: None) -> None:
    _, text = warned_once(OwnClipping)
    assert text == (
        "GradientNormReplay is off, training goes on without it: it needs Lightning's clipping, but OwnClipping has "
        "its own configure_gradient_clipping. To get a yes: leave that to Lightning"
    )


def test_other_hooks_of_the_module_are_its_own_affair(tape: None) -> None:
    assert counted(accelerated(Above)) == {"replayed": 13, "warmup": 3}


@pytest.mark.parametrize(("kind", "method"), [(Gentle, METHODS[1]), (Bounded, METHODS[0]), (Picky, METHODS[2])])
def test_a_plugin_with_a_clipping_of_its_own_is_named(tape: None, kind: type[Precision], method: str) -> None:
    replay = GradientNormReplay()
    with warned() as texts:
        assert first_difference(plugged(kind), plugged(kind, replay)) is None
    assert len(texts) == 1
    assert f"it needs Lightning's clipping, but {kind.__name__} has its own {method}. To get a yes: " in texts[0]
    assert first_difference(plugged(kind), plugged(Precision)) is not None, "it does nothing"


@pytest.mark.parametrize("make", [Inheriting, lambda: Quiet("bf16-mixed", "cpu")])
def test_a_plugin_that_inherits_its_clipping_is_eligible(tape: None, make: Callable[[], Precision]) -> None:
    replay = GradientNormReplay(strict=True)
    assert first_difference(plugged(make), plugged(make, replay)) is None
    assert replay.tally.replayed == 13


@pytest.mark.parametrize("method", METHODS)
def test_a_method_put_on_the_plugin_itself_is_named_and_stays(tape: None, method: str) -> None:
    def patched() -> Precision:
        plugin = Inheriting()
        theirs = getattr(plugin, method)
        setattr(plugin, method, lambda *args, **kwargs: theirs(*args, **kwargs))
        made.append(plugin)
        return plugin

    made: list[Precision] = []
    with warned() as texts:
        assert first_difference(plugged(patched), plugged(patched, GradientNormReplay())) is None
    assert len(texts) == 1
    assert f"Inheriting has its own {method}" in texts[0]
    assert all(method in vars(plugin) for plugin in made)


@pytest.mark.parametrize("method", METHODS[:2])
def test_a_method_replaced_in_lightnings_class_is_named(
    tape: None, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    native = getattr(Precision, method)

    def halved(self: Any, optimizer: Any, clip_val: Any, *args: Any, **kwargs: Any) -> None:
        native(self, optimizer, clip_val / 2, *args, **kwargs)

    monkeypatch.setattr(Precision, method, halved)
    _, text = warned_once()
    assert f"it needs Lightning's clipping, but Precision has its own {method}" in text


def twice(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Tensor:
    """Somebody's own clipping."""
    return clip_grad_norm_(parameters, max_norm / 2, *args, **kwargs)


def test_a_replaced_function_of_torch_is_named(tape: None, monkeypatch: pytest.MonkeyPatch) -> None:
    native = run(Net, batches, **CLIP)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", twice)
    _, text = warned_once()
    assert "it needs torch's clipping, but torch.nn.utils.clip_grad_norm_ was replaced. To get a yes: " in text
    assert first_difference(native, run(Net, batches, **CLIP)) is not None


def test_a_function_of_torch_that_is_replaced_in_the_middle_ends_it_and_acts_at_once(tape: None) -> None:
    class Replacing(Callback):
        """Replaces it from the seventh batch on."""

        def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
            if trainer.global_step == 6:
                torch.nn.utils.clip_grad_norm_ = twice  # type: ignore[assignment]

        def on_train_end(self, *args: Any) -> None:
            torch.nn.utils.clip_grad_norm_ = clip_grad_norm_

    replay, text = warned_once(callbacks=lambda: [Replacing()])
    assert text == (
        "GradientNormReplay is retired at batch 6 (structure), training goes on without it: "
        "torch.nn.utils.clip_grad_norm_ was replaced"
    )
    assert counted(replay) == {"replayed": 3, "warmup": 3, "retired": 10}


EARLY = """
import torch
stock = torch.nn.utils.clip_grad_norm_
torch.nn.utils.clip_grad_norm_ = lambda *args, **kwargs: stock(*args, **kwargs)
from lucid_accel.replay import clipping
assert not clipping.is_stock()
"""


def test_a_function_of_torch_that_was_replaced_before_all_else_is_known_too() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLY],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )
    assert done.returncode == 0, done.stderr


# Gradients of other kinds


class Odd(Net):
    """Exchanges gradients before they are clipped, in some steps."""

    steps = range(16)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        if self.global_step in self.steps:
            self.change(self.head.weight)

    def change(self, weight: nn.Parameter) -> None:
        raise NotImplementedError


class Missing(Odd):
    def change(self, weight: nn.Parameter) -> None:
        weight.grad = None


class Transposed(Odd):
    """Dense, in another order."""

    def change(self, weight: nn.Parameter) -> None:
        weight.grad = weight.grad.t().contiguous().t()  # type: ignore[union-attr]


class Gappy(Odd):
    """Every second number of a larger tensor."""

    def change(self, weight: nn.Parameter) -> None:
        weight.grad = weight.grad.repeat_interleave(2, 1)[:, ::2]  # type: ignore[union-attr]


class Misaligned(Odd):
    """Where no vector may begin."""

    def change(self, weight: nn.Parameter) -> None:
        room = torch.zeros(weight.numel() + 1)
        weight.grad = room[1:].view(weight.shape).copy_(weight.grad)  # type: ignore[arg-type]


class Expanded(Odd):
    """One number for all."""

    def change(self, weight: nn.Parameter) -> None:
        weight.grad = weight.grad.mean().expand(weight.shape)  # type: ignore[union-attr]


class Subclassed(Odd):
    def change(self, weight: nn.Parameter) -> None:
        weight.grad = weight.grad.as_subclass(Named)  # type: ignore[union-attr]


class Named(Tensor):
    pass


class Shared(Odd):
    """All gradients in one piece of memory, each beginning where a vector may."""

    room = 4

    def change(self, weight: nn.Parameter) -> None:
        params = [x for x in self.parameters() if x.grad is not None]
        starts = [0]
        for x in params:
            starts.append(starts[-1] + -(-x.numel() // self.room) * self.room)
        flat = torch.zeros(starts[-1])
        for x, start in zip(params, starts, strict=False):
            x.grad = flat[start : start + x.numel()].view(x.shape).copy_(x.grad)  # type: ignore[arg-type]


class Dense(Shared):
    """One after another, as in a flat buffer: most begin where no vector may."""

    room = 1


def some(kind: type[Odd], steps: Any) -> type[Odd]:
    return type(kind.__name__, (kind,), {"steps": steps})


NATIVE = {"replayed": 0, "warmup": 3}
REPLAYED = {"replayed": 13, "warmup": 3}


@pytest.mark.parametrize(
    ("kind", "always", "sometimes"),
    [
        (Missing, REPLAYED, {"replayed": 11, "warmup": 3, "missing_grad": 2}),
        (Transposed, REPLAYED, {"replayed": 11, "warmup": 3, "stride": 2}),
        (Misaligned, {"replayed": 0, "stride": 16}, {"replayed": 11, "warmup": 3, "stride": 2}),
        (Gappy, {"replayed": 0, "warmup": 1, "stride": 15}, {"replayed": 11, "warmup": 3, "stride": 2}),
        (Subclassed, {"replayed": 0, "dtype": 16}, {"replayed": 11, "warmup": 3, "dtype": 2}),
        (Shared, REPLAYED, REPLAYED),
        (Dense, {"replayed": 0, "stride": 16}, {"replayed": 11, "warmup": 3, "stride": 2}),
    ],
)
def test_gradients_of_another_kind_are_clipped_alike(
    tape: None, kind: type[Odd], always: dict[str, int], sometimes: dict[str, int]
) -> None:
    for steps, expected in ((range(16), always), ((6, 9), sometimes)):
        replay = GradientNormReplay()
        with warned() as texts:
            assert_parity(some(kind, steps), batches, [replay], must_replay=False, **CLIP)
        assert counted(replay) == expected
        # Idle, or nothing to say.
        assert len(texts) == (replay.tally.replayed == 0)


def test_an_extra_gradient_in_some_steps_is_native_there(tape: None) -> None:
    class Late(Missing):
        steps = tuple(set(range(16)) - {6, 9})  # type: ignore[assignment]

    assert counted(accelerated(Late)) == {"replayed": 11, "warmup": 3, "missing_grad": 2}


def test_another_set_of_gradients_that_stays_is_recorded_too(tape: None) -> None:
    replay = accelerated(some(Missing, range(4, 99)), max_epochs=4)
    assert counted(replay) == {"replayed": 32 - 3 - 10, "warmup": 4, "missing_grad": 9}
    assert replay.tally.proofs == 2


def test_no_gradient_at_all_is_native(tape: None) -> None:
    class Nothing(Net):
        def on_before_optimizer_step(self, optimizer: Any) -> None:
            if self.global_step in (6, 9):
                optimizer.zero_grad()

    assert counted(accelerated(Nothing)) == {"replayed": 11, "warmup": 3, "missing_grad": 2}


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-45, 1e30])
def test_gradients_that_are_not_finite_or_extreme_are_replayed_alike(tape: None, value: float) -> None:
    class Extreme(Odd):
        steps = (6, 9)  # type: ignore[assignment]

        def change(self, weight: nn.Parameter) -> None:
            for param in [weight] if value else self.parameters():
                param.grad.fill_(value)  # type: ignore[union-attr]

    assert counted(accelerated(Extreme)) == REPLAYED


class Embedded(LightningModule):
    """A sparse gradient, which torch itself may not be able to clip."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3, sparse=True)
        self.rest = nn.Linear(3, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss: Tensor = self.rest(self.table(batch[1])).square().mean()
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def test_a_sparse_gradient_ends_as_natively(tape: None) -> None:
    ends = []
    for replays in ([], [GradientNormReplay()]):
        with warned():
            try:
                ends.append(run(Embedded, batches, replays, **CLIP))
            except Exception as error:
                ends.append({"error": f"{type(error).__name__}: {error}"})
    assert ends[0] == ends[1]


class Few(LightningModule):
    """As few parameters as are wanted, of several sizes."""

    def __init__(self, groups: list[list[tuple[int, ...]]], dtypes: tuple[torch.dtype, ...] = (torch.float32,)) -> None:
        super().__init__()
        self.unused = nn.Linear(1, 1)
        self.groups = [[nn.Parameter(torch.ones(shape)) for shape in group] for group in groups]
        flat = [param for group in self.groups for param in group]
        for index, param in enumerate(flat):
            param.data = param.data.to(dtypes[index % len(dtypes)])
        self.trained = nn.ParameterList(flat)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        loss = torch.stack([(x.double() * batch[0].mean()).square().sum() for x in [*self.trained, self.unused.weight]])
        return loss.sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([{"params": group} for group in self.groups], 0.1)


@pytest.mark.parametrize(
    ("groups", "dtypes"),
    [
        ([[(2, 3)]], (torch.float32,)),
        ([[()]], (torch.float32,)),
        ([[(2, 3), (0, 4)]], (torch.float32,)),
        ([[(2,)], [(3,)]], (torch.float32,)),
        ([[(2,), (3,), (4,)]], (torch.float32, torch.float64)),
        ([[(2,), (3,)]], (torch.bfloat16, torch.float32)),
    ],
    ids=["one", "a scalar", "an empty one", "groups", "double", "half"],
)
def test_few_parameters_are_clipped_alike(tape: None, groups: Any, dtypes: Any) -> None:
    assert counted(accelerated(lambda: Few(groups, dtypes))) == REPLAYED


def test_no_parameter_at_all_is_native(tape: None) -> None:
    replay, text = warned_once(lambda: Few([[]]))
    assert counted(replay) == {"replayed": 0, "missing_grad": 16}
    assert "GradientNormReplay is idle" in text


def test_a_numerical_setting_that_changes_is_native_and_comes_back(tape: None) -> None:
    def switch(*_: Any) -> None:
        torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark

    callbacks = lambda: [Act("on_before_optimizer_step", n, switch) for n in (6, 8)]  # noqa: E731
    assert counted(accelerated(callbacks=callbacks)) == {"replayed": 11, "warmup": 3, "precision": 2}


# On the plugin, and for how long


def test_without_a_gpu_one_warning_says_so() -> None:
    _, text = warned_once()
    assert text == (
        "GradientNormReplay is off, training goes on without it: it needs an NVIDIA GPU, but this run computes on cpu. "
        "To get a yes: train on one"
    )
    with pytest.raises(AccelerationError, match="GradientNormReplay is off: it needs an NVIDIA GPU"):
        fit([GradientNormReplay(strict=True)], **CLIP)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_of_the_plugin_made_during_the_fit_clips_by_itself(tape: None, copied: Callable[[Any], Any]) -> None:
    def duplicate(trainer: Trainer, module: LightningModule) -> None:
        plugin: Any = trainer.precision_plugin
        assert "clip_grad_by_norm" in vars(plugin)
        copies.append(copied(plugin))
        before = counted(replay)
        optimizer = torch.optim.SGD([param := nn.Parameter(torch.ones(4))], 0.1)
        param.grad = torch.full((4,), 3.0)
        copies[0].clip_gradients(optimizer, 1.0)
        assert param.grad.norm() == pytest.approx(1.0)
        assert counted(replay) == before

    copies: list[Any] = []
    replay = GradientNormReplay(strict=True)
    fit([replay, *at(6, duplicate)()], **CLIP)
    # And carries nothing that would keep it from being accelerated itself.
    again = GradientNormReplay(strict=True)
    fit([again], plugins=copies, **CLIP)
    assert (replay.tally.replayed, again.tally.replayed) == (5, 5)


def test_a_checkpoint_saved_during_the_fit_has_nothing_of_it(tape: None, tmp_path: Any) -> None:
    def save(trainer: Trainer, _: LightningModule) -> None:
        trainer.save_checkpoint(tmp_path / f"{len(trainer.callbacks)}.ckpt")  # type: ignore[attr-defined]

    for replays in ([], [GradientNormReplay(strict=True)]):
        torch.manual_seed(0)
        fit([*replays, *at(6, save)()], **CLIP)
    native, other = (torch.load(path, weights_only=False) for path in sorted(tmp_path.iterdir()))
    assert native.keys() == other.keys()
    assert native["callbacks"] == other["callbacks"]


def boom(*_: Any) -> None:
    raise ZeroDivisionError


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("hook", "batch", "happens"),
    [
        (None, 0, boom),
        ("on_train_start", 0, boom),
        ("on_before_optimizer_step", 0, boom),
        ("on_before_optimizer_step", 2, boom),
        ("on_before_optimizer_step", 6, boom),
        ("on_train_batch_end", 6, boom),
        ("on_train_batch_end", 6, interrupt),
        ("on_train_end", 0, boom),
    ],
)
def test_whatever_ends_a_fit_leaves_everything_as_a_native_fit_does(
    tape: None, hook: str | None, batch: int, happens: Callable[..., None]
) -> None:
    left = []
    for replays in ([], [GradientNormReplay(on_failure="raise")]):
        torch.manual_seed(0)
        module = Net()
        trainer = trainer_for([*replays, *([Act(hook, batch, happens)] if hook else [])], **CLIP)
        error = None if hook is None else SystemExit if happens is interrupt else ZeroDivisionError
        with restored_interrupt(), nullcontext() if error is None else pytest.raises(error):
            fit_in(trainer, module)
        left.append(footprint(trainer, module))
        assert_free(module)
        assert "clip_grad_by_norm" not in vars(trainer.precision_plugin)
        assert all(replay._routers == [] and replay._taken is None for replay in replays)
    assert left[1] == left[0]


def fit_in(trainer: Trainer, module: LightningModule) -> None:
    trainer.fit(module, torch.utils.data.DataLoader(batches(), batch_size=None))  # type: ignore[arg-type]


def test_an_error_inside_the_native_norm_is_the_users_and_leaves_nothing(
    tape: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norm, "get_total_norm", boom)
    module = Net()
    with pytest.raises(ZeroDivisionError):
        fit([GradientNormReplay()], module, **CLIP)
    assert_free(module)


def test_a_failed_recording_retires_once_or_stops_the_run(tape: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: TapeEngine, body: Any, after: Any = None) -> None:
        raise CaptureError("ValueError: no room")

    monkeypatch.setattr(TapeEngine, "capture", fail)
    replay, text = warned_once()
    assert "GradientNormReplay is retired at batch 1 (capture_failed)" in text
    assert counted(replay) == {"replayed": 0, "warmup": 1, "capture_failed": 1, "retired": 14}
    module = Net()
    with pytest.raises(AccelerationError, match="could not be recorded: ValueError: no room"):
        fit([GradientNormReplay(on_failure="raise")], module, **CLIP)
    assert_free(module)


@pytest.mark.parametrize("over", [True, False])
def test_what_somebody_puts_on_the_plugin_during_the_fit_stays_there(tape: None, over: bool) -> None:
    """Over ours, calling it; or in its place."""
    calls: list[int] = []

    def patch(trainer: Trainer, _: LightningModule) -> None:
        plugin: Any = trainer.precision_plugin
        below = plugin.clip_grad_by_norm if over else lambda *args: Precision.clip_grad_by_norm(plugin, *args)

        def theirs(optimizer: Any, clip_val: float) -> None:
            calls.append(1)
            below(optimizer, clip_val / 2)

        plugin.clip_grad_by_norm = patches[0] = theirs

    patches: list[Any] = [None]
    replay, module = GradientNormReplay(strict=True), Net()
    trainer = trainer_for([replay, Act("on_train_batch_start", 5, patch)], **CLIP)
    fit_in(trainer, module)
    assert vars(trainer.precision_plugin)["clip_grad_by_norm"] is patches[0]
    assert counted(replay) == {"replayed": 5 if over else 2, "warmup": 3}
    assert len(calls) == 3
    assert_free(module)
    # What it calls is inert by now.
    optimizer = torch.optim.SGD([param := nn.Parameter(torch.ones(4))], 0.1)
    param.grad = torch.full((4,), 3.0)
    trainer.precision_plugin.clip_grad_by_norm(optimizer, 1.0)
    assert param.grad.norm() == pytest.approx(0.5)
    assert replay.tally.replayed == (5 if over else 2)


def test_a_patch_by_somebody_else_changes_no_byte(tape: None) -> None:
    def patch(trainer: Trainer, _: LightningModule) -> None:
        plugin: Any = trainer.precision_plugin
        below = plugin.clip_grad_by_norm
        plugin.clip_grad_by_norm = lambda optimizer, clip_val: below(optimizer, clip_val / 2)

    assert accelerated(callbacks=at(9, patch)).tally.replayed == 13


def test_an_exchanged_plugin_is_noticed_when_the_next_epoch_begins(tape: None) -> None:
    def exchange(trainer: Trainer, _: LightningModule) -> None:
        trainer.strategy.precision_plugin = Precision()

    _, text = warned_once(callbacks=at(0, exchange, "on_train_epoch_end"), max_epochs=3)
    assert "(structure)" in text
    assert "the part itself was exchanged" in text


def test_the_same_objects_fit_again_with_a_recording_of_their_own(tape: None) -> None:
    left = []
    for replays in ([], [GradientNormReplay(strict=True)]):
        torch.manual_seed(0)
        module = Net()
        for _ in range(2):
            trainer = fit(replays, module, max_epochs=2, **CLIP)
        left.append(footprint(trainer, module))
        assert [counted(replay) for replay in replays] == [REPLAYED] * len(replays)
    assert left[0] == left[1]


def test_a_second_trainer_does_not_meet_it(tape: None) -> None:
    replay, module = GradientNormReplay(strict=True), Net()
    fit([replay], module, **CLIP)
    before = replay.tally.as_dict()
    fit([], module, **CLIP)
    assert replay.tally.as_dict() == before


def test_manual_optimization_is_a_no(tape: None) -> None:
    class Manual(Net):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

    with warned() as texts, pytest.raises(MisconfigurationException):
        fit([GradientNormReplay()], Manual(), **CLIP)
    assert all("automatic optimization" in text for text in texts)
