"""The life of an acceleration in a fit: its states, and that nothing of it is left, however the fit ends."""

from __future__ import annotations

import copy
import gc
import io
import logging
import pickle
import signal
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateFinder, ModelCheckpoint
from lightning.pytorch.tuner import Tuner
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lucid_accel import Acceleration, AccelerationError, LossReplay, NetworkReplay
from lucid_accel.acceleration import State
from lucid_accel.site import Answer, Site, no, yes
from lucid_accel.testing import digest, first_difference, tiny_batches, tiny_detector
from lucid_core import seams
from lucid_core.seams import SeamConflict
from tests.accel.conftest import LOUD, Act, Net, Validated, batches, fit, trainer_for, warned


def body(**options: Any) -> NetworkReplay:
    return NetworkReplay(module="body", **options)


class States(Callback):
    """Notes the state of an acceleration at the end of every batch."""

    def __init__(self, watched: Acceleration) -> None:
        self._watched = watched
        self.seen: list[str] = []

    def on_train_batch_end(self, *_: Any) -> None:
        self.seen.append(str(self._watched.state))


# States


def test_it_is_armed_then_recorded_and_stays_so(tape: None) -> None:
    replay = body(strict=True)
    states = States(replay)
    assert replay.state is State.OFF
    fit([replay, states])
    assert states.seen == ["armed"] * 2 + ["recorded"] * 6
    assert replay.state is State.RECORDED
    assert (replay.tally.replayed, dict(replay.tally.native)) == (3, {"warmup": 4, "partial_batch": 1})


def test_freezing_a_layer_arms_it_again_and_records_once_more(tape: None) -> None:
    def freeze(_: Trainer, module: LightningModule) -> None:
        module.body[0].requires_grad_(False)  # type: ignore[index, operator]

    replay = body(strict=True)
    states = States(replay)
    fit([replay, states, Act("on_train_batch_start", 6, freeze)], max_epochs=3)
    # Two native steps, and a partial batch, come before the next recording.
    assert states.seen[5:] == ["recorded"] + ["armed"] * 3 + ["recorded"] * 15
    assert replay.tally.rearmed == ["the set of trainable parameters changed"]


def test_retired_is_the_end_for_this_fit(tape: None) -> None:
    def hook(_: Trainer, module: LightningModule) -> None:
        module.body.register_forward_hook(lambda *_: None)  # type: ignore[union-attr]

    replay = body()
    states = States(replay)
    module = Net()
    with warned():
        fit([replay, states, Act("on_train_batch_start", 5, hook)], module, max_epochs=2)
    assert states.seen[4:] == ["recorded"] + ["retired"] * 11
    assert replay.tally.replayed == 1
    assert "forward" not in vars(module.body)


# Ways out


def boom(*_: Any) -> None:
    raise ZeroDivisionError("boom")


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


class Broken(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return boom() if batch_idx == 6 else super().training_step(batch, batch_idx)


class BrokenInside(Net):
    """Raises within the seam while it is being recorded or warmed up."""

    def __init__(self) -> None:
        super().__init__()
        self.body.append(Fuse())


class Fuse(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return boom() if len(x) == 3 else x  # type: ignore[func-returns-value, return-value]


class Data(LightningDataModule):
    def train_dataloader(self) -> Any:
        return DataLoader(batches(), batch_size=None)  # type: ignore[arg-type]


class ValidatedData(Data):
    def val_dataloader(self) -> Any:
        return DataLoader(batches(2), batch_size=None)  # type: ignore[arg-type]


def plain(space: dict[str, Any]) -> dict[str, str]:
    """What is in an object: each name with its plain value, or with its type."""
    return {
        name: repr(value) if isinstance(value, bool | int | float | str | None) else type(value).__name__
        for name, value in space.items()
        if name not in ("_trainer", "_fabric")
    }


def footprint(trainer: Trainer, module: LightningModule) -> dict[str, Any]:
    """Everything in which an acceleration could have left something."""
    objects: dict[str, Any] = {"precision": trainer.precision_plugin, "strategy": trainer.strategy}
    objects |= {f"module {name}": part for name, part in module.named_modules()}
    objects |= {f"optimizer {n}": item for n, item in enumerate(trainer.optimizers)}
    objects["data"] = getattr(trainer, "datamodule", None) or nn.Module()
    found: dict[str, Any] = {place: plain(vars(item)) for place, item in objects.items()}
    found["hooks"] = [
        sum(len(table) for name, table in vars(part).items() if name.endswith("_hooks")) for part in module.modules()
    ]
    # Hooks on parameters are gone with the step, or a proof left them.
    found["tensor hooks"] = [len(x._backward_hooks or {}) for x in module.parameters()]
    found["values"] = digest(module.state_dict())
    found["gradients"] = digest([x.grad for x in module.parameters()])
    found["random"] = digest(torch.get_rng_state())
    found["modes"] = (gc.isenabled(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
    return found


def assert_free(module: LightningModule) -> None:
    """No seam of the module is claimed."""
    assert not seams._held.get(module)
    assert not any(seams._bound.get(part) for part in module.modules())


@contextmanager
def restored_interrupt() -> Iterator[None]:
    """Lightning leaves the signal ignored after one."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


Way = tuple[Callable[[], Net], str | None, int, Callable[..., None], dict[str, Any]]

#: A module, then a hook, the call of it, and what happens there; then settings.
WAYS: dict[str, Way] = {
    "the end": (Net, None, 0, boom, {}),
    "the end after validation": (Validated, None, 0, boom, {"max_epochs": 2, "num_sanity_val_steps": 1}),
    "training_step": (Broken, None, 0, boom, {}),
    "the seam itself": (BrokenInside, None, 0, boom, {}),
    "setup of a later callback": (Net, "setup", 0, boom, {}),
    "on_train_start of a later callback": (Net, "on_train_start", 0, boom, {}),
    "the first batch": (Net, "on_train_batch_start", 0, boom, {}),
    "between forward and backward, warming up": (Net, "on_before_backward", 2, boom, {}),
    "between forward and backward, proving": (Net, "on_before_backward", 3, boom, {}),
    "between forward and backward, replaying": (Net, "on_before_backward", 5, boom, {}),
    "after the backward": (Net, "on_after_backward", 4, boom, {}),
    "the optimizer": (Net, "on_before_optimizer_step", 5, boom, {}),
    "validation": (Validated, "on_validation_start", 1, boom, {}),
    "on_train_end of a later callback": (Net, "on_train_end", 0, boom, {}),
    "the keyboard": (Net, "on_before_backward", 5, interrupt, {}),
    "no epoch": (Net, None, 0, boom, {"max_epochs": 0}),
    "no batch": (Net, None, 0, boom, {"limit_train_batches": 0}),
    "max_steps in the middle of an epoch": (Net, None, 0, boom, {"max_epochs": 5, "max_steps": 11}),
    "fast_dev_run": (Validated, None, 0, boom, {"fast_dev_run": 6}),
    "barebones": (Net, None, 0, boom, {"barebones": True, **dict.fromkeys(LOUD)}),
}


@pytest.mark.parametrize("way", WAYS)
def test_whatever_ends_a_fit_leaves_everything_as_a_native_fit_does(tape: None, way: str) -> None:
    make, hook, count, happens, settings = WAYS[way]
    ends_well = hook is None and make not in (Broken, BrokenInside)
    error = None if ends_well else SystemExit if happens is interrupt else ZeroDivisionError
    left = []
    for accelerations in ([], [body(on_failure="raise")]):
        torch.manual_seed(0)
        module = make()
        trainer = trainer_for([*accelerations, *([Act(hook, count, happens)] if hook else [])], **settings)
        data = ValidatedData() if make is Validated else Data()
        with restored_interrupt(), warned(), nullcontext() if error is None else pytest.raises(error):
            trainer.fit(module, datamodule=data)
        left.append(footprint(trainer, module))
        assert_free(module)
        if accelerations:
            assert accelerations[0]._routers == []
    assert left[1] == left[0]


def test_everything_is_given_back_before_lightning_moves_the_model(tape: None) -> None:
    seen: list[tuple[list[Any], bool]] = []

    def look(_: Trainer, module: LightningModule) -> None:
        assert_free(module)
        seen.append((list(replay._routers), "forward" in vars(module.body)))

    fit([replay := body(strict=True), Act("on_train_end", 0, look)])
    assert seen == [([], False)]


def test_after_every_way_out_the_same_objects_fit_again(tape: None) -> None:
    outcomes = []
    for accelerations in ([], [body(strict=True)]):
        torch.manual_seed(0)
        module = Net()
        with pytest.raises(ZeroDivisionError):
            fit([*accelerations, Act("on_train_batch_start", 6, boom)], module)
        for _ in range(2):
            trainer = fit(accelerations, module, max_epochs=2)
        outcomes.append(footprint(trainer, module))
        if accelerations:
            assert accelerations[0].tally.replayed == 10
            assert accelerations[0].batches == 16
    assert outcomes[1] == outcomes[0]


class Leaky(Acceleration):
    """Its undo raises."""

    claims = ("step.network",)

    def eligible(self, site: Site) -> Answer:
        return yes()

    def install(self, site: Site) -> Callable[[], None]:
        return boom


@pytest.mark.filterwarnings("error")
def test_an_undo_that_raises_hides_neither_the_exception_nor_the_claims(caplog: pytest.LogCaptureFixture) -> None:
    leaky, module = Leaky(), Net()
    trainer = trainer_for([leaky])
    leaky.setup(trainer, module, "fit")
    leaky.on_train_start(trainer, module)
    with caplog.at_level(logging.WARNING, "lucid_accel"):
        leaky.on_exception(trainer, module, KeyboardInterrupt())
        leaky.on_exception(trainer, module, KeyboardInterrupt())
    assert_free(module)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("lucid_accel")]
    assert said == ["Leaky could not be removed cleanly"]


def test_hooks_of_the_end_may_come_in_any_order_and_often(tape: None) -> None:
    replay, module = body(), Net()
    trainer = trainer_for([replay])
    for _ in range(2):
        replay.on_exception(trainer, module, ValueError())
        replay.teardown(trainer, module, "fit")
        replay.setup(trainer, module, "fit")
        replay.teardown(trainer, module, "validate")
        assert seams._held[module]
        replay.teardown(trainer, module, "fit")
        assert_free(module)


def test_a_trial_of_the_tuner_is_left_alone(tape: None, tmp_path: Path) -> None:
    replay, module = body(), Net()
    module.lr = 0.1
    trainer = trainer_for([replay], default_root_dir=tmp_path)
    loader: Any = DataLoader(batches(), batch_size=None)  # type: ignore[arg-type]
    Tuner(trainer).lr_find(module, loader, num_training=6, update_attr=False)
    assert (replay.tally.replayed, replay.batches) == (0, 0)
    assert_free(module)
    assert "forward" not in vars(module.body)
    trainer.fit(module, loader)
    assert replay.tally.replayed == 3


def test_a_search_for_the_rate_before_the_fit_is_left_alone(tape: None, tmp_path: Path) -> None:
    replay, module = body(strict=True), Net()
    search = LearningRateFinder(num_training_steps=6, update_attr=False)
    fit([search, replay], module, default_root_dir=tmp_path)
    assert (replay.tally.replayed, replay.batches) == (3, 8)


def test_nothing_is_replayed_outside_training(tape: None) -> None:
    replay, module = body(strict=True), Validated()
    trainer = fit([replay], module, num_sanity_val_steps=2)
    before = (replay.tally.as_dict(), replay.state)
    trainer.validate(module, verbose=False)
    trainer.predict(module, DataLoader(batches(2), batch_size=None))  # type: ignore[arg-type]
    assert (replay.tally.as_dict(), replay.state) == before
    # Four sanity and validation batches, of which only those after the start met the seam.
    assert before[0]["native"]["eval"] == 2


# Claims


def test_two_owners_of_one_seam_are_an_error_that_names_both(tape: None) -> None:
    module = Net()
    with pytest.raises(
        SeamConflict, match=r"NetworkReplay\(.*\) wants step\.network, and NetworkReplay\(.*\) holds step\.network"
    ):
        fit([body(), body(proof="off")], module)
    assert_free(module)


class HeadsReplay(LossReplay):
    claims = ("step.network.heads",)

    def part(self, site: Site) -> nn.Module | None:
        return site.module.head  # type: ignore[return-value]


@pytest.mark.parametrize("order", [1, -1])
def test_a_part_of_a_claimed_seam_is_an_error_that_names_both(tape: None, order: int) -> None:
    module = Net()
    with pytest.raises(SeamConflict) as caught:
        fit([body(), HeadsReplay()][::order], module)
    for words in ("NetworkReplay", "step.network", "HeadsReplay", "step.network.heads"):
        assert words in str(caught.value)
    assert_free(module)


def test_the_same_one_twice_is_one_line_and_the_first_works(tape: None, caplog: pytest.LogCaptureFixture) -> None:
    one, two = body(strict=True), body(strict=True)
    with caplog.at_level(logging.INFO), warned() as texts:
        fit([one, two])
    lines = [record.getMessage() for record in caplog.records if "twice" in record.getMessage()]
    assert lines == ["NetworkReplay is named twice with the same options; the second one is ignored"]
    assert (texts, one.tally.replayed, two.state, two.tally.replayed) == ([], 3, State.OFF, 0)


def test_one_that_is_ineligible_holds_no_seam(tape: None) -> None:
    with warned() as texts:
        fit([NetworkReplay(module="nobody"), one := body()])
    assert (len(texts), one.tally.replayed) == (1, 3)


class Late(Acceleration):
    """Says no, or fails to answer, when training starts."""

    claims = ("step.network",)

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self._error = error

    def eligible(self, site: Site) -> Answer:
        if site.started and self._error is not None:
            raise self._error
        return no("it needs a moon", "there is none", "go where one is") if site.started else yes()

    def install(self, site: Site) -> Callable[[], None]:
        raise AssertionError("it said no")


@pytest.mark.parametrize("error", [None, ValueError("moon")])
def test_a_no_at_the_start_gives_the_seam_back_at_once(error: Exception | None) -> None:
    with warned() as texts:
        fit([Late(error), Act("on_train_batch_start", 1, lambda _, module: assert_free(module))])
    assert len(texts) == 1


# Copies


def test_copies_and_pickles_hold_options_only(tape: None) -> None:
    replay = body(proof="off", strict=True)
    copies: list[NetworkReplay] = []

    def keep(trainer: Trainer, _: LightningModule) -> None:
        copies.append(copy.deepcopy(trainer.callbacks)[0])  # type: ignore[attr-defined]
        copies.append(pickle.loads(pickle.dumps(replay)))

    fit([replay, Act("on_train_batch_end", 5, keep)])
    for made in copies:
        assert (made.module, made.proof, made.strict, made.state) == ("body", "off", True, State.OFF)
        assert (made.batches, made._routers) == (0, [])
        assert "log_dict" not in vars(made)
    fit([copies[0]])
    assert copies[0].tally.replayed == 4


@pytest.mark.slow
def test_copies_of_a_module_in_training_are_native_and_complete(tape: None) -> None:
    replays = [NetworkReplay(strict=True), LossReplay(strict=True)]
    copies: list[Any] = []

    def keep(_: Trainer, module: LightningModule) -> None:
        torch.save(module, io.BytesIO())
        torch.save(module.network, file := io.BytesIO())
        file.seek(0)
        copies.append((copy.deepcopy(module.network), pickle.loads(pickle.dumps(module.objective))))
        copies.append((torch.load(file, weights_only=False), copy.deepcopy(module).objective))
        images = tiny_batches(1)[0].images.float().div(255)
        counts = [replay.tally.replayed for replay in replays]
        for network, objective in copies:
            objective(network.train()(images), tiny_batches(1)[0].targets)
            assert vars(network).keys() == vars(module.network).keys()
        assert [replay.tally.replayed for replay in replays] == counts

    trainer = trainer_for([*replays, Act("on_train_batch_end", 5, keep)], max_epochs=1)
    trainer.fit(tiny_detector(), DataLoader(tiny_batches(7), batch_size=None))  # type: ignore[arg-type]
    assert len(copies) == 2


# Checkpoints


def test_checkpoints_of_the_middle_hold_nothing_of_it(tape: None, tmp_path: Path) -> None:
    outcomes = []
    for name, accelerations in (("native", []), ("replayed", [body(strict=True)])):
        torch.manual_seed(0)
        keep = ModelCheckpoint(tmp_path / name, every_n_train_steps=6, save_top_k=-1, filename="{step}")
        fit([*accelerations, keep], enable_checkpointing=True, max_epochs=2)
        checkpoint = torch.load(tmp_path / name / "step=6.ckpt", weights_only=False)
        checkpoint["callbacks"] = [sorted(state) for state in checkpoint["callbacks"].values()]
        outcomes.append(digest(checkpoint))
    assert first_difference(*outcomes) is None


@pytest.mark.parametrize("first", [[], [body()]])
@pytest.mark.parametrize("then", [[], [body(strict=True)]])
def test_a_run_is_resumed_with_and_without_it_alike(
    tape: None, tmp_path: Path, first: list[Callback], then: list[Callback]
) -> None:
    def train(accelerations: list[Callback], **settings: Any) -> Trainer:
        torch.manual_seed(0)
        return fit([copy.deepcopy(item) for item in accelerations], enable_checkpointing=False, **settings)

    train(first, max_epochs=1).save_checkpoint(tmp_path / "first")
    trainer = trainer_for(replays := [copy.deepcopy(item) for item in then], max_epochs=3)
    torch.manual_seed(1)
    trainer.fit(Net(), DataLoader(batches(), batch_size=None), ckpt_path=tmp_path / "first")  # type: ignore[arg-type]
    trainer.save_checkpoint(tmp_path / "then")
    outcome = digest(torch.load(tmp_path / "then", weights_only=False))
    assert all(item.tally.replayed == 10 for item in replays if isinstance(item, Acceleration))
    train([], max_epochs=1).save_checkpoint(tmp_path / "native first")
    trainer = trainer_for([], max_epochs=3)
    torch.manual_seed(1)
    trainer.fit(Net(), DataLoader(batches(), batch_size=None), ckpt_path=tmp_path / "native first")  # type: ignore[arg-type]
    trainer.save_checkpoint(tmp_path / "native then")
    assert first_difference(digest(torch.load(tmp_path / "native then", weights_only=False)), outcome) is None


def test_a_strict_error_at_the_end_comes_after_the_release(tape: None) -> None:
    module = Net()
    with pytest.raises(AccelerationError, match="idle"):
        fit([body(strict=True)], module, limit_train_batches=1)
    assert_free(module)
    assert "forward" not in vars(module.body)


def test_an_acceleration_that_outlives_the_fit_keeps_no_module_alive(tape: None) -> None:
    replay = body(strict=True)
    with pytest.raises(ZeroDivisionError):
        fit([replay, Act("on_train_batch_start", 6, boom)], Net())
    fit([replay], module := Net())
    died = weakref.ref(module)
    # Lightning sets these on every callback.
    del module, replay.log, replay.log_dict
    gc.collect()
    assert died() is None


@pytest.mark.parametrize("option", ["proof", "keep", "on_failure"])
def test_an_option_that_is_misspelt_is_refused_with_those_that_there_are(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} is 'alwyas'; it must be one of '"):
        LossReplay(**{option: "alwyas"})  # type: ignore[arg-type]
