"""What accelerations answer and say: each no with what was seen and what helps, one warning, errors where asked for."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only
from torch import nn

from lucid_accel import Acceleration, AccelerationError, AccelerationWarning, LossReplay, NetworkReplay
from lucid_accel.acceleration import State
from lucid_accel.graphs.tape import TapeEngine
from lucid_accel.site import Answer, Site, _is_preview, no, recordable, yes
from lucid_accel.testing import assert_parity
from tests.accel.conftest import Act, Net, batches, fit, trainer_for, warned


class Asked(Acceleration):
    """Answers as it is told, at setup and at the start."""

    def __init__(self, *answers: Answer | Exception, **options: Any) -> None:
        super().__init__(**options)
        self._answers = answers
        self._installed = 0

    def eligible(self, site: Site) -> Answer:
        answer = self._answers[site.started]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def install(self, site: Site) -> Callable[[], None]:
        self._installed += 1
        return lambda: None


NO = no("it needs a moon", "there is none", "go where one is")


def body(**options: Any) -> NetworkReplay:
    return NetworkReplay(module="body", **options)


# Each no


def test_a_cpu_without_an_engine_is_a_no() -> None:
    answer = recordable(Site(trainer_for([]), Net(), started=False))
    assert str(answer) == "it needs an NVIDIA GPU, but this run computes on cpu. To get a yes: train on one"


@pytest.mark.parametrize(
    ("settings", "seen", "fix"),
    [
        ({"devices": 2, "strategy": "ddp"}, "this run has world_size=2 and DDPStrategy", "set trainer.devices=1"),
        ({"devices": 1, "strategy": "ddp"}, "this run has world_size=1 and DDPStrategy", "set trainer.devices=1"),
        ({"precision": "64-true"}, "this run has 64-true", "set trainer.precision to one of them"),
        ({"precision": "16-true"}, "this run has 16-true", "set trainer.precision to one of them"),
        ({"precision": "bf16-true"}, "this run has bf16-true", "set trainer.precision to one of them"),
    ],
)
def test_a_setting_that_cannot_be_recorded_is_named_with_its_remedy(
    tape: None, settings: dict[str, Any], seen: str, fix: str
) -> None:
    answer = recordable(Site(trainer_for([], **settings), Net(), started=False))
    assert not answer.ok
    assert (answer.seen, answer.fix) == (seen, fix)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_these_precisions_are_a_yes(tape: None, precision: Any) -> None:
    assert recordable(Site(trainer_for([], precision=precision), Net(), started=True)).ok


def test_manual_optimization_is_a_no(tape: None) -> None:
    module = Net()
    module.automatic_optimization = False
    answer = recordable(Site(trainer_for([]), module, started=False))
    assert answer.seen == "the module optimizes by itself"


def test_a_compiled_module_is_a_no(tape: None) -> None:
    compiled = torch.compile(Net(), backend="eager")
    with warned() as texts:
        fit([body()], compiled, limit_train_batches=1)  # type: ignore[arg-type]
    assert texts == [
        "NetworkReplay(module='body') is off, training goes on without it: it needs an eager module, but the module is "
        "compiled. To get a yes: leave out torch.compile"
    ]


def test_anomaly_mode_is_a_no_at_the_start_of_training(tape: None) -> None:
    with warned() as texts:
        fit([body()], detect_anomaly=True)
    assert len(texts) == 1
    assert "detect_anomaly is on. To get a yes: set trainer.detect_anomaly=false" in texts[0]


@pytest.mark.parametrize(
    ("version", "preview"),
    [
        ("2.8.0", False),
        ("2.10.0", False),
        ("2.9.0+cu129", False),
        ("2.9.0.post1", False),
        ("2.9.0a0+x", True),
        ("2.9.0rc1", True),
        ("2.9.0.dev2025", True),
        ("2.9.0b2+cpu", True),
    ],
)
def test_releases_of_torch_are_told_from_previews(version: str, preview: bool) -> None:
    assert _is_preview(version) is preview


def test_a_preview_of_torch_needs_proof(tape: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.12.0a0+abc")
    site = Site(trainer_for([]), Net(), started=False)
    assert recordable(site, proof=True).ok
    assert recordable(site, proof=False).seen == "proof is off on 2.12.0a0+abc"
    assert body(proof="off").eligible(site).fix == "proof=on"


def test_a_module_without_the_seam_is_a_no_with_what_it_has(tape: None) -> None:
    site = Site(trainer_for([]), Net(), started=False)
    assert "Net has none" in str(LossReplay().eligible(site))
    assert "name a submodule with module=; Net has body, head" in str(NetworkReplay().eligible(site))
    assert "it needs a submodule 'boddy'" in str(NetworkReplay(module="boddy").eligible(site))


def test_a_forward_that_somebody_took_is_a_no(tape: None) -> None:
    module = Net()
    module.body.forward = lambda x: x  # type: ignore[method-assign]
    assert "that of Sequential is replaced" in str(body().eligible(Site(trainer_for([]), module, started=False)))


# When it is asked, and what is said


@pytest.mark.parametrize("answers", [(NO, yes()), (yes(), NO)])
def test_a_no_at_either_time_is_one_warning_and_nothing_is_installed(answers: tuple[Answer, Answer]) -> None:
    asked = Asked(*answers)
    with warned() as texts:
        fit([asked])
    assert texts == [f"Asked is off, training goes on without it: {NO}"]
    assert (asked.state, asked._installed) == (State.INELIGIBLE, 0)


@pytest.mark.parametrize("answers", [(ValueError("moon"), yes()), (yes(), ValueError("moon"))])
def test_a_question_that_fails_is_a_no(answers: tuple[Any, Any]) -> None:
    asked = Asked(*answers)
    with warned() as texts:
        fit([asked])
    assert texts == ["Asked is off, training goes on without it: its question failed with ValueError: moon"]
    with pytest.raises(AccelerationError, match="ValueError: moon") as caught:
        fit([Asked(*answers, on_failure="raise")])
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_ordinary_no_is_no_failure() -> None:
    with warned() as texts:
        fit([Asked(NO, yes(), on_failure="raise")])
    assert len(texts) == 1


@pytest.mark.parametrize("answers", [(NO, yes()), (yes(), NO)])
def test_strict_turns_a_no_into_an_error(answers: tuple[Answer, Answer]) -> None:
    with pytest.raises(AccelerationError, match="it needs a moon"):
        fit([Asked(*answers, strict=True)])


def test_ineligible_accelerations_warn_once_each_and_leave_the_bytes() -> None:
    ineligible = [body(), LossReplay()]
    with warned() as texts:
        assert_parity(Net, batches, ineligible, must_replay=False)
    assert [text.split()[0] for text in texts] == ["NetworkReplay(module='body')", "LossReplay"]


def hook(_: Trainer, module: LightningModule) -> None:
    module.body.register_forward_hook(lambda *_: None)  # type: ignore[union-attr]


def test_a_retirement_is_one_warning_and_names_the_batch_and_the_reason(tape: None) -> None:
    replay = body()
    with warned() as texts:
        fit([replay, Act("on_train_batch_start", 6, hook)], max_epochs=3)
    assert len(texts) == 1
    assert texts[0].startswith(
        "NetworkReplay(module='body') is retired at batch 6 (hooks), training goes on without it: a hook"
    )
    assert replay.state is State.RETIRED
    assert replay.verdict in texts[0].replace(", training goes on without it", "")


def test_strict_turns_a_retirement_into_an_error(tape: None) -> None:
    with pytest.raises(AccelerationError, match="retired at batch 6"):
        fit([body(strict=True), Act("on_train_batch_start", 6, hook)])


class Reading(Net):
    """Waits for a value in the middle of its body."""

    def __init__(self) -> None:
        super().__init__()
        self.body.append(Host())


class Host(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum().item() > 0 else x * 3


def test_a_failed_recording_retires_or_raises_with_its_cause(tape: None) -> None:
    with warned() as texts:
        assert_parity(Reading, batches, [body()], must_replay=False)
    assert len(texts) == 1
    assert "(capture_failed)" in texts[0]
    with pytest.raises(AccelerationError, match="could not be recorded") as caught:
        fit([body(on_failure="raise")], Reading())
    assert "reads a value back to the host" in str(caught.value.__cause__)


def test_an_armed_one_that_replayed_nothing_says_so_once(tape: None) -> None:
    with warned() as texts:
        fit([body()], limit_train_batches=2)
    assert texts == ["NetworkReplay(module='body') is idle: none of 2 steps were replayed: 2 warmup"]
    with pytest.raises(AccelerationError, match="idle"):
        fit([body(strict=True)], limit_train_batches=2)


def test_nothing_is_said_of_idleness_where_training_never_began(tape: None) -> None:
    with warned() as texts:
        fit([body(strict=True)], limit_train_batches=0)
        fit([body(strict=True)], max_epochs=0)
    assert texts == []


def test_other_ranks_are_silent(tape: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    with warned() as texts:
        fit([Asked(NO, yes()), body(), Act("on_train_batch_start", 6, hook)])
    assert texts == []


def test_an_installation_that_fails_is_a_retirement(tape: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise MemoryError("full")

    monkeypatch.setattr(Asked, "install", fail)
    with warned() as texts:
        fit([Asked(yes(), yes())])
    assert len(texts) == 1
    assert "it could not be installed: MemoryError: full" in texts[0]
    with pytest.raises(AccelerationError) as caught:
        fit([Asked(yes(), yes(), on_failure="raise")])
    assert isinstance(caught.value.__cause__, MemoryError)


@pytest.mark.parametrize(
    "callbacks",
    [
        lambda: [Asked(NO, yes())],
        lambda: [Asked(yes(), NO)],
        lambda: [body(), Act("on_train_batch_start", 6, hook)],
        lambda: [Asked(yes(), yes())],
    ],
)
def test_a_warning_that_is_an_error_ends_the_run_and_releases_everything(
    tape: None, callbacks: Callable[[], list[Any]]
) -> None:
    module = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("error", AccelerationWarning)
        with pytest.raises(AccelerationWarning):
            fit(callbacks(), module)
    assert "forward" not in vars(module.body)
    fit([body(strict=True)], Net())


def test_the_package_is_light_and_its_names_are_lazy() -> None:
    code = "import sys, lucid_accel; assert 'torch' not in sys.modules; lucid_accel.nothing"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "has no attribute 'nothing'" in ended.stderr


def test_the_engine_of_a_context_is_used_only_in_it(tape: None) -> None:
    assert isinstance(Site(trainer_for([]), Net(), started=False).engine(), TapeEngine)


def test_an_exchanged_part_retires_at_the_next_epoch(tape: None) -> None:
    def exchange(_: Trainer, module: LightningModule) -> None:
        module.body = Net().body  # type: ignore[assignment]

    replay = body()
    with warned() as texts:
        fit([replay, Act("on_train_batch_start", 4, exchange)], max_epochs=2)
    assert len(texts) == 1
    assert "(structure), training goes on without it: the part itself was exchanged" in texts[0]


def test_parameters_that_are_made_at_the_first_call_are_a_no(tape: None) -> None:
    module = Net()
    module.body.append(nn.LazyConv2d(2, 1))  # type: ignore[operator]
    answer = body().eligible(Site(Trainer(accelerator="cpu", logger=False), module, started=False))
    assert "makes some at its first call" in str(answer)
