"""What StepReplay refuses, leaves native or ends at, each with its reason in words; and that nothing of it is left."""

from __future__ import annotations

import copy
import gc
import pickle
import random
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins import Precision
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from lucid_accel import (
    AccelerationError,
    GradientNormReplay,
    LossReplay,
    NetworkReplay,
    OrthogonalizationReplay,
    Replay,
    UpdateReplay,
)
from lucid_accel.graphs.call import Call
from lucid_accel.graphs.engine import use_engine
from lucid_accel.graphs.entry import Entry
from lucid_accel.graphs.tape import TapeEngine
from lucid_accel.reasons import Reason
from lucid_accel.replay.logs import StepLogs
from lucid_accel.replay.step import StepReplay
from lucid_accel.site import Site
from lucid_accel.testing import run
from lucid_core import seams
from lucid_core.optim.musgd import MuSGD
from lucid_core.seams import SeamConflict
from tests.accel.conftest import Act, Net, batches, fit, trainer_for, warned
from tests.accel.muon import Muon, at, counted, of
from tests.accel.steps import CLIPPED, Averaged, Parts, compare, even_batches, hooked
from tests.accel.test_life import footprint, restored_interrupt

pytestmark = pytest.mark.usefixtures("tape")


def ends(
    module: Callable[[], LightningModule], *words: str, data: Callable[[], Any] = batches, **settings: Any
) -> StepReplay:
    """Assert that the fit has the native bytes, and that one warning has these words; return the acceleration."""
    replay = StepReplay()
    with warned() as texts:
        assert (place := compare(module, data, replay, **settings)) is None, place
    assert len(texts) == 1, texts
    for word in words:
        assert word in texts[0], texts[0]
    return replay


# What a step may not do


class Reads(Muon):
    """Each has a step that does one thing that no recording may."""

    def extra(self, loss: Tensor, batch: Any, batch_idx: int) -> Any:
        raise NotImplementedError

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        return loss * self.extra(loss, batch, batch_idx)


class Host(Reads):
    def extra(self, loss: Tensor, batch: Any, batch_idx: int) -> Any:
        return 1.0 if loss.item() > 0 else 2.0


class Index(Reads):
    def extra(self, loss: Tensor, batch: Any, batch_idx: int) -> Any:
        return 1.0 + 0.1 * batch_idx


class Indirect(Reads):
    def extra(self, loss: Tensor, batch: Any, batch_idx: int) -> Any:
        return [1.0, 0.5][isinstance(batch_idx, int) and batch_idx % 2 == 1]


class Epoch(Reads):
    def extra(self, loss: Tensor, batch: Any, batch_idx: int) -> Any:
        return 1.0 + 0.1 * self.current_epoch


class Progress(Reads):
    def extra(self, loss: Tensor, batch: Any, batch_idx: int) -> Any:
        return 1.0 + 0.1 * getattr(self, "global_step")  # noqa: B009 - what is asked for by name is heard too


class Rate(Reads):
    def extra(self, loss: Tensor, batch: Any, batch_idx: int) -> Any:
        return self.optimizers().param_groups[0]["lr"] + 1  # type: ignore[union-attr]


class Above(Reads):
    def extra(self, loss: Tensor, batch: Any, batch_idx: int) -> Any:
        return 1.0 + 0.1 * self.trainer.global_step


class Number(Reads):
    def extra(self, loss: Tensor, batch: Any, batch_idx: int) -> Any:
        self.log("seen", 3.0)
        return 1.0


class Size(Reads):
    def extra(self, loss: Tensor, batch: Any, batch_idx: int) -> Any:
        self.log_dict({"loss": loss, "size": len(batch[0])})
        return 1.0


class Counts(Reads):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def extra(self, loss: Tensor, batch: Any, batch_idx: int) -> Any:
        self.count += 1
        return 1.0


class Keeps(Counts):
    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def extra(self, loss: Tensor, batch: Any, batch_idx: int) -> Any:
        self.losses.append(1.0)
        return 1.0


class Settles(Reads):
    """Lets itself be found by name in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = 0

    def extra(self, loss: Tensor, batch: Any, batch_idx: int) -> Any:
        for name in ("first", "second"):
            setattr(self, name, getattr(self, name) + 1)
        return 1.0


class Metric(nn.Module):
    """As metrics objects are: a count in Python beside a sum on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(())
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.total = self.total + x.detach()
        self.seen += 1
        return self.total / self.seen


class Measures(Reads):
    def __init__(self) -> None:
        super().__init__()
        self.metric = Metric()

    def extra(self, loss: Tensor, batch: Any, batch_idx: int) -> Any:
        self.log("mean", self.metric(loss))
        return 1.0


class Draws(Reads):
    def extra(self, loss: Tensor, batch: Any, batch_idx: int) -> Any:
        return 1.0 + random.random()


class Writes(Reads):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        batch[0].mul_(0.5)
        return self.loss(batch)


class Foreign(Reads):
    """Has a weight that it does not own up to."""

    def __init__(self) -> None:
        super().__init__()
        self.loose = [nn.Parameter(torch.ones(()))]

    def extra(self, loss: Tensor, batch: Any, batch_idx: int) -> Any:
        return self.loose[0]


class Found:
    def __repr__(self) -> str:
        return "found"


class Odd(Reads):
    """Returns what cannot be made anew."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": self.loss(batch), "what": Found()}


class Twice(Reads):
    """Goes backward by itself, and leaves the rest to Lightning."""

    def backward(self, loss: Tensor) -> None:
        loss.backward(retain_graph=True)
        loss.backward()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)


FORBIDDEN: dict[type[Reads], tuple[str, ...]] = {
    Host: ("(capture_failed)", "reads a value back to the host"),
    Index: ("(capture_failed)", "it reads batch_idx, which is no tensor on the device"),
    Indirect: ("(capture_failed)", "it reads batch_idx"),
    Epoch: ("(scalars)", "the step mentions current_epoch, which a recording would freeze"),
    Progress: ("(scalars)", "the step mentions global_step"),
    Rate: ("(scalars)", "the step mentions optimizers"),
    Above: ("(scalars)", "the step mentions global_step, trainer"),
    Number: ("(capture_failed)", "it logs 'seen' as a float", "log a tensor on the device, or log it in on_train"),
    Size: ("(capture_failed)", "it logs 'size' as a int"),
    Counts: ("(scalars)", "the attribute count changed while it ran"),
    Keeps: ("(scalars)", "the attribute losses changed while it ran"),
    Settles: ("(scalars)", "the attribute first changed while it ran"),
    Measures: ("(scalars)", "the attribute metric.total changed while it ran"),
    Draws: ("(scalars)", "it draws random numbers on the host"),
    Writes: ("(capture_failed)", "it writes to its inputs"),
    Foreign: ("(capture_failed)", "a trainable tensor of shape () that is no part of it"),
    Odd: ("(capture_failed)", "it returns a Found, which a recording cannot make anew"),
    Twice: ("(capture_failed)", "goes backward more than once"),
}


@pytest.mark.parametrize("kind", FORBIDDEN, ids=lambda kind: kind.__name__)
def test_a_step_that_no_recording_can_do_retires_with_the_reason(kind: type[Reads]) -> None:
    replay = ends(kind, *FORBIDDEN[kind])
    assert replay.tally.replayed == 0
    assert sum(replay.tally.native.values()) == 16


def named() -> Any:
    return [
        {"images": x, "labels": y, "names": [f"{n}.jpg" for n in range(len(x))], "scale": 0.5} for x, y in batches()
    ]


class Captioned(Muon):
    """Passes by what is no tensor in its batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        tensors = [value for value in batch.values() if isinstance(value, Tensor)]
        return self.loss(tensors)


class Reading(Captioned):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) * batch["scale"]


class Spelling(Captioned):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) * len(batch["names"][0])


def test_what_is_no_tensor_in_a_batch_may_be_there_but_not_be_read() -> None:
    replay = StepReplay(strict=True)
    assert compare(Captioned, named, replay) is None
    assert counted(replay) == {"replayed": 10, "warmup": 4, "partial_batch": 2}
    ends(Reading, "it reads batch['scale'], which is no tensor on the device", data=named)
    ends(Spelling, "it reads batch['names'][0]", data=named)


class Fickle(Muon):
    """Logs something else once it is recorded: the switch is nowhere that anybody watches."""

    switch: list[Any] = []  # noqa: RUF012 - that is the point

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("loss", self.switch[0](loss))
        return loss


def test_another_kind_of_value_in_the_log_at_the_proof_ends_it_and_not_the_run() -> None:
    def turn(to: Callable[[Tensor], Any]) -> Callable[[Any], None]:
        return lambda _: Fickle.switch.__setitem__(slice(None), [to])

    replay = StepReplay()
    change = lambda: [*at(0, do=turn(torch.detach))(), *at(3, do=turn(lambda _: 1.0))()]  # noqa: E731
    with warned() as texts:
        assert compare(Fickle, batches, replay, callbacks=change) is None
    assert len(texts) == 1
    assert "it returned another structure, or another plain value, than before" in texts[0]


# What it asks before


def hooked_part(module: Any) -> None:
    module.body[0].register_forward_hook(lambda *_: None)


def hooked_parameter(module: Any) -> None:
    module.head.weight.register_hook(lambda g: g * 2)


def late_hooked_parameter(module: Any) -> None:
    module.head.weight.register_post_accumulate_grad_hook(lambda _: None)


def lazy(module: Any) -> None:
    module.body.append(nn.LazyBatchNorm2d())


def compiled_part(module: Any) -> None:
    module.head.compile(backend="eager")


def compiled_copy(module: Any) -> None:
    module.head = torch.compile(module.head, backend="eager")


def manual(module: Any) -> None:
    module.automatic_optimization = False


BEFORE: dict[Callable[[Any], None], str] = {
    hooked_part: "it needs a step that nobody looks into, but body.0 has a hook",
    hooked_parameter: "it needs a step that nobody looks into, but the parameter head.weight has a hook",
    late_hooked_parameter: "but the parameter head.weight has a hook",
    compiled_part: "it needs an eager module, but head is compiled",
    compiled_copy: "it needs an eager module, but head is compiled",
    lazy: "it needs parameters that exist",
    manual: "it needs automatic optimization",
}


@pytest.mark.parametrize("change", BEFORE, ids=lambda change: change.__name__)
def test_a_module_that_it_cannot_record_is_refused_with_the_reason(change: Callable[[Any], None]) -> None:
    module = Muon()
    change(module)
    trainer = trainer_for([])
    trainer.strategy._lightning_module = module
    trainer.strategy.optimizers = []
    assert BEFORE[change] in str(StepReplay().eligible(Site(trainer, module, started=True)))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"detect_anomaly": True}, "it needs anomaly mode off, but detect_anomaly is on"),
        ({"precision": "bf16-true"}, "it needs a precision of 32-true, bf16-mixed, 16-mixed, but this run has bf16"),
    ],
)
def test_a_run_that_it_cannot_record_is_refused_with_the_reason(settings: dict[str, Any], words: str) -> None:
    ends(Muon, words, **settings)


def test_several_devices_are_refused_with_the_reason() -> None:
    trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp_spawn", logger=False)
    answer = str(StepReplay().eligible(Site(trainer, Muon(), started=False)))
    assert "it needs a single device, but this run has world_size=2 and DDPStrategy" in answer


def test_a_step_that_somebody_else_took_is_refused() -> None:
    trainer, module = trainer_for([]), Muon()
    trainer.strategy.training_step = lambda *args: module.training_step(*args)  # type: ignore[method-assign]
    trainer.strategy._lightning_module = module
    answer = str(StepReplay().eligible(Site(trainer, module, started=False)))
    assert "training_step of the strategy is replaced" in answer


@pytest.mark.parametrize(
    "other",
    [
        GradientNormReplay, UpdateReplay, OrthogonalizationReplay, LossReplay, lambda: NetworkReplay(module="body"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("first", [True, False])
def test_a_replay_of_a_part_of_the_step_is_refused_beside_it(other: Callable[[], Replay], first: bool) -> None:
    inner: Any = other()
    if isinstance(inner, LossReplay):
        inner.part = lambda site: site.module.head
    pair = [StepReplay(), inner] if first else [inner, StepReplay()]
    with pytest.raises(SeamConflict, match=r"StepReplay.*Name only one of the two"):
        fit(pair, module := Muon(), **CLIPPED)
    assert not seams._held.get(module)


class OwnUpdate(MuSGD):
    def _orthogonal(self, *args: Any) -> Any:
        return super()._orthogonal(*args)


def test_an_update_that_is_not_musgds_own_stays_native() -> None:
    class Net(Muon):
        kind = OwnUpdate

    replay = Parts(strict=True)
    assert compare(Net, batches, replay, **CLIPPED) is None
    assert len(replay.replays()) == 1


class OwnClipping(Precision):
    """Clips to half of what it is told."""

    def clip_grad_by_norm(self, optimizer: Any, clip_val: Any) -> None:
        super().clip_grad_by_norm(optimizer, clip_val / 2)


def test_clipping_that_is_not_lightnings_stays_native() -> None:
    replay = Parts(strict=True)
    assert compare(Averaged, batches, replay, plugins=lambda: [OwnClipping()], **CLIPPED) is None
    assert len(replay.replays()) == 2


def test_clipping_that_is_exchanged_in_the_middle_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    native, calls = torch.nn.utils.clip_grad_norm_, []

    def clip(parameters: Any, limit: float, *args: Any, **kwargs: Any) -> Tensor:
        calls.append(limit)
        return native(parameters, limit / 2, *args, **kwargs)

    def exchange(_: Any) -> None:
        monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clip)

    replay = Parts(strict=True)
    change = lambda: [*at(0, do=lambda _: monkeypatch.undo())(), *at(12, do=exchange)()]  # noqa: E731
    assert compare(Averaged, even_batches, replay, callbacks=change, **CLIPPED) is None
    assert len(calls) == 2 * 4


def test_an_average_of_another_kind_stays_native() -> None:
    class Mean(Muon):
        average = 0.5

    replay = Parts(strict=True)
    assert compare(Mean, batches, replay) is None
    assert len(replay.replays()) == 2


# What comes in the middle


def moved(module: Any) -> None:
    module.body[0].weight.data = module.body[0].weight.data.clone()


def exchanged(module: Any) -> None:
    module.body[4] = nn.SiLU()


def setting(module: Any) -> None:
    module.body[1].momentum = 0.5


def buffer(module: Any) -> None:
    module.body[1].running_mean = torch.ones_like(module.body[1].running_mean)


def own_forward(module: Any) -> None:
    module.head.forward = lambda x: nn.functional.linear(x, module.head.weight)


MIDDLES: dict[Callable[[Any], None], tuple[str, ...]] = {
    moved: ("(storage)", " was moved"),
    exchanged: ("(structure)", "a part of it was exchanged"),
    setting: ("(scalars)", "the attribute body.1.momentum changed"),
    buffer: ("(storage)", "a parameter or buffer of it was exchanged"),
    hooked_part: ("(hooks)", "a hook was registered, which a replay would not call"),
    own_forward: ("(scalars)", "an attribute came or went"),
}


@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_before_backward"])
@pytest.mark.parametrize("change", MIDDLES, ids=lambda change: change.__name__)
def test_what_changes_under_a_recording_retires_it(change: Callable[[Any], None], hook: str) -> None:
    replay = ends(Averaged, *MIDDLES[change], callbacks=hooked(hook, change, lambda call: call == 9), max_epochs=3)
    assert replay.tally.replayed
    assert replay.tally.native["retired"] > 5  # type: ignore[index]


@pytest.mark.parametrize("register", [hooked_parameter, late_hooked_parameter])
@pytest.mark.parametrize("batch", [1, 3, 9])
def test_a_hook_on_a_parameter_is_called_natively_for_as_long_as_it_is_there(
    register: Callable[[Any], None], batch: int
) -> None:
    def off(module: Any) -> None:
        for table in (module.head.weight._backward_hooks, module.head.weight._post_accumulate_grad_hooks):
            (table or {}).clear()

    replay = Parts(strict=True)
    change = lambda: [*at(batch, do=register)(), *at(13, do=off)()]  # noqa: E731
    assert compare(Muon, batches, replay, callbacks=change, max_epochs=3) is None
    assert replay.tally.native["hooks"] >= 4  # type: ignore[index]
    assert replay.tally.replayed


def test_freezing_back_and_forth_ends_after_three_times() -> None:
    def flip(module: Any) -> None:
        module.head.weight.requires_grad_(not module.head.weight.requires_grad)

    change = hooked("on_train_epoch_start", flip, lambda epoch: epoch > 0)
    replay = ends(Muon, "(freeze)", "for the 4th time", callbacks=change, max_epochs=8)
    assert len(replay.tally.rearmed) == 3


def test_evaluation_and_anomaly_mode_for_a_while_are_native() -> None:
    def mode(on: bool) -> Callable[[Any], None]:
        return lambda module: torch.autograd.set_detect_anomaly(on)

    replay = Parts(strict=True)
    change = lambda: [*at(9, do=mode(True))(), *at(12, do=mode(False))()]  # noqa: E731
    assert compare(Muon, even_batches, replay, callbacks=change) is None
    assert counted(replay) == {"replayed": 9, "warmup": 4, "anomaly": 3}


# Failures to record, stage by stage


class Failing(TapeEngine):
    """Fails at one of its captures: of the average, the forward, the backward, clipping, the update."""

    error: BaseException = RuntimeError("no more")
    fatal = 0
    count = 0

    def capture(self, body: Callable[[], Any], after: Any = None) -> Any:
        def failing() -> Any:
            made = body()
            if number == type(self).fatal:
                raise self.error
            return made

        number = type(self).count
        type(self).count += 1
        return super().capture(failing, after)


STAGES = range(5)


def failing(stage: int, failure: BaseException) -> type[Failing]:
    class Engine(Failing):
        fatal = stage
        error = failure

    return Engine


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("error", "accumulate"),
    [(RuntimeError("no more"), 3), (torch.OutOfMemoryError("no more"), 1)],
    ids=["any", "memory"],
)
def test_a_failure_to_record_retires_with_the_native_bytes(stage: int, error: Exception, accumulate: int) -> None:
    engine = failing(stage, error)
    with use_engine(engine):
        replay = ends(
            Averaged, "(capture_failed)", "no more", max_epochs=4, accumulate_grad_batches=accumulate, **CLIPPED
        )
    assert engine.count == stage + 1
    assert gc.isenabled()
    # What was recorded before is gone with it.
    assert replay.tally.native["retired"]  # type: ignore[index]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("options", "error", "expected"),
    [
        ({"on_failure": "raise"}, RuntimeError("no more"), AccelerationError),
        ({"strict": True}, RuntimeError("no more"), AccelerationError),
        ({}, KeyboardInterrupt(), SystemExit),
    ],
    ids=["on_failure", "strict", "interrupt"],
)
def test_or_stops_the_run_and_leaves_nothing(stage: int, options: Any, error: Any, expected: Any) -> None:
    engine = failing(stage, error)
    replay, module = StepReplay(**options), Averaged()
    profile = sys.getprofile()
    with use_engine(engine), restored_interrupt(), pytest.raises((expected, KeyboardInterrupt)):
        fit([replay], module, max_epochs=3, **CLIPPED)
    assert engine.count == stage + 1
    assert_clean(replay, module)
    assert sys.getprofile() is profile


class Idle:
    """A graph that does nothing."""

    def replay(self) -> None:
        pass


@pytest.mark.parametrize("stage", STAGES)
def test_a_part_that_replays_other_bytes_retires_with_the_native_ones(stage: int) -> None:
    class Lying(TapeEngine):
        count = 0

        def capture(self, body: Callable[[], Any], after: Any = None) -> Any:
            graph, made = super().capture(body, after)
            Lying.count += 1
            return Idle() if Lying.count == stage + 1 else graph, made

    with use_engine(Lying):
        replay = ends(Averaged, "(unlike)", "other bytes than that of the native run", max_epochs=2, **CLIPPED)
    # Clipping and the update are recorded once gradients come from replays.
    assert (replay.tally.replayed > 0) is (stage >= 3)


def assert_clean(replay: StepReplay, module: Any) -> None:
    """Nothing of it is anywhere."""
    assert replay._routers == [] and replay._taken is None
    trainer = module.trainer
    assert not seams._held.get(module)
    assert not any(seams._bound.get(x) for x in (*trainer.optimizers, module.average or module))
    assert "log" not in vars(module)
    assert "training_step" not in vars(trainer.strategy)
    assert "clip_grad_by_norm" not in vars(trainer.precision_plugin)
    assert gc.isenabled()
    assert not TapeEngine._open


# Ways out


def boom(*_: Any) -> None:
    raise ZeroDivisionError("boom")


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


class Broken(Averaged):
    """Its step fails at a batch of three images."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return boom() if len(batch[0]) == 3 else super().training_step(batch, batch_idx)  # type: ignore[func-returns-value]


WAYS: dict[str, tuple[type[Averaged], str | None, int, Callable[..., None], dict[str, Any]]] = {
    "the end": (Averaged, None, 0, boom, {"max_epochs": 2}),
    "training_step": (Broken, None, 0, boom, {}),
    "setup of a later callback": (Averaged, "setup", 0, boom, {}),
    "on_train_start of a later callback": (Averaged, "on_train_start", 0, boom, {}),
    "before the backward, watching": (Averaged, "on_before_backward", 1, boom, {}),
    "before the backward, recording": (Averaged, "on_before_backward", 2, boom, {}),
    "before the backward, proving": (Averaged, "on_before_backward", 3, boom, {}),
    "before the backward, replaying": (Averaged, "on_before_backward", 5, boom, {}),
    "after the backward, proving": (Averaged, "on_after_backward", 3, boom, {}),
    "after the backward, replaying": (Averaged, "on_after_backward", 5, boom, {}),
    "before clipping": (Averaged, "on_before_optimizer_step", 6, boom, {}),
    "validation": (Averaged, "on_validation_start", 1, boom, {}),
    "the keyboard": (Averaged, "on_before_backward", 5, interrupt, {}),
    "on_train_end of a later callback": (Averaged, "on_train_end", 0, boom, {}),
    "no batch": (Averaged, None, 0, boom, {"limit_train_batches": 0}),
}


@pytest.mark.parametrize("way", WAYS)
def test_whatever_ends_a_fit_leaves_everything_as_a_native_fit_does(way: str) -> None:
    make, hook, count, happens, settings = WAYS[way]
    error = None if hook is None and make is Averaged else SystemExit if happens is interrupt else ZeroDivisionError
    left = []
    for accelerations in ([], [StepReplay(on_failure="raise")]):
        torch.manual_seed(0)
        module = make()
        trainer = trainer_for([*accelerations, *([Act(hook, count, happens)] if hook else [])], **CLIPPED, **settings)
        loader: Any = DataLoader(batches(), batch_size=None)  # type: ignore[arg-type]
        with restored_interrupt(), warned(), nullcontext() if error is None else pytest.raises(error):
            trainer.fit(module, loader)
        left.append(footprint(trainer, module))
        if accelerations:
            assert_clean(accelerations[0], module)
    assert left[1] == left[0]


@pytest.mark.parametrize("happens", [boom, interrupt])
def test_after_an_exception_the_same_objects_fit_again(happens: Callable[..., None]) -> None:
    replay = StepReplay(strict=True)
    with restored_interrupt(), pytest.raises((ZeroDivisionError, SystemExit)):
        fit([replay, Act("on_after_backward", 5, happens)], module := Averaged(), **CLIPPED)
    fit([replay], module, max_epochs=2, **CLIPPED)
    assert counted(replay) == {"replayed": 10, "warmup": 4, "partial_batch": 2}
    assert_clean(replay, module)


def test_nothing_is_left_in_checkpoints_copies_or_pickles() -> None:
    def look(accelerations: list[Any]) -> list[Any]:
        kept: list[Any] = []

        def note(module: Any) -> None:
            kept.append(sorted({*vars(module), *vars(module.trainer.optimizers[0])}))
            kept.append(sorted(torch.load(buffer_of(module.trainer), weights_only=False)))
            twin = copy.deepcopy(module.average)
            kept.append((twin in seams._bound, "log" in vars(copy.deepcopy(module.body))))

        run(Averaged, batches, [*accelerations, *at(6, do=note)()])
        return kept

    replay = StepReplay(strict=True)
    assert look([]) == look([replay])
    other = pickle.loads(pickle.dumps(replay))
    assert other._routers == [] and other._taken is None and other.state == "off"
    assert replay.state_dict() == {}


def buffer_of(trainer: Trainer) -> Any:
    import io

    held = io.BytesIO()
    torch.save(trainer._checkpoint_connector.dump_checkpoint(), held)
    held.seek(0)
    return held


def test_a_module_with_a_log_of_its_own_keeps_it() -> None:
    def own(name: str, value: Any, **_: Any) -> None:
        seen.append(name)

    class Logs(Muon):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            self.log("loss", loss)
            return loss

    seen: list[str] = []
    module = Logs()
    vars(module)["log"] = own
    fit([replay := StepReplay(strict=True)], module)
    assert replay.tally.replayed
    assert vars(module)["log"] is own
    assert seen == ["loss"] * 8


def test_nothing_is_learnt_while_somebody_else_profiles() -> None:
    """Names cannot be heard then, and the epoch that this step reads would be frozen: no proof could see it."""

    class Weighing(Muon):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch, batch_idx) * (1 + self.current_epoch)

    def profiler(*_: Any) -> None:
        pass

    sys.setprofile(profiler)
    try:
        fit([replay := StepReplay()], Weighing(), max_epochs=3)
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert (replay.tally.replayed, {*replay.tally.native}) == (0, {Reason.HOOKS})


def test_a_loss_of_the_detector_cannot_be_read_in_its_step() -> None:
    class Plain(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = cross_entropy(self(batch[0]), batch[1])
            if torch.isnan(loss):
                raise ValueError("lost")
            return loss

    ends(Plain, "reads a value back to the host")


def test_an_update_that_is_recorded_again_says_nothing_of_the_step() -> None:
    states, held = [], []

    def load(module: LightningModule) -> None:
        optimizer = module.optimizers(use_pl_optimizer=False)
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # type: ignore[union-attr, arg-type]

    def look(_: Any) -> None:
        states.append(str(replay.state))
        held.append(replay.tally.held)

    replay = Parts(strict=True)
    acts = [*at(14, do=load)(), *at(*range(20), do=look)()]
    with use_engine(Reserving):
        fit([replay, *acts], Averaged(), max_epochs=4, **CLIPPED)
    assert len(replay.tally.rearmed) == 1
    # The average is recorded before the step is, and the update again after it.
    assert states.index("recorded") == 3 and {*states[3:]} == {"recorded"}
    assert held == sorted(held)


class Reserving(TapeEngine):
    """Reserves something for every recording."""

    total = 0

    def capture(self, *args: Any, **kwargs: Any) -> Any:
        Reserving.total += 1000
        return super().capture(*args, **kwargs)

    def reserved(self) -> int:
        return Reserving.total


@pytest.mark.parametrize("logs", [False, True])
def test_a_tensor_that_is_not_on_the_device_is_refused(logs: bool) -> None:
    if logs:
        module = Net()
        module.to("meta")
        with (
            StepLogs(module).kept_back(),
            pytest.raises(TypeError, match="as a tensor on cpu, which"),
        ):
            module.log("rate", torch.tensor(0.5))
        return
    entry = Entry(Call((torch.ones(1),), {}).signature)
    result = {"loss": torch.tensor(0.5)}
    assert entry.watch(result, {}, [torch.ones(1, device="meta")]) is result
    assert entry.fault is not None and entry.fault.startswith(
        "it returns a tensor on cpu, which a recording would copy"
    )


def test_a_batch_whose_mask_comes_and_goes_is_native_where_it_differs() -> None:
    class Masked(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            images, mask = batch
            loss = self.head(self.body(images).mean((2, 3))).square()
            return loss.mean() if mask is None else (loss * mask).mean()

    def masked() -> list[Any]:
        return [(x[0], torch.ones(1) if i in (6, 9) else None) for i, x in enumerate(even_batches(12))]

    replay = Parts(strict=True)
    with use_engine(TapeEngine):
        assert compare(Masked, masked, replay, max_epochs=1) is None
    assert replay.tally.native[Reason.SHAPE] == 2


PATCHED: dict[str, Callable[[Any, Any], Any]] = {
    "the update's apply": lambda _, module: setattr(of(module), "apply", lambda *_: None),
    "the update's prepare": lambda _, module: setattr(of(module), "prepare", lambda params, *_: [*params]),
    "the step of the class": lambda _, module: setattr(type(module), "training_step", slower),
}


def slower(self: Any, batch: Any, batch_idx: int) -> Any:
    return self.head(self.body(batch[0]).mean((2, 3))).square().mean() * 0.5


@pytest.mark.parametrize("what", PATCHED)
def test_methods_that_are_replaced_in_the_middle_are_the_ones_that_run(what: str) -> None:
    made: list[type[Muon]] = []

    def module() -> Muon:
        made.append(type("Own", (Muon,), {"__module__": __name__}))
        return made[-1]()

    replay = Parts()
    acts = [("on_train_epoch_start", 2, PATCHED[what])]
    with use_engine(TapeEngine), warned():
        assert compare(module, batches, replay, lambda: [Act(*act) for act in acts], max_epochs=4) is None
    assert str(replay.state) == "retired" and replay.tally.replayed and "(structure)" in replay.verdict


def test_what_a_method_kept_as_an_attribute_reads_is_watched() -> None:
    class Weight(Callback):
        weight = 1.0

        def get(self) -> float:
            return self.weight

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            pl_module.weight_of = self.get

        def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
            self.weight = 1.0 + (trainer.current_epoch > 1)

    class Weighed(Net):
        weight_of: Any = None

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch, batch_idx) * self.weight_of()

    replay = Parts()
    with use_engine(TapeEngine), warned():
        assert compare(Weighed, batches, replay, lambda: [Weight()], max_epochs=4) is None
    assert replay.tally.replayed and "(scalars)" in replay.verdict
