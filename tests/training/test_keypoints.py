"""Options of key points, and what a checkpoint is refused for, through command lines as typed."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from lucid_core.cli import main
from lucid_core.data.shapes import write_shapes
from lucid_core.module import Detector
from lucid_core.types import Task

SHORT = (
    "--trainer.limit_train_batches=2", "--trainer.max_epochs=1", "--trainer.num_sanity_val_steps=0",
    "--trainer.log_every_n_steps=1", "--data.batch_size=4", "--model.optimizer=sgd", "--data.image_size=64",
)  # fmt: skip
QUICK = ("--trainer.accelerator=cpu", "--data.workers=0", "--data.val_workers=0")


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Objects of four key points."""
    return write_shapes(tmp_path_factory.mktemp("data") / "four", train=8, val=4, size=64)


def edited(root: Path, target: Path, points: int | None) -> Path:
    """The data set with the first so many points of each object, or with all of them and no ``num_keypoints``."""
    shutil.copytree(root, target)
    for file in (target / "annotations").glob("*.json"):
        held = json.loads(file.read_text())
        for category in held["categories"]:
            category["keypoints"] = category["keypoints"][:points]
            category.pop("skeleton", None)
        for annotation in held["annotations"]:
            del annotation["num_keypoints"]
            annotation["keypoints"] = annotation["keypoints"][: None if points is None else 3 * points]
        file.write_text(json.dumps(held))
    return target


def fit(root: Path, *more: str) -> int:
    return main(["fit", "--config", "task-keypoints", f"--data.root={root}", *SHORT, *QUICK, *more])


def validate(checkpoint: Path, *more: str) -> int:
    return main(["validate", f"--ckpt_path={checkpoint}", *QUICK, *more])


def newest() -> Path:
    return max(Path("runs").iterdir(), key=lambda path: int(path.name.partition("_")[2]))


def figures() -> dict[str, Any]:
    """What the last command measured; None where there was nothing to measure."""
    with (newest() / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    named = [(name, text) for row in rows for name, text in row.items() if text and name.startswith("val/")]
    return {name: None if text == "nan" else float(text) for name, text in named}


def test_any_number_of_points_is_scored_by_the_spreads_that_are_stated(
    four: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fit(four, "--model.sigmas=[0.9,0.9,1,1]") == 0
    checkpoint = newest() / "checkpoints" / "last.ckpt"
    assert torch.load(checkpoint, weights_only=True)["hyper_parameters"]["sigmas"] == [0.9, 0.9, 1.0, 1.0]
    assert validate(checkpoint) == 0
    wide = figures()
    assert wide["val/oks_map"] > 0
    # Without a word of the user, the middle one of a person's spreads, in the objective and in evaluation.
    assert validate(checkpoint, "--model.sigmas=null") == 0
    usual = figures()
    assert validate(checkpoint, "--model.sigmas=[.072,.072,.072,.072]") == 0
    assert figures() == usual
    assert usual["val/oks"] > wide["val/oks"]
    assert validate(checkpoint, "--model.sigmas=[1e-4,1e-4,1e-4,1e-4]") == 0
    narrow = figures()
    assert narrow["val/oks_map"] == 0 and narrow["val/oks"] > 0.99
    capsys.readouterr()
    for wrong in ("[0.1,0.1,0.1]", "[]", "[0.1,0.1,0.1,0]", "[0.1,0.1,0.1,-1]"):
        before = newest()
        assert fit(four, f"--model.sigmas={wrong}") == 1
        line = capsys.readouterr().err.strip().splitlines()[-1]
        assert line.startswith("lucid: error: 4 key points need 4 sigmas, each from 0.0001 to 1 of"), line
        assert newest() == before or not list(newest().glob("checkpoints/*"))
    # A count that nobody stated is that of the labelled points.
    assert validate(checkpoint, f"--data.root={edited(four, tmp_path / 'bare', None)}") == 0
    assert figures() == wide


def test_without_a_flow_the_law_is_that_of_laplace(
    four: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fit(four, "--model.flow=false") == 0
    checkpoint = newest() / "checkpoints" / "last.ckpt"
    saved = torch.load(checkpoint, weights_only=True)
    assert saved["hyper_parameters"]["flow"] is False
    assert not [name for name in saved["state_dict"] if name.startswith("objective.")]
    assert validate(checkpoint) == 0
    capsys.readouterr()
    assert validate(checkpoint, "--model.flow=true") == 1
    err = capsys.readouterr().err.strip().splitlines()
    assert "whose flow is False, and here it is True: say --model.flow=False" in err[-1] and "Traceback" not in err


@pytest.mark.parametrize("option", ["flow=false", "sigmas=[0.1,0.1]"])
def test_what_is_of_key_points_is_refused_for_another_task(
    four: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fit(four, "--model.task=segment", f"--model.{option}") == 1
    name = option.partition("=")[0]
    assert f"model.{name} is of the task keypoints, and the task is segment" in capsys.readouterr().err


def test_a_checkpoint_of_another_make_is_refused_in_one_line(
    four: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fit(four) == 0
    checkpoint = newest() / "checkpoints" / "last.ckpt"
    foreign = tmp_path / "foreign.ckpt"
    torch.save({"model": {}, "epoch": 3}, foreign)
    three = edited(four, tmp_path / "three", 3)
    refusals = [
        (checkpoint, "--model.task=segment", "whose task is keypoints, and here it is segment: say --model.task=keypo"),
        (checkpoint, "--model.task=detect", "whose task is keypoints, and here it is detect: say --model.task=keypoi"),
        (checkpoint, "--model.variant=s", "whose variant is n, and here it is s: say --model.variant=n"),
        (checkpoint, f"--data.root={three}", "on objects of 4 key points, and these have 3: name the data set it was"),
        (foreign, f"--data.root={four}", "foreign.ckpt is no checkpoint of lucid-core, but of another program: it ho"),
    ]
    for path, option, expected in refusals:
        for command in ("validate", "fit"):
            capsys.readouterr()
            assert main([command, f"--ckpt_path={path}", option, *QUICK]) == 1
            lines = capsys.readouterr().err.strip().splitlines()
            assert expected in lines[-1], lines
            assert sum("error" in line for line in lines) == 1 and not any("Traceback" in line for line in lines)


def renamed(root: Path, target: Path, names: list[str]) -> Path:
    """The data set whose key points have these names, or none."""
    shutil.copytree(root, target)
    for file in (target / "annotations").glob("*.json"):
        held = json.loads(file.read_text())
        for category in held["categories"]:
            if names:
                category["keypoints"] = names
            else:
                del category["keypoints"]
        file.write_text(json.dumps(held))
    return target


def test_key_points_of_other_names_or_in_another_order_are_refused_in_one_line(
    four: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fit(four) == 0
    checkpoint = newest() / "checkpoints" / "last.ckpt"
    names = torch.load(checkpoint, weights_only=True)["trained_on"]["points"]["names"]
    turned = renamed(four, tmp_path / "turned", [*names[1:], names[0]])
    other = renamed(four, tmp_path / "other", [*names[:3], "tail"])
    refusals = [
        (turned, f"key point 1 was {names[0]}, and here it is {names[1]} ({', '.join(names)}; here"),
        (other, f"key point 4 was {names[3]}, and here it is tail ({', '.join(names)}; here"),
    ]
    for root, expected in refusals:
        for command in ("validate", "fit"):
            capsys.readouterr()
            assert main([command, f"--ckpt_path={checkpoint}", f"--data.root={root}", *QUICK]) == 1
            lines = capsys.readouterr().err.strip().splitlines()
            assert expected in lines[-1], lines
            assert sum("error" in line for line in lines) == 1 and not any("Traceback" in line for line in lines)
    # Names that one side does not know are no reason to refuse.
    assert validate(checkpoint, f"--data.root={renamed(four, tmp_path / 'bare', [])}") == 0


def test_weights_of_key_points_bring_the_flow_and_say_that_points_go_by_index(
    four: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fit(four) == 0
    file = newest() / "checkpoints" / "last.ckpt"
    saved = torch.load(file, weights_only=True)
    names, classes = saved["trained_on"]["points"]["names"], saved["hyper_parameters"]["class_names"]
    learnt = {name: tensor for name, tensor in saved["state_dict"].items() if name.startswith("objective.flow.")}
    caplog.set_level("INFO")

    def told(path: Path, task: Task, points: int, **options: Any) -> tuple[Detector, list[str]]:
        caplog.clear()
        detector = Detector(list(classes), task, points, weights=str(path), **options)
        (message,) = [text for text in caplog.messages if "tensors loaded" in text]
        return detector, message.splitlines()

    detector, lines = told(file, "keypoints", 4)
    state = detector.state_dict()
    assert any(not torch.equal(tensor, Detector(["a"], "keypoints", 4).state_dict()[n]) for n, tensor in learnt.items())
    assert learnt and all(torch.equal(state[name], tensor) for name, tensor in learnt.items())
    assert lines == [
        f"{file}: {len(state)} of {len(state)} tensors loaded (averaged weights)",
        f"  outputs by key point: kept by index, where the file has {', '.join(names)}",
    ]
    # Of another number of points the density is the same; without it, or in a file without it, that is told.
    detector, lines = told(file, "keypoints", 3)
    assert all(torch.equal(detector.state_dict()[name], tensor) for name, tensor in learnt.items())
    assert not any("by index" in line for line in lines)
    unlearnt = f"  what the objective learns: {len(learnt)} tensors in the file, 0 here"
    assert unlearnt in told(file, "keypoints", 4, flow=False)[1]
    assert unlearnt in told(file, "detect", 0)[1]
    bare = tmp_path / "bare.pt"
    torch.save({n: tensor for n, tensor in saved["state_dict"].items() if n.startswith("network.")}, bare)
    assert f"  what the objective learns: 0 tensors in the file, {len(learnt)} here" in told(bare, "keypoints", 4)[1]
