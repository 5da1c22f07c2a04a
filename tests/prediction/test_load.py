"""Detectors from checkpoints: what is in them, and what is none."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lucid_core.module import Detector
from lucid_core.prediction.load import TrainedOn, load_detector, pick_device

from .conftest import CATEGORIES, Command


def test_a_detector_comes_back_with_its_averaged_weights(checkpoint: Path) -> None:
    """E14: what predicts is the average that the checkpoint holds, not the weights that trained."""
    held = torch.load(checkpoint, weights_only=True)
    detector = Detector.from_checkpoint(str(checkpoint), device="cpu")
    averaged, raw = detector.average.network.state_dict(), detector.network.state_dict()
    assert all(torch.equal(averaged[name], tensor) for name, tensor in held["ema"]["tensors"].items())
    assert all(torch.equal(raw[name], held["state_dict"][f"network.{name}"]) for name in raw)
    assert not torch.equal(averaged["backbone.p3.0.conv.weight"], raw["backbone.p3.0.conv.weight"])
    assert not detector.training

    picture = np.zeros((64, 64, 3), np.uint8)
    found = detector.predict(picture, score=0.0)[0]
    detector.load_state_dict(detector.state_dict())
    assert not np.array_equal(found.scores, detector.predict(picture, score=0.0)[0].scores)


def test_a_checkpoint_says_what_it_was_trained_on(checkpoint: Path) -> None:
    assert Detector.from_checkpoint(checkpoint, "cpu").trained_on == TrainedOn(64, CATEGORIES)


def test_one_that_does_not_say_needs_the_size(checkpoint: Path, tmp_path: Path) -> None:
    held = torch.load(checkpoint, weights_only=True)
    del held["trained_on"]
    torch.save(held, tmp_path / "old.ckpt")
    detector = Detector.from_checkpoint(tmp_path / "old.ckpt", "cpu")
    picture = np.zeros((64, 64, 3), np.uint8)
    with pytest.raises(ValueError, match="give image_size"):
        detector.predict(picture)
    (found,) = detector.predict(picture, image_size=64, score=0.0)
    assert found.category_ids == (0, 1, 2, 3, 4)


def test_a_subclass_loads_as_itself(checkpoint: Path) -> None:
    class Mine(Detector):
        pass

    assert type(Mine.from_checkpoint(checkpoint, "cpu")) is Mine


def text(path: Path, held: Any) -> None:
    path.write_text("not a checkpoint")


def empty(path: Path, held: Any) -> None:
    path.touch()


def cut(path: Path, held: Any) -> None:
    torch.save(held, path)
    path.write_bytes(path.read_bytes()[:5000])


class Explosive:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return (exec, ("raise SystemExit('code of a checkpoint was run')",))


def code(path: Path, held: Any) -> None:
    path.write_bytes(pickle.dumps({"model": Explosive()}))


def torch_code(path: Path, held: Any) -> None:
    torch.save({"model": Explosive()}, path)


def another(path: Path, held: Any) -> None:
    torch.save({"model": {}, "epoch": 3}, path)


def a_tensor(path: Path, held: Any) -> None:
    torch.save(torch.zeros(3), path)


def lightning(path: Path, held: Any) -> None:
    torch.save({"state_dict": {}, "hyper_parameters": {"lr": 0.1}, "epoch": 3}, path)


def other_size(path: Path, held: Any) -> None:
    torch.save({**held, "hyper_parameters": {**held["hyper_parameters"], "variant": "s"}}, path)


def other_settings(path: Path, held: Any) -> None:
    torch.save({**held, "hyper_parameters": {**held["hyper_parameters"], "future": 1}}, path)


def other_average(path: Path, held: Any) -> None:
    torch.save({**held, "ema": {"updates": 1, "tensors": {"x": torch.zeros(1)}}}, path)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (text, "is no checkpoint that can be read"),
        (empty, "is no checkpoint that can be read"),
        (cut, "is no checkpoint that can be read"),
        (code, "is no checkpoint that can be read"),
        (torch_code, "is no checkpoint that can be read"),
        (another, "of another program: it holds model, epoch"),
        (a_tensor, "of another program: it holds a Tensor"),
        (lightning, "of another program: it holds state_dict, hyper_parameters, epoch"),
        (other_size, "of another version of lucid-core or of another model: Error.* in loading state_dict"),
        (other_settings, "another version of lucid-core.*'future'"),
        (other_average, "the averaged weights of the checkpoint belong to another network"),
    ],
)
def test_what_is_no_checkpoint_is_told_in_one_line(
    checkpoint: Path, tmp_path: Path, make: Callable[[Path, Any], None], told: str, lucid: Command
) -> None:
    path = tmp_path / "odd.ckpt"
    make(path, torch.load(checkpoint, weights_only=True))
    with pytest.raises(ValueError, match=told) as raised:
        load_detector(Detector, path, "cpu")
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 400

    (tmp_path / "a.png").touch()
    finished = lucid("predict", path, "a.png", "--device", "cpu")
    assert finished.status == 1 and finished.out == ""
    assert finished.err.startswith("lucid: error: ") and finished.err.count("\n") == 1
    assert not list(tmp_path.glob("runs/*"))


def test_a_missing_checkpoint(tmp_path: Path) -> None:
    for path in (tmp_path / "none.ckpt", tmp_path):
        with pytest.raises(FileNotFoundError, match="no such checkpoint"):
            Detector.from_checkpoint(path)


def test_devices() -> None:
    assert pick_device("cpu") == pick_device(torch.device("cpu")) == torch.device("cpu")
    assert pick_device("auto").type in ("cpu", "cuda", "mps", "xpu")
    for name in ("cuda:99", "gpu", ""):
        with pytest.raises(ValueError, match=f"device '{name}' is not on this machine; there are auto, cpu"):
            pick_device(name)


@pytest.mark.gpu
def test_prediction_on_a_gpu_is_that_on_the_cpu(checkpoint: Path, shapes: Path) -> None:
    pictures = sorted((shapes / "val").iterdir())
    on_cpu = Detector.from_checkpoint(checkpoint, "cpu").predict(pictures, score=0.0)
    detector = Detector.from_checkpoint(checkpoint, "cuda:0")
    assert detector.device == torch.device("cuda:0") == Detector.from_checkpoint(checkpoint).device
    for size in (1, 4):
        for one, other in zip(on_cpu, detector.predict(pictures, score=0.0, batch_size=size), strict=True):
            assert np.allclose(one.scores, other.scores, atol=1e-3)


def test_a_device_that_fails_is_no_fault_of_the_checkpoint(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: all devices are busy")

    monkeypatch.setattr(Detector, "to", fail)
    with pytest.raises(RuntimeError, match="devices are busy"):
        load_detector(Detector, checkpoint, "cpu")


def test_the_cpu_may_be_named_by_its_number(checkpoint: Path) -> None:
    assert pick_device("cpu:0") == pick_device(torch.device("cpu", 0)) == torch.device("cpu:0")
