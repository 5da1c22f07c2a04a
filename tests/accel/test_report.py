"""What a fit reports of its accelerations: on screen, in a file, through the logger; after whatever ended it."""

from __future__ import annotations

import csv
import json
import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger

from lucid_accel import AccelerationError, LossReplay, NetworkReplay, StepReplay, UpdateReplay
from lucid_accel.clock import FitClock
from lucid_accel.reasons import Reason
from lucid_accel.report import FILE, collect
from tests.accel.conftest import Act, Net, Validated, fit, warned
from tests.accel.muon import Muon


def body(**options: Any) -> NetworkReplay:
    return NetworkReplay(module="body", **options)


def hook(_: Trainer, module: LightningModule) -> None:
    module.body.register_forward_hook(lambda *_: None)  # type: ignore[union-attr]


def boom(*_: Any) -> None:
    raise ZeroDivisionError("boom")


def reported(folder: Path, callbacks: list[Callback], module: LightningModule | None = None, **settings: Any) -> Any:
    """The report in the run's folder."""
    fit(callbacks, module, logger=CSVLogger(folder, "run", version=0), **settings)
    return read(folder)


def read(folder: Path) -> Any:
    return json.loads((folder / "run" / "version_0" / FILE).read_text())


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is on screen of accelerations."""
    return [record.getMessage() for record in caplog.records if "Accelerations:" in record.getMessage()]


def change_nothing(*_: Any) -> None: ...


@pytest.mark.parametrize(
    ("module", "act", "eval_calls", "native"),
    [
        (Net, change_nothing, 0, {"warmup": 4, "partial_batch": 3}),
        (Validated, change_nothing, 6, {"warmup": 4, "partial_batch": 3, "eval": 6}),
        (Net, hook, 0, {"warmup": 4, "partial_batch": 1, "hooks": 1, "retired": 13}),
    ],
)
def test_replayed_and_native_calls_are_all_the_batches(
    tape: None, tmp_path: Path, module: type[Net], act: Any, eval_calls: int, native: dict[str, int]
) -> None:
    with warned():
        made = reported(
            tmp_path, [body(), Act("on_train_batch_start", 10, act)], module(), max_epochs=3, num_sanity_val_steps=1
        )
    (row,) = made["accelerations"]
    assert row["native"] == native
    assert row["steps"] == 24
    assert row["replayed"] + sum(native.values()) == 24 + eval_calls
    assert set(row["native"]) <= {str(reason) for reason in Reason}
    assert row["first_batch"]["warmup"] == 0
    assert row["first_batch"]["partial_batch"] == 7


def test_a_row_says_state_verdict_proofs_and_costs(tape: None, tmp_path: Path) -> None:
    made = reported(tmp_path, [body()])
    (row,) = made["accelerations"]
    assert (row["name"], row["state"], row["numerics"], row["verdict"]) == ("NetworkReplay", "recorded", "bitwise", "")
    assert (row["proofs"], row["rearmed"], row["reserved_bytes"]) == (1, [], 0)
    assert 0 < row["setup_seconds"] < made["fit_seconds"]


def test_the_screen_shows_one_report_for_all(tape: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), warned():
        fit([LossReplay(), body()])
    (text,) = lines(caplog)
    assert "NetworkReplay: 3 of 8 steps replayed, native: 4 warmup, 1 partial_batch" in text.replace(
        "1 partial_batch, 4 warmup", "4 warmup, 1 partial_batch"
    )
    assert "bytes proven equal 1x, set-up" in text
    # Whoever takes the time is not the one that replays.
    assert ", natively about " in text
    assert "LossReplay: 0 of 8 steps replayed" in text
    assert "it needs the seam step.objective.detection" in text


def test_where_all_is_ineligible_the_screen_has_the_warning_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), warned() as texts:
        made = reported(tmp_path, [LossReplay(), body()])
    assert len(texts) == 2
    assert lines(caplog) == []
    assert [(row["state"], row["replayed"], row["native"]) for row in made["accelerations"]] == [
        ("ineligible", 0, {})
    ] * 2
    assert all("it needs an NVIDIA GPU" in row["verdict"] for row in made["accelerations"])


def test_the_one_that_was_ignored_is_not_in_it(tape: None, tmp_path: Path) -> None:
    made = reported(tmp_path, [body(), body()])
    assert len(made["accelerations"]) == 1


def test_scalars_go_through_the_logger(tape: None, tmp_path: Path) -> None:
    reported(tmp_path, [body()])
    with (tmp_path / "run" / "version_0" / "metrics.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    assert (last["accel/NetworkReplay/replayed"], last["accel/NetworkReplay/steps"]) == ("3.0", "8.0")
    assert last["step"] == "8"


def test_idleness_is_in_the_report_of_the_last_one_too(tape: None, tmp_path: Path) -> None:
    with warned() as texts:
        made = reported(tmp_path, [body()], limit_train_batches=2)
    assert len(texts) == 1
    assert made["accelerations"][0]["verdict"] == "idle: none of 2 steps were replayed: 2 warmup"


def test_a_strict_error_of_idleness_is_reported_first(tape: None, tmp_path: Path) -> None:
    with pytest.raises(AccelerationError, match="idle"):
        reported(tmp_path, [body(strict=True)], limit_train_batches=2)
    assert "idle" in read(tmp_path)["accelerations"][0]["verdict"]


def test_a_fit_that_ends_with_an_exception_is_reported_once(
    tape: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(ZeroDivisionError):
        reported(tmp_path, [body(), Act("on_train_batch_start", 6, boom)])
    assert len(lines(caplog)) == 1
    (row,) = read(tmp_path)["accelerations"]
    assert (row["replayed"], row["steps"]) == (2, 7)


def test_an_exception_after_the_report_makes_no_second_one(tape: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(ZeroDivisionError):
        fit([body(), Act("on_train_end", 0, boom)])
    assert len(lines(caplog)) == 1


def test_a_fit_that_never_began_reports_nothing(tape: None, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        fit([body()], limit_train_batches=0, logger=CSVLogger(tmp_path, "run", version=0))
        with pytest.raises(ZeroDivisionError):
            fit([body(), Act("on_train_start", 0, boom)], logger=CSVLogger(tmp_path, "run", version=0))
    assert lines(caplog) == []
    assert not (tmp_path / "run" / "version_0" / FILE).exists()


class Full(CSVLogger):
    """A logger whose disk is full."""

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:  # type: ignore[override]
        raise OSError("no space left")


def test_a_report_that_cannot_be_written_ends_no_run(
    tape: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    replay = body(strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", module="lightning")
        warnings.filterwarnings("ignore", message=".*(workers|logging interval|log_every_n_steps).*")
        fit([replay], logger=Full(tmp_path, "run", version=0), log_every_n_steps=100)
    assert replay.tally.replayed == 3
    assert [record.getMessage() for record in caplog.records if record.name.startswith("lucid_accel")] == [
        "the report on accelerations could not be written"
    ]


def test_a_second_fit_is_reported_on_its_own(tape: None, tmp_path: Path) -> None:
    replay, module = body(), Net()
    reported(tmp_path, [replay], module)
    made = reported(tmp_path, [replay], module, max_epochs=2)
    assert (made["accelerations"][0]["steps"], made["accelerations"][0]["replayed"]) == (16, 10)


def test_the_clock_leaves_what_recording_took_out_of_the_native_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 3.0, 5.0, 6.0, 6.5, 7.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now, 10.0))
    clock = FitClock()
    for replayed in (False, False, False, True, True, True):
        clock.step(replayed)
    assert clock.steps() == (2.0, 0.5)
    # Ten seconds less three of recording, and three replays that would have taken 1.5 s more each.
    replay = body()
    replay.spent(3.0)
    assert collect([replay], clock)["native_estimate_seconds"] == 11.5


def test_one_step_of_a_kind_is_no_median() -> None:
    clock = FitClock()
    for replayed in (False, False, True):
        clock.step(replayed)
    assert clock.steps() == (None, None)
    clock.step(True)
    native, replay = clock.steps()
    assert native is None and replay is not None


def test_without_both_kinds_of_steps_there_is_no_estimate() -> None:
    clock = FitClock()
    for _ in range(4):
        clock.step(False)
    assert clock.native_seconds(0.0) is None


def test_steps_that_recorded_or_proved_tell_of_no_kind_of_step(tape: None, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    count = FitClock.step

    def noting(self: FitClock, replayed: bool, setup: bool = False) -> None:
        steps.append((replayed, setup))
        count(self, replayed, setup)

    monkeypatch.setattr(FitClock, "step", noting)
    fit([UpdateReplay(strict=True)], Muon())
    assert steps[:4] == [(False, False), (False, True), (False, True), (True, False)]
    assert set(steps[4:]) == {(True, False)}


def test_the_time_of_such_a_step_is_left_out() -> None:
    clock = FitClock()
    for _ in range(5):
        clock.step(False, setup=True)
    assert clock.steps() == (None, None)


@pytest.mark.parametrize("module", [Net, Muon])
def test_parts_beside_the_step_are_told_and_so_is_what_stays_native(
    module: type[Net], tape: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    report = reported(tmp_path, [StepReplay(strict=True)], module(), max_epochs=3, gradient_clip_val=1.0)
    (row,) = report["accelerations"]
    (said,) = lines(caplog)
    if module is Muon:
        calls = {"missing_grad": 7, "replayed": 14, "warmup": 3}
        assert row["beside"] == {"clipping": calls, "update": calls} and row["without"] == ""
        assert "\n    replayed beside it: clipping 14x, update 14x" in said and "    native: " not in said
    else:
        assert row["beside"] == {"clipping": {"missing_grad": 7, "replayed": 14, "warmup": 3}}
        assert row["without"].startswith("the update, which needs MuSGD")
        assert f"\n    native: {row['without']}" in said


def test_a_part_that_is_never_replayed_says_why(tape: None, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody exchanges a gradient in every step."""
    caplog.set_level(logging.INFO)

    def exchange(_: Trainer, module: LightningModule) -> None:
        for x in module.parameters():
            x.grad = None if x.grad is None else x.grad.clone()

    acts: list[Callback] = [Act("on_after_backward", n, exchange) for n in range(24)]
    (row,) = reported(tmp_path, [StepReplay(strict=True), *acts], Muon(), max_epochs=3)["accelerations"]
    assert row["beside"]["update"] == {"missing_grad": 24, "replayed": 0}
    assert "\n    replayed beside it: update 0x (native: 24 missing_grad)\n" in lines(caplog)[0]
