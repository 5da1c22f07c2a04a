"""One callback that arms the best accelerations: which, in which order, and that nothing of it is left."""

from __future__ import annotations

import copy
import io
import json
import logging
import pickle
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateFinder, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from lucid_accel import (
    Acceleration,
    AccelerationWarning,
    AutoAccelerate,
    GradientNormReplay,
    LossReplay,
    NetworkReplay,
    OrthogonalizationReplay,
    StepReplay,
    UpdateReplay,
    auto,
)
from lucid_accel.auto import best
from lucid_accel.catalogue import Offer
from lucid_accel.report import FILE
from lucid_accel.site import Answer, Site, no, yes
from lucid_accel.state import State
from lucid_accel.testing import digest, first_difference, run, tiny_batches, tiny_detector
from lucid_core import seams
from lucid_core.seams import claim
from tests.accel.conftest import Act, Net, Validated, batches, fit, trainer_for, warned
from tests.accel.muon import Muon

OURS = (GradientNormReplay, LossReplay, NetworkReplay, OrthogonalizationReplay, StepReplay, UpdateReplay)


class Told(Acceleration):
    """An acceleration of another package, that does as it is told."""

    answer: Answer = yes()

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def eligible(self, site: Site) -> Answer:
        self.calls.append(f"eligible {site.started}")
        return self.answer

    def install(self, site: Site) -> Callable[[], None]:
        self.calls.append("install")
        return lambda: self.calls.append("undo")

    def on_train_batch_start(self, *args: Any, **kwargs: Any) -> None:
        super().on_train_batch_start(*args, **kwargs)
        self.replayed()

    def on_fit_end(self, *_: Any) -> None:
        self.calls.append("fit end")


class Whole(Told):
    claims = ("step", "update")


class Part(Told):
    claims = ("step.network",)


class Deep(Told):
    claims = ("step.network.heads",)


class Rest(Told):
    claims = ("update.norm",)


class Beside(Told):
    """Takes no part of the step."""


class Loose(Told):
    claims = ("step",)
    numerics = "tolerance"


class Fussy(Told):
    claims = ("step", "update", "ema")

    def __init__(self, needed: int) -> None:
        super().__init__()


NO = no("it needs a moon", "there is none", "go where one is")


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let these be what is installed."""

    def offer(*kinds: type) -> None:
        monkeypatch.setattr(auto, "offers", lambda: [Offer(kind, "somewhere 1.0") for kind in kinds])

    return offer


Offered = Callable[..., None]


def armed(callback: AutoAccelerate) -> list[str]:
    return [item.name for item in callback.members]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    texts = [record.getMessage() for record in caplog.records]
    return [text for text in texts if "AutoAccelerate" in text]


# Which


def test_the_largest_part_goes_first_and_what_it_contains_is_left_out() -> None:
    items = [Deep(), Rest(), Part(), Beside(), Whole()]
    assert [item.name for item in best(items, [], lambda _: True)] == ["Whole", "Beside"]
    assert [item.name for item in best(items, ["step.network.heads"], lambda _: True)] == ["Rest", "Beside"]
    assert [item.name for item in best(items, ["ema"], lambda item: item.name != "Whole")] == ["Part", "Rest", "Beside"]


def test_what_cannot_run_gives_way_and_what_is_contained_is_not_asked() -> None:
    asked: list[str] = []

    def can(item: Acceleration) -> bool:
        asked.append(item.name)
        return item.name != "Whole"

    best([Deep(), Rest(), Part(), Beside(), Whole()], [], can)
    assert asked == ["Whole", "Part", "Rest", "Beside"]


def test_of_ours_the_whole_step_goes_first_and_the_update_before_its_inside() -> None:
    ours = [kind() for kind in OURS]
    assert [item.name for item in best(ours, [], lambda _: True)] == ["StepReplay"]
    without = best(ours, [], lambda item: not isinstance(item, StepReplay))
    assert {item.name for item in without} == {"NetworkReplay", "LossReplay", "GradientNormReplay", "UpdateReplay"}


def test_those_of_other_bytes_and_those_that_need_an_option_are_not_armed(tape: None, offered: Offered) -> None:
    offered(Loose, Fussy, Part)
    fit([callback := AutoAccelerate()])
    assert armed(callback) == ["Part"]


def test_one_that_the_run_names_stays_and_what_conflicts_with_it_is_not_armed(offered: Offered) -> None:
    offered(Whole, Part, Deep, Rest)
    for order in (1, -1):
        named = Deep()
        callback = AutoAccelerate()
        fit([named, callback][::order])
        assert armed(callback) == ["Rest"]
        assert named.calls[-2:] == ["undo", "fit end"]


def test_one_of_the_kind_that_the_run_names_is_not_armed_again(offered: Offered) -> None:
    offered(Beside, Rest)
    fit([Beside(), callback := AutoAccelerate()])
    assert armed(callback) == ["Rest"]


def test_a_no_gives_way_to_the_next_ones(
    offered: Offered, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    offered(Whole, Part, Rest)
    monkeypatch.setattr(Whole, "answer", NO)
    with caplog.at_level(logging.INFO), warned() as texts:
        fit([callback := AutoAccelerate()])
    assert texts == []
    assert armed(callback) == ["Part", "Rest"]
    assert lines(caplog) == [
        "AutoAccelerate arms Part, Rest; not Whole: it needs a moon, but there is none. To get a yes: go where one is"
    ]


def test_one_that_cannot_be_installed_gives_way_too_and_says_so_itself(
    offered: Offered, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise MemoryError("full")

    offered(Whole, Part)
    monkeypatch.setattr(Whole, "install", fail)
    with warned() as texts:
        fit([callback := AutoAccelerate()])
    assert [item.state for item in callback.members] == [State.RETIRED, State.ARMED]
    assert len(texts) == 1
    assert "Whole is retired" in texts[0]


def test_a_part_that_a_stranger_holds_is_left_to_him(offered: Offered, caplog: pytest.LogCaptureFixture) -> None:
    offered(Whole, Part, Rest)
    module = Net()
    held = claim(module, "update.prepare", "Stranger")
    with caplog.at_level(logging.INFO), warned():
        fit([callback := AutoAccelerate()], module)
    held.release()
    assert armed(callback) == ["Part", "Rest"]
    assert (
        "not Whole: it needs its part of the step, but Whole wants update, and Stranger holds update.prepare"
        in (lines(caplog)[0])
    )
    assert not seams._held.get(module)


def test_a_question_that_fails_is_a_no(offered: Offered, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise KeyError("x")

    offered(Whole, Part)
    monkeypatch.setattr(Whole, "eligible", fail)
    fit([callback := AutoAccelerate()])
    assert armed(callback) == ["Part"]


# What is said


def test_without_a_gpu_one_line_in_all_says_so(offered: Offered, caplog: pytest.LogCaptureFixture) -> None:
    offered(*OURS)
    with caplog.at_level(logging.INFO), warned() as texts:
        fit([AutoAccelerate()])
    assert texts == []
    assert lines(caplog) == [
        "AutoAccelerate arms nothing: it needs an NVIDIA GPU, but this run computes on cpu. To get a yes: train on one"
    ]


def test_where_all_is_named_or_nothing_is_offered_the_line_says_so(
    offered: Offered, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), warned():
        offered(Whole, Part)
        fit([Whole(), AutoAccelerate()])
        offered()
        fit([AutoAccelerate()])
    assert lines(caplog) == [
        "AutoAccelerate arms nothing beside Whole",
        "AutoAccelerate arms nothing: no installed plugin offers an acceleration",
    ]


def test_a_fit_that_never_begins_says_nothing(offered: Offered, caplog: pytest.LogCaptureFixture) -> None:
    offered(*OURS)
    with caplog.at_level(logging.INFO):
        fit([AutoAccelerate()], limit_train_batches=0)
    assert lines(caplog) == []


def test_it_is_in_the_report_through_its_members(tape: None, offered: Offered, tmp_path: Path) -> None:
    offered(GradientNormReplay, UpdateReplay)
    # One that the run names comes after it in the list, and reports with the others, whatever ends the fit.
    for boom in (False, True):
        callbacks: list[Callback] = [AutoAccelerate(), named := NetworkReplay(module="body")]
        callbacks += [Act("on_train_batch_start", 6, explode)] if boom else []
        logger = CSVLogger(tmp_path, "run", version=int(boom))
        try:
            fit(callbacks, Muon(), gradient_clip_val=1.0, logger=logger)
        except ZeroDivisionError:
            assert boom
        rows = json.loads((tmp_path / "run" / f"version_{int(boom)}" / FILE).read_text())["accelerations"]
        assert {row["name"]: row["keep"] for row in rows} == dict.fromkeys(
            ("NetworkReplay", "UpdateReplay", "GradientNormReplay"), "auto"
        )
        assert all(row["replayed"] for row in rows), rows
        assert named.tally.replayed


def explode(*_: Any) -> None:
    raise ZeroDivisionError("boom")


# Fits


@pytest.mark.slow
def test_a_detector_has_the_bytes_of_a_native_fit(tape: None, offered: Offered) -> None:
    offered(*OURS)
    settings: dict[str, Any] = {"max_epochs": 2, "gradient_clip_val": 10.0}
    native = run(tiny_detector, tiny_batches, **settings)
    accelerated = run(tiny_detector, tiny_batches, [callback := AutoAccelerate()], **settings)
    assert first_difference(native, accelerated) is None
    assert armed(callback) == ["StepReplay"]
    assert callback.members[0].tally.replayed


@pytest.mark.slow
def test_where_the_whole_step_says_no_its_parts_are_armed_and_have_the_bytes(
    tape: None, offered: Offered, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(*OURS)
    monkeypatch.setattr(StepReplay, "eligible", lambda *_: NO)
    settings: dict[str, Any] = {"max_epochs": 2, "gradient_clip_val": 10.0}
    native = run(tiny_detector, tiny_batches, **settings)
    accelerated = run(tiny_detector, tiny_batches, [callback := AutoAccelerate()], **settings)
    assert first_difference(native, accelerated) is None
    assert set(armed(callback)) == {"NetworkReplay", "LossReplay", "GradientNormReplay", "UpdateReplay"}
    assert all(item.tally.replayed for item in callback.members)


class Order(Callback):
    """Notes which hooks it got, and who else is a callback then."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith(("on_", "setup", "teardown")):
            return lambda trainer, *_, **__: self.seen.append((name, len(trainer.callbacks)))
        return super().__getattribute__(name)


def test_no_other_callback_misses_a_hook_and_the_list_is_as_before(offered: Offered, tmp_path: Path) -> None:
    def hooks(callbacks: Sequence[Callback], first: Callback, last: Callback) -> list[list[str]]:
        fit([first, *callbacks, last], Validated(), num_sanity_val_steps=1)
        return [[name for name, _ in order.seen] for order in (first, last)]  # type: ignore[attr-defined]

    offered(Part, Rest)
    with warned():
        native = hooks([], Order(), Order())
        assert hooks([AutoAccelerate()], Order(), Order()) == native
    before = [first := Order(), AutoAccelerate(), Order(), ModelCheckpoint(tmp_path)]
    with warned():
        trainer = fit(before, enable_checkpointing=True)
    assert trainer.callbacks == before  # type: ignore[attr-defined]
    counts = dict(first.seen)
    assert (counts["on_train_start"], counts["on_train_batch_end"], counts["on_train_end"]) == (4, 6, 6)


def test_members_get_every_hook_from_the_start_of_training_on(offered: Offered) -> None:
    offered(Part)
    with warned():
        fit([callback := AutoAccelerate(), Order()])
    (member,) = callback.members
    assert member.calls == ["eligible True", "eligible False", "eligible True", "install", "undo", "fit end"]  # type: ignore[attr-defined]
    assert member.batches == 8


@pytest.mark.parametrize("where", ["on_train_start", "on_train_batch_start", "on_train_end", "on_fit_end"])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_however_a_fit_ends_nothing_is_left_and_the_next_one_is_as_the_first(
    offered: Offered, where: str, first: bool, error: type[BaseException]
) -> None:
    def fail(*_: Any) -> None:
        raise error

    offered(Part, Rest)
    module, failing = Net(), Act(where, 0, fail)
    callback = AutoAccelerate()
    trainer = trainer_for(before := [failing, callback] if first else [callback, failing])
    with warned(), pytest.raises((ZeroDivisionError, SystemExit)):
        trainer.fit(module, torch.utils.data.DataLoader(batches(), batch_size=None))  # type: ignore[arg-type]
    assert trainer.callbacks == before  # type: ignore[attr-defined]
    assert not seams._held.get(module)
    assert all(item.calls.count("install") == item.calls.count("undo") for item in callback.members)  # type: ignore[attr-defined]
    with warned():
        again = fit([callback], module)
    assert armed(callback) == ["Part", "Rest"]
    assert again.callbacks == [callback]  # type: ignore[attr-defined]


def test_a_warning_that_is_an_error_while_arming_leaves_nothing(
    offered: Offered, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise MemoryError("full")

    offered(Whole, Beside)
    monkeypatch.setattr(Beside, "install", fail)
    module = Net()
    callback = AutoAccelerate()
    with warnings.catch_warnings():
        warnings.simplefilter("error", AccelerationWarning)
        with pytest.raises(AccelerationWarning):
            fit([callback], module)
    assert not seams._held.get(module)
    assert callback.members[0].calls[-1] == "undo"  # type: ignore[attr-defined]


def test_callbacks_that_others_add_or_take_away_stay_so(offered: Offered) -> None:
    class Changing(Callback):
        def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
            if late not in trainer.callbacks:  # type: ignore[attr-defined]
                trainer.callbacks = [x for x in trainer.callbacks if x is not leaving] + [late]  # type: ignore[attr-defined]

    late, leaving = Callback(), Callback()
    offered(Part)
    callbacks = [AutoAccelerate(), leaving, changing := Changing()]
    with warned():
        trainer = fit(callbacks)
    assert trainer.callbacks == [callbacks[0], changing, late]  # type: ignore[attr-defined]


def test_two_of_them_are_as_one(offered: Offered) -> None:
    offered(Part, Rest)
    with warned():
        trainer = fit(both := [AutoAccelerate(), AutoAccelerate()])
    assert [armed(item) for item in both] == [["Part", "Rest"], []]
    assert trainer.callbacks == both  # type: ignore[attr-defined]


def test_one_trainer_fits_twice(offered: Offered) -> None:
    offered(Part)
    trainer = trainer_for(before := [callback := AutoAccelerate()])
    with warned():
        for epochs in (1, 2):
            trainer.fit_loop.max_epochs = epochs
            trainer.fit(Net(), torch.utils.data.DataLoader(batches(), batch_size=None))  # type: ignore[arg-type]
            assert armed(callback) == ["Part"]
            assert trainer.callbacks == before  # type: ignore[attr-defined]
            trainer.callbacks = before = [Callback(), callback]  # type: ignore[attr-defined]


def test_a_search_for_the_learning_rate_is_native(tape: None, offered: Offered, tmp_path: Path) -> None:
    class Tuned(Net):
        lr = 0.05

    offered(NetworkReplay, Part)
    finder = LearningRateFinder(num_training_steps=4)
    with warned():
        trainer = fit([finder, callback := AutoAccelerate()], Tuned(), default_root_dir=tmp_path)
    assert callback.members[0].batches == 8
    assert finder in trainer.callbacks  # type: ignore[attr-defined]
    assert not [item for item in trainer.callbacks if isinstance(item, Acceleration)]  # type: ignore[attr-defined]


def test_copies_and_checkpoints_hold_nothing_of_it(tape: None, offered: Offered, tmp_path: Path) -> None:
    offered(GradientNormReplay, UpdateReplay)
    callback = AutoAccelerate()
    copies: list[Any] = []

    def keep(trainer: Trainer, module: LightningModule) -> None:
        assert armed(callback)
        copies.extend((copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))))
        torch.save(module, io.BytesIO())

    outcomes = []
    for name, callbacks in (("native", []), ("replayed", [callback, Act("on_train_batch_end", 5, keep)])):
        torch.manual_seed(0)
        saving = ModelCheckpoint(tmp_path / name, every_n_train_steps=6, save_top_k=-1, filename="{step}")
        fit([*callbacks, saving], Muon(), enable_checkpointing=True, gradient_clip_val=1.0, max_epochs=2)
        checkpoint = torch.load(tmp_path / name / "step=12.ckpt", weights_only=False)
        checkpoint["callbacks"] = [sorted(state) for state in checkpoint["callbacks"].values()]
        outcomes.append(digest(checkpoint))
    assert first_difference(*outcomes) is None
    assert all(item.tally.replayed for item in callback.members)
    for made in copies:
        assert (made.members, made._before) == ((), None)
        with warned():
            fit([made], Muon(), gradient_clip_val=1.0)
        assert set(armed(made)) == {"GradientNormReplay", "UpdateReplay"}


@pytest.mark.gpu
@pytest.mark.slow
def test_on_a_gpu_the_whole_step_is_armed_and_its_payoff_is_reported(offered: Offered) -> None:
    offered(*OURS)
    settings: dict[str, Any] = {"accelerator": "gpu", "devices": 1, "precision": "bf16-mixed", "max_epochs": 30}

    def made() -> list[Any]:
        return tiny_batches(11, 4, 320)[:-1]

    native = run(tiny_detector, made, **settings)
    accelerated = run(tiny_detector, made, [callback := AutoAccelerate()], **settings)
    assert first_difference(native, accelerated) is None
    assert armed(callback) == ["StepReplay"]
    (member,) = callback.members
    assert member.finding is not None
    assert member.finding.kept
    assert member.finding.pairs >= 6
    assert member.finding.held_bytes > 0
    assert member.finding.free_bytes is not None
