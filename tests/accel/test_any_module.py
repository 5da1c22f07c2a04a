"""NetworkReplay on modules of strangers: whatever the part does, the bytes are those of the native run."""

from __future__ import annotations

import copy
import gc
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lucid_accel import AccelerationWarning, NetworkReplay
from lucid_accel.acceleration import State
from lucid_accel.adapters import is_free
from lucid_accel.testing import Outcome, assert_parity, cpu_engine, first_difference, run

PART = "model.backbone"
Step = Callable[["Model", Tensor], Tensor]


class Model(nn.Module):
    """A part to be recorded, and a rest."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(6, 3)


class Host(LightningModule):
    """A stranger's LightningModule."""

    def __init__(self, backbone: nn.Module, step: Step, optimizer: type[torch.optim.Optimizer]) -> None:
        super().__init__()
        self.model = Model(backbone)
        self.step = step
        self.optimizer = optimizer

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.step(self.model, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        more = {"momentum": 0.9} if self.optimizer is torch.optim.SGD else {}
        trained = [x for x in self.parameters() if x.requires_grad]
        return self.optimizer(trained, lr=0.02, weight_decay=0.1, **more)


def forward(model: Model, x: Tensor) -> Tensor:
    loss: Tensor = model.head(model.backbone(x)).square().mean()
    return loss


def host(
    backbone: Callable[[], nn.Module], step: Step = forward, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD
) -> Callable[[], Host]:
    return lambda: Host(backbone(), step, optimizer)


def batches() -> list[Tensor]:
    return list(torch.randn(6, 4, 5, generator=torch.Generator().manual_seed(1)))


def accelerated(module: Callable[[], Host], *callbacks: Callback, **options: Any) -> NetworkReplay:
    """Show that the bytes are those of the native run, with something replayed."""
    replay = NetworkReplay(module=PART, strict=True, **options)
    with cpu_engine():
        assert_parity(module, batches, [replay], callbacks=lambda: list(callbacks))
    assert replay.tally.proofs or replay.proof == "off"
    return replay


def retired(module: Callable[[], Host], why: str) -> NetworkReplay:
    """Show that the bytes are those of the native run, with one warning that says ``why``."""
    replay = NetworkReplay(module=PART)
    with cpu_engine(), pytest.warns(AccelerationWarning, match=why) as warned:
        assert_parity(module, batches, [replay], must_replay=False)
    assert len([item for item in warned if item.category is AccelerationWarning]) == 1
    assert replay.state is State.RETIRED
    assert replay.tally.replayed == 0
    return replay


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6))


# Gradients that do not come


class TwoBranches(nn.Module):
    """Two results, of which the step uses one: the other branch is trained by nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(5, 6)
        self.unused = nn.Linear(5, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.used(x), self.unused(x)


def first_branch(model: Model, x: Tensor) -> Tensor:
    loss: Tensor = model.head(model.backbone(x)[0]).square().mean()
    return loss


def zeros_for_the_other(model: Model, x: Tensor) -> Tensor:
    used, unused = model.backbone(x)
    loss: Tensor = model.head(used).square().mean() + 0 * unused.sum()
    return loss


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_branch_without_gradient_stays_without(optimizer: type[torch.optim.Optimizer]) -> None:
    accelerated(host(TwoBranches, first_branch, optimizer))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_zeros_in_place_of_an_absent_gradient_would_show(optimizer: type[torch.optim.Optimizer]) -> None:
    absent = run(host(TwoBranches, first_branch, optimizer), batches)
    zeros = run(host(TwoBranches, zeros_for_the_other, optimizer), batches)
    assert differs_in_weights(absent, zeros, "unused")
    assert not differs_in_weights(absent, zeros, "used.weight")


def differs_in_weights(one: Outcome, other: Outcome, name: str) -> bool:
    names = [place for place in one if place.startswith(f"/state_dict/{PART}.{name}")]
    assert names
    return any(one[place] != other[place] for place in names)


class UnusedInside(TwoBranches):
    """One result, and a parameter that it does not depend on."""

    def forward(self, x: Tensor) -> Any:
        return self.used(x)


def test_a_parameter_that_no_result_depends_on_gets_no_gradient() -> None:
    accelerated(host(UnusedInside))


# What stays as it was


class Frozen(nn.Sequential):
    """A part that stays in evaluation mode, as frozen batch norms do."""

    def train(self, mode: bool = True) -> Frozen:
        return super().train(False)


def normed(kind: type[nn.Sequential]) -> nn.Module:
    return kind(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 6))


def test_a_part_in_evaluation_mode_from_the_start_is_recorded_as_it_is() -> None:
    accelerated(host(lambda: normed(Frozen)))


def test_batch_statistics_and_dropout_inside_are_those_of_the_native_run() -> None:
    accelerated(host(lambda: normed(nn.Sequential)))


def test_a_batch_norm_alone_may_be_in_evaluation_mode() -> None:
    accelerated(host(lambda: nn.Sequential(nn.Linear(5, 8), Frozen(nn.BatchNorm1d(8)), nn.Linear(8, 6))))


def test_everything_may_be_frozen_but_the_head() -> None:
    accelerated(host(lambda: plain().requires_grad_(False)))


def test_a_part_may_be_frozen_in_part() -> None:
    def partly() -> nn.Module:
        part = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6))
        part[0].requires_grad_(False)
        return part

    accelerated(host(partly))


# What goes in and comes out


class Trees(nn.Module):
    """Takes keywords and plain values, and returns a tree with plain values in it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 6), nn.Linear(5, 6)

    def forward(self, x: Tensor, *, pair: dict[str, Tensor], scale: float = 1.0, name: str = "") -> dict[str, Any]:
        both = self.one(x), self.two(pair["right"]) * scale
        return {"parts": [both, (both[0] + both[1],)], "name": name, "none": None, "size": len(x)}


def tree_step(model: Model, x: Tensor) -> Tensor:
    result = model.backbone(x[:, :5], pair={"right": x.flip(0)}, scale=0.5, name="tree")
    assert list(result) == ["parts", "name", "none", "size"]
    assert (result["name"], result["none"], result["size"]) == ("tree", None, 4)
    assert isinstance(result["parts"][0], tuple)
    loss: Tensor = model.head(result["parts"][1][0]).square().mean() + result["parts"][0][0].mean()
    return loss


def test_arguments_and_results_may_be_trees_with_plain_values() -> None:
    accelerated(host(Trees, tree_step))


def test_an_input_may_need_a_gradient() -> None:
    def step(model: Model, x: Tensor) -> Tensor:
        loss: Tensor = model.backbone(model.head.weight[:, :5] * x[:3]).square().mean()
        return loss

    accelerated(host(plain, step))


def test_of_two_calls_in_a_step_one_is_replayed() -> None:
    def step(model: Model, x: Tensor) -> Tensor:
        return forward(model, x) + forward(model, x.flip(1))

    replay = accelerated(host(plain, step))
    assert replay.tally.replayed <= replay.batches


def test_a_parameter_may_be_shared_with_the_rest() -> None:
    def step(model: Model, x: Tensor) -> Tensor:
        loss: Tensor = model.head(model.backbone(x)).square().mean() + model.backbone[2].weight.square().mean()
        return loss

    accelerated(host(plain, step))


class Twice(nn.Module):
    """Uses its input and its weight twice."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 5)
        self.out = nn.Linear(5, 6)

    def forward(self, x: Tensor) -> Any:
        return self.out(torch.tanh(self.body(torch.tanh(self.body(x)))) + 0.3 * x)


def weight_outside(model: Model, x: Tensor) -> Tensor:
    return forward(model, x) + model.backbone.body(x * 3).square().mean() * 0.7


def input_outside(model: Model, x: Tensor) -> Tensor:
    entering = x * model.head.bias.sum()
    loss: Tensor = forward(model, entering) + (torch.sin(entering) * 0.7).sum()
    return loss


def test_what_is_used_twice_inside_alone_may_be() -> None:
    accelerated(host(Twice))


@pytest.mark.parametrize("step", [weight_outside, input_outside])
def test_a_sum_that_others_add_to_in_between_retires_the_recording(step: Step) -> None:
    retired(host(Twice, step), "to which others add between its several uses")


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = plain()

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.body, x, use_reentrant=False)


class Reentrant(Checkpointed):
    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.body, x.requires_grad_(), use_reentrant=True)


def test_gradient_checkpointing_may_be_inside() -> None:
    accelerated(host(Checkpointed))


def test_reentrant_checkpointing_retires_the_recording() -> None:
    retired(host(Reentrant), "could not be recorded|cannot be recorded")


# What a recording would freeze


class Watched(nn.Module):
    """Does something in Python at every call."""

    def __init__(self, act: Callable[[Any], Any]) -> None:
        super().__init__()
        self.body, self.act = plain(), act
        self.last: Any = 0
        self.seen: list[int] = []
        self.figures = {"calls": 0}

    def forward(self, x: Tensor) -> Any:
        scale = self.act(self)
        return self.body(x) * (1 if scale is None else scale)


def count(part: Any) -> float:
    part.last += 1
    return 1 / float(part.last)


def append(part: Any) -> float:
    part.seen.append(0)
    return 1 / len(part.seen)


def count_inside(part: Any) -> float:
    part.figures["calls"] += 1
    return 1 / float(part.figures["calls"])


def keep(part: Any) -> None:
    part.last = torch.ones(1)


def make(part: Any) -> None:
    vars(part).setdefault("new", 1)


def add(part: Any) -> None:
    setattr(part, f"new_{len(vars(part))}", 1)


@pytest.mark.parametrize("act", [count, append, count_inside, keep])
def test_state_that_python_keeps_in_the_part_retires_the_recording(act: Callable[[Any], Any]) -> None:
    assert "attribute" in retired(host(lambda: Watched(act)), "attribute").verdict


def test_what_a_forward_makes_at_its_first_call_and_keeps_is_no_change() -> None:
    accelerated(host(lambda: Watched(make)))


def test_an_attribute_that_appears_later_retires_the_recording() -> None:
    retired(host(lambda: Watched(add)), "an attribute came or went")


@pytest.mark.parametrize("draw", [lambda part: np.random.rand(), lambda part: random.random()])
def test_random_numbers_of_the_host_retire_the_recording(draw: Callable[[Any], float]) -> None:
    retired(host(lambda: Watched(draw)), "draws random numbers on the host")


class ReadsAValue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = plain()

    def forward(self, x: Tensor) -> Any:
        return self.body(x) * (2 if x.sum().item() > 0 else 1)


def test_a_host_read_in_the_part_retires_the_recording() -> None:
    retired(host(ReadsAValue), "could not be recorded: .*reads a value back to the host")


def hooked() -> nn.Module:
    part = plain()
    part[1].register_forward_hook(lambda module, args, result: result * 2)  # type: ignore[operator]
    return part


def test_a_hook_inside_the_part_retires_the_recording() -> None:
    retired(host(hooked), "a hook was registered")


# What is on the part, and for how long


class During(Callback):
    """Acts once in the middle of a fit, when a recording is in use."""

    def __init__(self, act: Callable[[Host], None]) -> None:
        self.act, self.acted = act, False

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if trainer.global_step == 8:
            assert "forward" in vars(pl_module.get_submodule(PART))
            self.act(pl_module)  # type: ignore[arg-type]
            self.acted = True


def fit(act: Callable[[Host], None]) -> Host:
    """Fit once, accelerated, with ``act`` in the middle; return the fitted module."""
    made: list[Host] = []

    def module() -> Host:
        made.append(host(plain)())
        return made[-1]

    during, replay = During(act), NetworkReplay(module=PART, strict=True)
    with cpu_engine():
        run(module, batches, [replay, during])
    assert during.acted
    assert replay.tally.replayed > 3
    return made[0]


def test_the_forward_of_the_part_is_its_own_again_after_the_fit() -> None:
    assert not [name for name, part in fit(lambda module: None).named_modules() if "forward" in vars(part)]


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda part: pickle.loads(pickle.dumps(part))], ids=["deepcopy", "pickle"]
)
def test_a_copy_made_during_the_fit_runs_by_itself_and_can_be_accelerated(
    copied: Callable[[nn.Module], nn.Module],
) -> None:
    copies: list[nn.Module] = []

    def act(module: Host) -> None:
        part = module.model.backbone
        copies.append(copied(part))
        (twin,) = copies
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.zero_()
        assert not twin(torch.randn(4, 5)).any()
        assert not is_free(part)

    fit(act)
    assert is_free(copies[0])
    accelerated(host(lambda: copy.deepcopy(copies[0])))


def test_a_copy_made_during_the_fit_keeps_nothing_of_the_recording_alive() -> None:
    copies: list[nn.Module] = []
    module = fit(lambda module: copies.append(copy.deepcopy(module.model.backbone)))
    assert is_free(copies[0])
    reached, new = {id(copies[0])}, [vars(copies[0])]
    while new:
        new = [x for x in gc.get_referents(*new) if id(x) not in reached and not isinstance(x, type)]
        reached |= {id(x) for x in new}
    assert id(module.model.backbone) not in reached


# What the module does not have


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("model.bakbone", "model.backbone, model.head"),
        ("model.backbone.7.weight", "model.backbone.0, model.backbone.1, model.backbone.2"),
        ("backbone", "model"),
        ("", "model"),
    ],
)
def test_a_name_that_does_not_exist_is_refused_with_those_that_do(name: str, there: str) -> None:
    replay = NetworkReplay(module=name)
    with cpu_engine(), pytest.warns(AccelerationWarning, match="model") as warned:
        run(host(plain), batches, [replay])
    assert len([item for item in warned if item.category is AccelerationWarning]) == 1
    assert f"it needs a submodule {name!r}" in replay.verdict
    assert replay.verdict.endswith(f"such as {there}")


def test_a_part_may_go_by_any_of_its_names() -> None:
    def module() -> Host:
        made = host(plain)()
        made.alias = made.model.backbone
        return made

    replay = NetworkReplay(module="alias", strict=True)
    with cpu_engine():
        assert_parity(module, batches, [replay])


def test_without_a_name_the_answer_says_how_to_give_one() -> None:
    replay = NetworkReplay()
    with cpu_engine(), pytest.warns(AccelerationWarning, match="name a submodule with module="):
        run(host(plain), batches, [replay])


def test_a_forward_that_somebody_else_replaced_is_left_alone() -> None:
    def replaced() -> nn.Module:
        part = plain()
        part.forward = lambda x: type(part).forward(part, x) * 2  # type: ignore[method-assign]
        return part

    replay = NetworkReplay(module=PART)
    with cpu_engine(), pytest.warns(AccelerationWarning, match="forward that nobody else took"):
        assert_parity(host(replaced), batches, [replay], must_replay=False)


def test_parity_notices_a_part_that_is_not_the_same() -> None:
    one = run(host(plain), batches)
    other = run(host(plain, lambda model, x: forward(model, x) * 1.0000001), batches)
    assert first_difference(one, other) is not None
