"""Keep what pays: what is timed, what is decided, and that fits keep their bytes whatever is."""

from __future__ import annotations

import copy
import gc
import json
import logging
import math
import pickle
import random
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lucid_accel import Acceleration, GradientNormReplay, NetworkReplay, StepReplay
from lucid_accel.clock import FitClock
from lucid_accel.finding import Finding, interval, judge
from lucid_accel.graphs.engine import Graph, use_engine
from lucid_accel.graphs.tape import TapeEngine
from lucid_accel.payoff import LIMIT, Payoff, Progress
from lucid_accel.reasons import Reason
from lucid_accel.report import FILE
from lucid_accel.state import State
from lucid_accel.tally import Tally
from lucid_accel.testing import assert_parity
from lucid_accel.windows import Windows
from tests.accel.conftest import Act, Batches, Net, Validated, batches, fit, trainer_for, warned

T = TypeVar("T")


# What follows from times


def test_the_interval_of_six_is_from_end_to_end_and_that_of_nine_leaves_one_out_on_each_side() -> None:
    assert interval([3, 1, 2, 6, 5, 4]) == (1, 6)
    assert interval(range(9)) == (1, 7)
    assert interval(range(12)) == (2, 9)
    assert interval([7, 5]) == (5, 7)


@pytest.mark.parametrize("n", [6, 7, 9, 15])
def test_the_interval_holds_the_median_of_skewed_values_in_95_percent(n: int) -> None:
    draw = random.Random(0)
    held = 0
    for _ in range(4000):
        low, high = interval([draw.expovariate(1.0) for _ in range(n)])
        held += low <= math.log(2) <= high
    assert 0.945 < held / 4000 < 0.995


#: Differences of pairs around none, in seconds.
NOISE = (-0.002, 0.001, 0.002, -0.001, 0.0015, -0.0015)


@pytest.mark.parametrize(
    ("gain", "noisy", "left", "to_pay", "kept", "clear"),
    [
        (0.010, True, 1000, 0.5, True, True),
        (0.010, True, math.inf, 0.5, True, True),
        (-0.010, True, 1000, 0.0, False, True),
        (-0.010, True, math.inf, 0.0, False, True),
        # It saves time, and less than it costs.
        (0.010, False, 40, 0.5, False, True),
        (0.010, True, 51, 0.5, True, False),
        (0.010, True, 49, 0.5, False, False),
        # Faster in the median, and perhaps not at all.
        (0.001, True, 1000, 0.0, False, False),
        (0.0, False, math.inf, 0.0, False, True),
    ],
)
def test_it_is_kept_where_it_is_shown_to_save_and_is_expected_to_save_more_than_it_costs(
    gain: float, noisy: bool, left: float, to_pay: float, kept: bool, clear: bool
) -> None:
    pairs = [(0.1 + noisy * noise, 0.1 - gain) for noise in NOISE]
    finding, sure = judge(pairs, left, to_pay)
    assert (finding.kept, sure) == (kept, clear)
    assert finding.why.startswith("kept: " if kept else "does not pay: ")


def test_a_finding_has_the_numbers_of_a_step_in_milliseconds() -> None:
    pairs = [(0.030, 0.020), (0.031, 0.020), (0.032, 0.020), (0.033, 0.021), (0.034, 0.020), (0.035, 0.020)]
    finding, _ = judge(pairs, 500, 1.25)
    assert (finding.native_ms, finding.replayed_ms, finding.pairs) == (pytest.approx(32.5), pytest.approx(20.0), 6)
    assert finding.saved_ms == pytest.approx(12.0)
    assert finding.interval_ms == (pytest.approx(10.0), pytest.approx(15.0))
    assert (finding.steps_left, finding.to_pay_seconds, finding.saves_seconds) == (500, 1.25, pytest.approx(6.0))
    assert finding.why == (
        "kept: a step took 20.00 ms, natively 32.50 ms; it saves 12.00 ms (95 %: 10.00 to 15.00), 6.0 s in 500 steps, "
        "for 1.2 s"
    )
    endless, _ = judge(pairs, math.inf, 1.25)
    assert (endless.steps_left, endless.saves_seconds) == (None, None)
    assert json.loads(json.dumps(endless.as_dict()))["interval_ms"] == [10.0, 15.0]


# What is timed


class Run:
    """A device that does steps of known length, and a clock."""

    def __init__(self) -> None:
        self.time = 0.0
        self.waits: list[float] = []

    def now(self) -> float:
        return self.time

    def wait(self) -> None:
        self.waits.append(self.time)


def test_windows_are_in_turn_each_after_one_step_that_is_not_timed() -> None:
    run = Run()
    windows = Windows(run.wait, 3, run.now)
    kinds = ""
    for _ in range(16):
        kinds += "n" if windows.native else "r"
        # The first step of each window is slow, and does not count.
        fresh = len(kinds) % 4 == 1
        run.time += 100.0 if fresh else 5.0 if windows.native else 2.0
        windows.step(1, True)
    assert kinds == "nnnnrrrrrrrrnnnn"
    assert windows.pairs == [(5.0, 2.0), (5.0, 2.0)]
    # Where one begins and where one ends, and nowhere else.
    assert len(run.waits) == 8
    assert windows.steps == 16


def test_a_window_in_which_something_else_came_begins_again_with_that_step_as_its_first() -> None:
    run = Run()
    windows = Windows(run.wait, 2, run.now)
    for clean, seconds in ((True, 9.0), (True, 1.0), (False, 50.0), (True, 1.0), (True, 3.0)):
        assert windows.native
        run.time += seconds
        windows.step(1, clean)
    assert not windows.native
    assert windows.misses == 0
    for seconds in (9.0, 4.0, 4.0):
        run.time += seconds
        windows.step(1, True)
    assert windows.pairs == [(2.0, 4.0)]


def test_interruptions_in_a_row_are_counted() -> None:
    windows = Windows(lambda: None, 2)
    for _ in range(4):
        windows.step(1, False)
    assert windows.misses == 3
    windows.step(1, True)
    windows.step(1, True)
    assert windows.misses == 0


def test_windows_begin_and_end_with_an_optimizer_step_and_count_those() -> None:
    run = Run()
    windows = Windows(run.wait, 2, run.now)
    begun = []
    for batch in range(1, 19):
        run.time += 1.0
        before = windows.native
        windows.step(int(batch % 3 == 0), True)
        if windows.native is not before:
            begun.append(batch)
    # Three batches are a step; one step is not timed, two are.
    assert begun == [9]
    assert windows.pairs == [(3.0, 3.0)]
    assert all(wait % 3 == 0 for wait in run.waits)


# Who is measured


class Item:
    """An acceleration as far as measuring knows it."""

    def __init__(self, run: Run, native: float, replayed: float, keep: str = "auto", held: int = 0) -> None:
        self.run, self.native, self.replayed = run, native, replayed
        self.keep = keep
        self.state = State.RECORDED
        self.tally = Tally(replayed=1, held=held)
        self.finding: Finding | None = None
        self.suspended = False
        self.heard: list[str] = []

    def suspend(self) -> None:
        assert not self.suspended
        self.suspended = True

    def resume(self) -> None:
        assert self.suspended
        self.suspended = False

    def weighed(self, finding: Finding) -> None:
        assert not self.suspended
        self.finding = finding
        if not finding.kept:
            self.state = State.RETIRED

    def cost(self) -> float:
        return self.native if self.suspended or self.state is not State.RECORDED else self.replayed


class Device(TapeEngine):
    """A device with memory that is counted, and waited for on a clock that a test has."""

    def __init__(self, run: Run, room: int | None) -> None:
        super().__init__(torch.device("cpu"))
        self.run, self.room, self.trims = run, room, 0

    def synchronize(self) -> None:
        self.run.wait()

    def headroom(self) -> int | None:
        return self.room

    def trim(self) -> None:
        self.trims += 1


class Course:
    """A fit of fakes."""

    def __init__(self, total: float = 1000, stretch: float = 1000, room: int | None = None) -> None:
        self.run = Run()
        self.device = Device(self.run, room)
        self.payoff = Payoff(self.run.now)
        self.total, self.stretch = total, stretch
        self.done = 0
        self.suspended: list[list[bool]] = []

    def go(
        self,
        party: Sequence[Any],
        steps: int,
        setup: bool = False,
        every: int = 0,
        stepped: int = 1,
        other: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Make steps, with something else after each of so many, and where it is told so."""
        for _ in range(steps):
            self.run.time += 0.01 + sum(item.cost() for item in party)
            self.suspended.append([item.suspended for item in party])
            self.done += stepped
            at = Progress(self.done, self.total, self.stretch)
            interrupted = other(self.done) or (every > 0 and self.done % every == 0)
            self.payoff.step(party, at, lambda: self.device, setup, interrupted)

    def item(self, native: float = 0.03, replayed: float = 0.02, **options: Any) -> Item:
        return Item(self.run, native, replayed, **options)


def test_what_is_faster_is_kept_and_what_is_slower_is_not_within_its_steps() -> None:
    for native, replayed, kept in ((0.03, 0.02, True), (0.02, 0.03, False), (0.02, 0.02, False)):
        course = Course()
        item = course.item(native, replayed)
        course.go([item], LIMIT)
        assert item.finding is not None
        assert item.finding.kept is kept
        assert item.finding.pairs == 6
        assert item.finding.native_ms == pytest.approx(1e3 * (0.01 + native))
        assert item.finding.replayed_ms == pytest.approx(1e3 * (0.01 + replayed))
        assert sum(suspended for (suspended,) in course.suspended) == 30


def test_nothing_is_measured_that_is_to_be_kept_always() -> None:
    course = Course()
    item = course.item(keep="always")
    course.go([item], LIMIT)
    assert item.finding is None
    assert course.run.waits == []


def test_one_is_measured_at_a_time_while_the_others_stay_as_they_are() -> None:
    course = Course()
    items = [course.item(0.03, 0.02), course.item(keep="always"), course.item(0.02, 0.03), course.item(0.03, 0.01)]
    course.go(items, 600)
    assert [item.finding and item.finding.kept for item in items] == [True, None, False, True]
    assert all(sum(flags) <= 1 for flags in course.suspended)
    order = [flags.index(True) for flags in course.suspended if any(flags)]
    assert order == sorted(order)
    assert [order.count(index) for index in range(4)] == [30, 0, 30, 30]


def test_measuring_waits_until_nothing_was_recorded_or_proven_for_a_while() -> None:
    course = Course()
    item = course.item()
    course.go([item], 20, setup=True)
    course.go([item], 4)
    assert course.suspended == [[False]] * 24
    course.go([item], 2)
    assert course.suspended[-2:] == [[False], [True]]


def test_one_that_has_replayed_nothing_yet_waits() -> None:
    course = Course()
    item = course.item()
    item.tally.replayed = 0
    course.go([item], 30)
    assert course.suspended == [[False]] * 30


def test_measuring_begins_after_an_optimizer_step() -> None:
    course = Course()
    item = course.item()
    item.tally.replayed = 0
    course.go([item], 10)
    item.tally.replayed = 1
    course.go([item], 1, stepped=0)
    assert not item.suspended
    course.go([item], 1)
    assert item.suspended


@pytest.mark.parametrize("why", ["setup", "other"])
def test_what_is_recorded_or_validated_meanwhile_is_in_no_time(why: str) -> None:
    course = Course()
    item = course.item()
    course.go([item], 9)
    course.run.time += 50.0
    course.go([item], 1, setup=why == "setup", other=lambda _: why == "other")
    course.go([item], 100)
    assert item.finding is not None
    assert item.finding.interval_ms == (pytest.approx(10.0), pytest.approx(10.0))


def test_a_noisy_one_is_measured_longer() -> None:
    course = Course()
    item = course.item()
    noise = random.Random(1)
    item.cost = lambda: 0.03 - 0.001 * (not item.suspended) + noise.random() * 0.02  # type: ignore[method-assign]
    course.go([item], LIMIT)
    assert item.finding is not None
    assert item.finding.pairs == 9


@pytest.mark.parametrize(("total", "measured"), [(205, False), (206, True), (math.inf, True)])
def test_a_fit_with_few_steps_left_is_not_measured(total: float, measured: bool) -> None:
    course = Course(total)
    item = course.item(0.02, 0.03)
    course.go([item], 100)
    assert item.finding is not None
    assert (item.finding.pairs > 0) is measured
    if not measured:
        assert item.finding.why == "kept, not measured: the fit was too short, with 199 steps left"
        assert course.run.waits == []


@pytest.mark.parametrize("stretch", [2, 3, 5, 8])
def test_short_epochs_have_short_windows(stretch: int) -> None:
    course = Course(stretch=stretch)
    item = course.item()
    course.go([item], LIMIT + 5, every=stretch)
    assert item.finding is not None
    assert item.finding.pairs >= 6


def test_epochs_of_one_step_are_not_measured() -> None:
    course = Course(stretch=1)
    item = course.item()
    course.go([item], 10, every=1)
    assert item.finding is not None
    assert item.finding.why == "kept, not measured: epochs of one step leave nothing to time"
    assert course.suspended == [[False]] * 10


def test_one_whose_windows_never_end_is_kept_before_it_has_cost_much() -> None:
    course = Course()
    item = course.item(0.02, 0.03)
    course.go([item], 60, every=3)
    assert item.finding is not None
    assert item.finding.why == "kept, not measured: its steps were interrupted too often"
    assert sum(flags[0] for flags in course.suspended) < 25
    assert not item.suspended


def test_a_verdict_comes_within_200_steps_whatever_comes_between() -> None:
    course = Course()
    item = course.item(0.02, 0.03)
    # Of two windows one is interrupted.
    course.go([item], LIMIT + 5, every=9)
    assert item.finding is not None
    assert not item.finding.kept


def test_one_of_which_a_window_ends_now_and_then_is_kept_after_200_steps() -> None:
    course = Course()
    item = course.item(0.02, 0.03)
    # One window of twenty steps, and four that do not end.
    course.go([item], LIMIT + 5, other=lambda done: done % 4 == 0 and done % 20 != 0)
    assert item.finding is None
    course.go([item], 2)
    assert item.finding is not None
    assert item.finding.why == "kept, not measured: its steps were interrupted too often"


@pytest.mark.parametrize("state", [State.RETIRED, State.ARMED])
def test_one_that_retires_or_is_recorded_again_meanwhile_is_let_go(state: State) -> None:
    course = Course()
    item, other = course.item(), course.item()
    course.go([item, other], 9)
    assert course.payoff.suspended
    item.state = state
    course.go([item, other], 1)
    assert not course.payoff.suspended
    assert not item.suspended
    assert item.finding is None
    course.go([item, other], 100)
    assert other.finding is not None
    item.state = State.RECORDED
    course.go([item, other], 100)
    assert item.finding is not None


def test_gradients_that_are_being_gathered_are_gathered_by_one_kind() -> None:
    course = Course()
    item = course.item(0.02, 0.03)
    for _ in range(300):
        before = item.suspended
        course.go([item], 3, stepped=0, every=0)
        assert item.suspended is before
        course.go([item], 1)
    assert item.finding is not None
    assert item.finding.native_ms == pytest.approx(4 * 30.0)


def test_measuring_that_is_given_up_ends_with_an_optimizer_step_too() -> None:
    course = Course()
    item = course.item()
    course.go([item], 7)
    assert item.suspended
    while item.finding is None:
        course.go([item], 1, stepped=0, other=lambda _: True)
        assert item.suspended
        course.go([item], 1)
    assert item.finding.pairs == 0


def test_what_the_later_proof_costs_is_to_be_paid() -> None:
    kept = []
    for proof_seconds in (3.0, 15.0):
        course = Course()
        item = course.item()
        item.tally.proofs, item.tally.proof_seconds = 1, proof_seconds
        course.go([item], LIMIT)
        assert item.finding is not None
        assert item.finding.to_pay_seconds == pytest.approx(proof_seconds + 0.04)
        kept.append(item.finding.kept)
    # Some 930 steps are left, of which each saves 10 ms.
    assert kept == [True, False]


def test_proofs_are_told_from_recordings_among_what_was_spent() -> None:
    tally = Tally()
    tally.spend(5.0)
    tally.proofs += 1
    tally.spend(1.0)
    tally.spend(2.0)
    assert (tally.setup_seconds, tally.proof_seconds) == (8.0, 1.0)


def test_what_was_dropped_to_be_recorded_again_is_not_held() -> None:
    replay = body()
    replay.recorded(100)
    replay.recorded(20)
    assert (replay.tally.reserved, replay.tally.held) == (120, 120)
    replay.rearmed("because")
    replay.recorded(40)
    assert (replay.tally.reserved, replay.tally.held) == (160, 40)


GIB = 2**30


@pytest.mark.parametrize(("room", "kept"), [(9 * GIB, True), (7 * GIB, False)])
def test_what_leaves_native_steps_no_room_is_dropped_before_any_is_made(room: int, kept: bool) -> None:
    course = Course(room=room)
    # Recordings hold five, unused between replays; this one needs three more to be native.
    item, other = course.item(held=3 * GIB), course.item(keep="always", held=2 * GIB)
    course.go([item, other], 6)
    assert course.payoff.suspended is kept
    course.go([item, other], 100)
    assert item.finding is not None
    assert (item.finding.kept, item.finding.held_bytes) == (kept, 3 * GIB)
    assert item.finding.free_bytes == room - 5 * GIB
    if not kept:
        assert item.finding.why == "does not pay: it holds 3072 MiB, and 2048 MiB are left for native steps"


def test_memory_that_is_gone_at_the_verdict_is_a_no() -> None:
    course = Course(room=9 * GIB)
    item = course.item(held=3 * GIB)
    course.go([item], 20)
    course.device.room = 4 * GIB
    course.go([item], 100)
    assert item.finding is not None
    assert not item.finding.kept
    assert item.finding.pairs == 6


def test_what_native_steps_needed_is_given_back() -> None:
    course = Course()
    course.go([course.item()], 100)
    assert course.device.trims == 1


def test_one_that_cannot_be_suspended_is_kept() -> None:
    class Rigid:
        keep, state, tally, finding, suspended = "auto", State.RECORDED, Tally(replayed=1), None, False

        def cost(self) -> float:
            return 0.01

        def weighed(self, finding: Finding) -> None:
            self.finding = finding  # type: ignore[assignment]

    item = Rigid()
    Course().go([item], 20)
    assert item.finding is not None
    assert item.finding.why == "kept, not measured: it cannot be native for a while"


# Real fits


class Clock:
    """What measuring goes by in these fits: time passes where it is let."""

    time = 0.0
    real = False

    @classmethod
    def now(cls) -> float:
        return time.perf_counter() if cls.real else cls.time

    @classmethod
    def spend(cls, seconds: float) -> None:
        cls.time += seconds
        if cls.real:
            time.sleep(seconds)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Payoff.__init__, "__defaults__", (Clock.now,))


@pytest.fixture
def real_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clock, "real", True)


class Waiting(nn.Module):
    """Takes time of Python, which a replay leaves out."""

    def forward(self, x: Tensor) -> Tensor:
        Clock.spend(0.02)
        return x * 2


class SlowNet(Net):
    """A module whose body is slow natively."""

    def __init__(self) -> None:
        super().__init__()
        self.body.append(Waiting())


class SlowEngine(TapeEngine):
    """Replays take time."""

    made: list[weakref.ref[Any]]

    def capture(self, body: Callable[[], T], after: Graph | None = None) -> tuple[Graph, T]:
        tape, result = super().capture(body, after)
        self.made.append(weakref.ref(tape))
        return SlowGraph(tape), result


class SlowGraph:
    def __init__(self, tape: Graph) -> None:
        self.tape = tape

    def replay(self) -> None:
        Clock.spend(0.02)
        self.tape.replay()


@pytest.fixture
def slow_tape(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[SlowEngine]]:
    monkeypatch.setattr(SlowEngine, "made", [], raising=False)
    with use_engine(SlowEngine):
        yield SlowEngine


def body(**options: Any) -> NetworkReplay:
    return NetworkReplay(module="body", **options)


def alive(engine: type[SlowEngine]) -> int:
    gc.collect()
    return sum(tape() is not None for tape in engine.made)


LONG = {"max_epochs": 32}  # of eight batches


def test_a_slow_one_retires_within_200_steps_gives_its_memory_back_and_changes_no_byte(
    slow_tape: type[SlowEngine],
) -> None:
    replay = body(strict=True)
    held: list[tuple[int, str]] = []

    def note(trainer: Trainer, _: LightningModule) -> None:
        held.append((alive(slow_tape), str(replay.state)))

    noting = [Act("on_train_batch_start", 30, note), Act("on_train_batch_start", 204, note)]
    with warned() as texts:
        assert_parity(Net, batches, [replay], **LONG)
        fit([replay, *noting], **LONG)
    assert texts == []
    assert held == [(2, "recorded"), (0, "retired")]
    assert replay.finding is not None
    assert replay.finding.native_ms is not None
    assert replay.finding.replayed_ms is not None
    assert replay.finding.replayed_ms - replay.finding.native_ms == pytest.approx(40.0)
    assert replay.tally.native[Reason.NOT_PAYING] > 50
    assert replay.tally.native[Reason.DISABLED] >= 30
    assert Reason.RETIRED not in replay.tally.native
    assert replay.tally.first[Reason.NOT_PAYING] < 205


def test_a_fast_one_is_kept_and_changes_no_byte(tape: None) -> None:
    replay = body(strict=True)
    assert_parity(SlowNet, batches, [replay], **LONG)
    assert replay.state is State.RECORDED
    assert replay.finding is not None
    assert replay.finding.kept
    assert replay.finding.interval_ms is not None
    assert replay.finding.interval_ms[0] > 0
    # Native at the beginning, while measured, for the second proof, and in the partial batch of each epoch.
    assert replay.tally.replayed > 256 - 32 - 4 - 60


def reported(folder: Path, callbacks: Sequence[Callback], module: LightningModule, **settings: Any) -> Any:
    fit(callbacks, module, logger=CSVLogger(folder, "run", version=0), **{**LONG, **settings})
    return json.loads((folder / "run" / "version_0" / FILE).read_text())["accelerations"]


def test_the_report_has_both_numbers_of_each_and_what_was_decided(
    slow_tape: type[SlowEngine], real_time: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        slow, fixed = reported(tmp_path, [body(), GradientNormReplay(keep="always")], Net(), gradient_clip_val=1.0)
    assert (slow["keep"], slow["state"], slow["payoff"]["kept"]) == ("auto", "retired", False)
    # Forward and backward take 20 ms more.
    assert slow["payoff"]["replayed_ms"] > slow["payoff"]["native_ms"] + 20
    assert slow["payoff"]["interval_ms"][1] < -20
    assert 100 < slow["payoff"]["steps_left"] < 250
    assert slow["verdict"].endswith(slow["payoff"]["why"])
    assert (fixed["keep"], fixed["payoff"], fixed["state"]) == ("always", None, "recorded")
    screen = [record.getMessage() for record in caplog.records if "Accelerations:" in record.getMessage()]
    assert screen[0].count(slow["payoff"]["why"]) == 1
    told = [
        record
        for record in caplog.records
        if "(not_paying), training goes on without it: does not pay: a step" in record.getMessage()
    ]
    assert [record.levelno for record in told] == [logging.INFO]


def test_the_report_of_a_kept_one_says_so(
    tape: None, real_time: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        (row,) = reported(tmp_path, [body()], SlowNet())
    assert row["payoff"]["kept"]
    assert row["payoff"]["native_ms"] > row["payoff"]["replayed_ms"]
    screen = [record.getMessage() for record in caplog.records if "Accelerations:" in record.getMessage()]
    assert f"\n    {row['payoff']['why']}" in screen[0]


def test_a_short_fit_is_not_measured_and_the_report_says_so(tape: None, tmp_path: Path) -> None:
    (row,) = reported(tmp_path, [replay := body()], Net(), max_epochs=5)
    assert row["payoff"]["why"].startswith("kept, not measured: the fit was too short")
    assert Reason.DISABLED not in replay.tally.native
    (row,) = reported(tmp_path, [body()], Net(), max_epochs=1)
    assert row["payoff"]["why"] == "kept, not measured: the fit was too short"


class Counted(TapeEngine):
    """Counts how often somebody waited for the device."""

    waits = 0

    def synchronize(self) -> None:
        type(self).waits += 1


def test_nobody_waits_for_the_device_but_where_windows_begin_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "waits", 0)
    with use_engine(Counted):
        fit([body(keep="always")], SlowNet(), **LONG)
        assert Counted.waits == 0
        fit([replay := body()], SlowNet(), **LONG)
    assert replay.finding is not None
    # Some windows of epochs of eight are interrupted.
    windows = 2 * replay.finding.pairs
    assert 2 * windows <= Counted.waits <= 3 * windows


@pytest.mark.parametrize("accumulate", [1, 2])
def test_validation_checkpoints_and_accumulation_keep_their_bytes(tape: None, accumulate: int) -> None:
    class Slow(Validated, SlowNet):
        pass

    settings: dict[str, Any] = {"max_epochs": 32 * accumulate, "accumulate_grad_batches": accumulate}
    replays = [body(strict=True), GradientNormReplay(strict=True)]
    assert_parity(Slow, batches, replays, gradient_clip_val=1.0, num_sanity_val_steps=1, **settings)
    assert [replay.finding is not None for replay in replays] == [True, True]
    assert replays[0].state is State.RECORDED


def test_where_validation_comes_often_windows_are_short(tape: None) -> None:
    class Slow(Validated, SlowNet):
        pass

    fit([replay := body()], Slow(), val_check_interval=3, **LONG)
    assert replay.finding is not None
    assert replay.finding.pairs >= 6


@pytest.mark.parametrize("what", ["validation", "checkpoint", "epoch"])
def test_what_comes_between_steps_is_in_no_time(tape: None, tmp_path: Path, what: str) -> None:
    class Costly(Callback):
        def on_validation_end(self, *_: Any) -> None:
            Clock.spend(9.0)

        def on_train_epoch_end(self, *_: Any) -> None:
            Clock.spend(8.0)

        def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
            if what == "checkpoint" and trainer.global_step % 11 == 0:
                trainer.save_checkpoint(tmp_path / "middle")
                Clock.spend(7.0)

    class Slow(Validated, SlowNet):
        pass

    settings: dict[str, Any] = {"val_check_interval": 9} if what == "validation" else {}
    trainer = trainer_for([replay := body(), Costly()], max_epochs=12 if what == "epoch" else 1, **settings)
    module = Slow() if what == "validation" else SlowNet()
    full = batches(24 if what == "epoch" else 250)[:-1]
    trainer.fit(module, DataLoader(full, batch_size=None))  # type: ignore[arg-type]
    assert replay.finding is not None
    assert replay.finding.interval_ms == (pytest.approx(20.0), pytest.approx(20.0))


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kept", [True, False])
def test_the_whole_step_is_measured_in_one_and_keeps_its_bytes(
    accumulate: int, kept: bool, slow_tape: type[SlowEngine]
) -> None:
    settings: dict[str, Any] = {"max_epochs": 32 * accumulate, "accumulate_grad_batches": accumulate}
    replay = StepReplay()
    with use_engine(TapeEngine if kept else SlowEngine), warned() as texts:
        assert_parity(SlowNet if kept else Net, batches, [replay], gradient_clip_val=1.0, **settings)
    assert texts == []
    assert replay.finding is not None
    assert replay.finding.kept is kept
    assert replay.state is (State.RECORDED if kept else State.RETIRED)
    assert kept or alive(slow_tape) == 0


def test_all_are_measured_one_after_the_other(tape: None) -> None:
    first, second = body(), GradientNormReplay()
    seen: list[tuple[bool, bool]] = []

    class Watch(Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            seen.append(tuple(any(r._suspended for r in x._routers) for x in (first, second)))  # type: ignore[arg-type]

    fit([first, second, Watch()], SlowNet(), max_epochs=45, gradient_clip_val=1.0)
    assert all(sum(flags) <= 1 for flags in seen)
    assert any(flags[0] for flags in seen)
    assert any(flags[1] for flags in seen)
    assert first.finding is not None
    assert second.finding is not None


def test_the_clock_takes_steps_of_which_a_part_is_suspended_for_no_kind(
    tape: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[bool, bool]] = []
    count = FitClock.step

    def noting(self: FitClock, replayed: bool, setup: bool = False) -> None:
        steps.append((replayed, setup))
        count(self, replayed, setup)

    monkeypatch.setattr(FitClock, "step", noting)
    fit([body(), GradientNormReplay(keep="always")], SlowNet(), gradient_clip_val=1.0, **LONG)
    alone: list[tuple[bool, bool]] = steps[:]
    steps.clear()
    fit([body()], SlowNet(), **LONG)
    # Steps that record or prove are some five.
    assert alone.count((False, True)) > 30 > steps.count((False, True))
    assert steps.count((False, False)) > 30


# In between


def measuring(replay: NetworkReplay, do: Callable[[Trainer, LightningModule], Any]) -> Callback:
    """Do something once, while steps are native to be measured."""

    class Once(Callback):
        done = False

        def on_train_batch_start(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
            if not self.done and any(router._suspended for router in replay._routers):
                self.done = True
                do(trainer, module)

    return Once()


def boom(*_: Any) -> None:
    raise ZeroDivisionError("boom")


def test_an_exception_in_the_middle_leaves_nothing_and_a_second_fit_is_measured_anew(tape: None) -> None:
    replay, module = body(), SlowNet()
    with pytest.raises(ZeroDivisionError):
        fit([replay, measuring(replay, boom)], module, **LONG)
    assert replay.finding is None
    assert "forward" not in vars(module.body)
    assert replay._routers == []
    fit([replay], module, **LONG)
    assert replay.finding is not None
    assert replay.finding.kept
    assert replay.state is State.RECORDED


def test_a_hook_in_the_middle_retires_it_for_that(tape: None) -> None:
    def hook(_: Trainer, module: LightningModule) -> None:
        module.body.register_forward_hook(lambda *_: None)  # type: ignore[union-attr]

    replay = body()
    with warned() as texts:
        fit([replay, measuring(replay, hook)], SlowNet(), **LONG)
    assert len(texts) == 1
    assert "(hooks)" in texts[0]
    assert replay.finding is None
    assert replay.tally.native[Reason.RETIRED] > 100


def test_freezing_in_the_middle_records_again_and_then_measures(tape: None) -> None:
    def freeze(_: Trainer, module: LightningModule) -> None:
        module.body[0].requires_grad_(False)  # type: ignore[index, operator]

    replay = body(strict=True)
    fit([replay, measuring(replay, freeze)], SlowNet(), max_epochs=45)
    assert len(replay.tally.rearmed) == 1
    assert replay.finding is not None
    assert replay.state is State.RECORDED


def test_copies_and_checkpoints_of_the_middle_hold_nothing_of_it(tape: None, tmp_path: Path) -> None:
    replay = body()
    copies: list[Acceleration] = []
    saved: list[dict[str, Any]] = []

    def keep(trainer: Trainer, _: LightningModule) -> None:
        copies.extend((copy.deepcopy(replay), pickle.loads(pickle.dumps(replay))))
        trainer.save_checkpoint(tmp_path / "middle")
        saved.append(torch.load(tmp_path / "middle", weights_only=False))

    fit([replay, measuring(replay, keep)], SlowNet(), **LONG)
    assert saved[0]["callbacks"] == {}
    for made in copies:
        assert (made.keep, made.state, made.finding) == ("auto", State.OFF, None)
        assert not made._fit.payoff.suspended


def test_a_run_that_is_resumed_is_measured_by_the_steps_that_are_left(tape: None, tmp_path: Path) -> None:
    fit([], SlowNet(), max_epochs=30).save_checkpoint(tmp_path / "first")
    for epochs, measured in ((30 + 27, True), (30 + 10, False)):
        trainer = trainer_for([replay := body()], max_epochs=epochs)
        loader: DataLoader[Any] = DataLoader(batches(), batch_size=None)  # type: ignore[arg-type]
        trainer.fit(SlowNet(), loader, ckpt_path=tmp_path / "first")
        assert replay.finding is not None
        assert (replay.finding.pairs > 0) is measured


def endless() -> Iterator[tuple[Tensor, Tensor]]:
    full: Batches = batches()[:-1]
    while True:
        yield from full


class Stream(torch.utils.data.IterableDataset[Any]):
    """Data without a length."""

    def __iter__(self) -> Iterator[Any]:
        return endless()


@pytest.mark.parametrize("epochs", [-1, 3])
def test_a_fit_without_an_end_in_sight_is_measured(tape: None, epochs: int) -> None:
    stop = Act("on_train_batch_start", 150, lambda trainer, _: setattr(trainer, "should_stop", True))
    trainer = trainer_for([replay := body(), stop], max_epochs=epochs)
    trainer.fit(SlowNet(), DataLoader(Stream(), batch_size=None))
    assert replay.finding is not None
    assert (replay.finding.kept, replay.finding.pairs >= 6, replay.finding.steps_left) == (True, True, None)
