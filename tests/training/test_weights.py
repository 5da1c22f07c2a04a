"""A run that starts from the weights of another one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor

from lucid_core.cli import main
from lucid_core.module import Detector
from lucid_core.network.detector import Network
from lucid_core.weights import Weights, fit_weights
from tests.training.conftest import digest

Fit = Callable[..., Trainer]

CLASSES = ["circle", "square", "triangle", "rectangle", "star"]
OUTPUTS = 2 * 3 * 2
"""Tensors with a row for each class: weight and bias, on three levels, of two branches."""


@pytest.fixture
def trained(fit: Fit, tmp_path: Path) -> Path:
    """A checkpoint whose averaged weights are far from the raw ones."""
    fit(max_epochs=1, model={"ema_tau": 1e4}).save_checkpoint(tmp_path / "trained.ckpt")
    return tmp_path / "trained.ckpt"


def averaged(file: Path) -> dict[str, Tensor]:
    return dict(torch.load(file, weights_only=True)["ema"]["tensors"])


def rows(name: str) -> bool:
    return ".classes." in name and ".4." in name


def told(caplog: pytest.LogCaptureFixture) -> str:
    (message,) = [record.getMessage() for record in caplog.records if "tensors loaded" in record.getMessage()]
    return message


def test_all_is_loaded_where_the_classes_are_the_same(trained: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    raw = torch.load(trained, weights_only=True)
    assert list(raw["hyper_parameters"]["class_names"]) == CLASSES
    state = Detector(CLASSES, weights=str(trained)).network.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in averaged(trained).items())
    assert any(not torch.equal(state[name], raw["state_dict"][f"network.{name}"]) for name in state)
    assert told(caplog) == f"{trained}: {len(state)} of {len(state)} tensors loaded (averaged weights)"


def test_rows_of_other_classes_go_by_name(trained: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    torch.manual_seed(1)
    fresh = Detector(["star", "moon", "circle"]).network.state_dict()
    torch.manual_seed(1)
    state = Detector(["star", "moon", "circle"], weights=str(trained)).network.state_dict()
    old = averaged(trained)
    assert sum(map(rows, old)) == OUTPUTS
    for name, tensor in old.items():
        if rows(name):
            assert torch.equal(state[name][[0, 2]], tensor[[CLASSES.index("star"), CLASSES.index("circle")]])
            assert torch.equal(state[name][1], fresh[name][1])
        else:
            assert torch.equal(state[name], tensor)
    assert told(caplog).splitlines()[1:] == ["  outputs by class: kept of star, circle; anew for moon"]


def test_the_same_classes_in_another_order_are_sorted(trained: Path) -> None:
    state = Detector(CLASSES[::-1], weights=str(trained)).network.state_dict()
    assert all(torch.equal(state[n], t.flip(0) if rows(n) else t) for n, t in averaged(trained).items())


def test_without_class_names_what_does_not_fit_is_listed(
    trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The bare state of a network, of a detector, and one with a name too many and one too few."""
    caplog.set_level("INFO")
    state = torch.load(trained, weights_only=True)["state_dict"]
    bare = {name.removeprefix("network."): tensor for name, tensor in state.items()}
    for held in (state, bare):
        caplog.clear()
        torch.save(held, tmp_path / "state.pt")
        Detector(["a", "b", "c"], weights=str(tmp_path / "state.pt"))
        first, *unfit = told(caplog).splitlines()
        assert first.endswith(f"{len(bare) - OUTPUTS} of {len(bare)} tensors loaded (weights)")
        assert len(unfit) == OUTPUTS
        assert all(
            re.fullmatch(r"  one_to_\w+\.classes\.\d\.4\.\w+: 5( x .*)? in the file, 3( x .*)? here", u) for u in unfit
        )
    caplog.clear()
    bare["extra"] = bare.pop("backbone.p3.0.conv.weight")
    torch.save(bare, tmp_path / "state.pt")
    Detector(CLASSES, weights=str(tmp_path / "state.pt"))
    assert told(caplog).splitlines()[1:] == [
        "  backbone.p3.0.conv.weight: not in the file",
        "  extra: not in this network",
    ]


def test_a_long_list_is_cut(trained: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    state = torch.load(trained, weights_only=True)["state_dict"]
    torch.save({"network.backbone.p3.0.conv.weight": state["network.backbone.p3.0.conv.weight"]}, trained)
    Detector(CLASSES, weights=str(trained))
    lines = told(caplog).splitlines()
    assert len(lines) == 14
    assert lines[-1] == f"  and {len(state) - 1 - 12} more that do not fit"


def broken(kind: str, trained: Path) -> str:
    file = trained.with_name(f"{kind}.ckpt")
    checkpoint = torch.load(trained, weights_only=True)
    if kind == "text":
        file.write_text("no weights at all")
    elif kind == "cut":
        file.write_bytes(trained.read_bytes()[:1000])
    elif kind == "list":
        torch.save([1, 2], file)
    elif kind == "other network":
        torch.save({"state_dict": {"model.0.conv.weight": torch.zeros(3)}}, file)
    elif kind == "no tensors":
        torch.save({"epoch": 3}, file)
    elif kind == "not finite":
        next(iter(checkpoint["ema"]["tensors"].values())).view(-1)[0] = float("nan")
        torch.save(checkpoint, file)
    elif kind == "variant":
        checkpoint["hyper_parameters"]["variant"] = "s"
        torch.save(checkpoint, file)
    elif kind == "folder":
        return str(trained.parent)
    return str(file)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("nothing", "no file is called"),
        ("folder", "no file is called"),
        ("text", "is no checkpoint that can be read"),
        ("cut", "is no checkpoint that can be read"),
        ("list", "holds a list, not a checkpoint"),
        ("other network", "holds nothing that fits this network: model.0.conv.weight"),
        ("no tensors", "holds nothing that fits this network: no tensors at all"),
        ("not finite", "holds values that are not finite, in "),
        ("variant", "is of variant s, and this network of variant n: add --model.variant s"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_in_one_line(trained: Path, kind: str, says: str) -> None:
    file = broken(kind, trained)
    with pytest.raises(ValueError) as refused:
        Detector(CLASSES, weights=file)
    text = str(refused.value)
    assert text.startswith("model.weights") and file in text and says in text and "\n" not in text


def test_a_fit_starts_from_them_and_its_average_too(fit: Fit, trained: Path, shapes: Path) -> None:
    start = Detector(CLASSES, weights=str(trained))
    before = averaged(trained)
    assert all(torch.equal(t, before[n]) for n, t in start.average.network.state_dict().items() if n in before)
    trainer = fit(module=start, max_epochs=1, limit_train_batches=1)
    moved = trainer.lightning_module.network.state_dict()  # type: ignore[union-attr, operator]
    assert any(not torch.equal(moved[name], tensor) for name, tensor in before.items())
    assert start.hparams["weights"] == str(trained)


class SaveAt(Callback):
    """Saves in the middle of the second epoch."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == 4:
            trainer.save_checkpoint(self.file)


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "there"])
def test_a_run_goes_on_from_its_checkpoint_and_not_from_the_weights(
    fit: Fit, trained: Path, tmp_path: Path, gone: bool
) -> None:
    """Byte for byte as the run that was not interrupted, whether the file is still there and named, or not."""
    weights = {"weights": str(trained)}
    fit([SaveAt(tmp_path / "half.ckpt")], model=weights).save_checkpoint(tmp_path / "whole.ckpt")
    if gone:
        trained.unlink()
        loaded = Detector.load_from_checkpoint(tmp_path / "half.ckpt", weights_only=True)
        assert loaded.hparams["weights"] is None
    resumed = fit(ckpt_path=tmp_path / "half.ckpt", model={} if gone else weights)
    resumed.save_checkpoint(tmp_path / "resumed.ckpt")
    one, other = (digest(torch.load(tmp_path / f"{name}.ckpt", weights_only=True)) for name in ("whole", "resumed"))
    assert one == other


def three_classes(root: Path, folder: Path) -> Path:
    """The shapes with the classes circle, star and a new one, which takes what is left."""
    for split in ("train", "val"):
        file = root / "annotations" / f"instances_{split}.json"
        content: dict[str, Any] = json.loads(file.read_text())
        names = {category["id"]: category["name"] for category in content["categories"]}
        kept = {"circle": 1, "star": 2}
        content["categories"] = [{"id": i, "name": name} for i, name in enumerate(("circle", "star", "angular"), 1)]
        for annotation in content["annotations"]:
            annotation["category_id"] = kept.get(names[annotation["category_id"]], 3)
        (folder / "annotations").mkdir(parents=True, exist_ok=True)
        (folder / "annotations" / file.name).write_text(json.dumps(content))
    for path in root.iterdir():
        if path.name != "annotations":
            (folder / path.name).symlink_to(path)
    return folder


@pytest.mark.slow
def test_from_the_command_line(
    shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Train, fine-tune to three classes, and go on when the first run is gone."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO")
    small = ["--data.image_size=64", "--data.workers=0", "--data.val_workers=0", "--data.batch_size=4"]
    small += ["--trainer.accelerator=cpu", "--trainer.max_epochs=1", "--trainer.enable_progress_bar=false"]
    assert main(["fit", "--data.root", str(shapes), *small]) == 0
    first = Path("runs/version_0/checkpoints/best.ckpt")
    other = three_classes(shapes, tmp_path / "other")
    assert main(["fit", "--data.root", str(other), "--model.weights", str(first), *small]) == 0
    assert "outputs by class: kept of circle, star; anew for angular" in told(caplog)
    assert f"weights: {first}" in Path("runs/version_1/hparams.yaml").read_text()
    first.unlink()
    last = "runs/version_1/checkpoints/last.ckpt"
    assert main(["validate", "--ckpt_path", last]) == 0
    assert main(["fit", "--ckpt_path", last, "--trainer.max_epochs=2"]) == 0
    assert main(["fit", "--data.root", str(other), "--model.weights", str(first), *small]) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("lucid: error: model.weights: no file is called")


def test_classes_of_cells_go_by_name() -> None:
    """They, too, have a row for each class, and would fit any other classes of the same number by shape alone."""
    torch.manual_seed(0)
    old, new = Network("n", 3, "segment"), Network("n", 3, "segment")
    anew = new.state_dict()["masks.semantic.weight"].clone()
    fit_weights(new, Weights(old.state_dict(), class_names=("a", "b", "c")), ["c", "x", "a"])
    given, found = (network.state_dict()["masks.semantic.weight"] for network in (old, new))
    assert torch.equal(found, torch.stack((given[2], anew[1], given[0])))
    assert torch.equal(new.state_dict()["masks.prototypes.weight"], old.state_dict()["masks.prototypes.weight"])
