"""Complete runs of a few steps through Lightning's Trainer."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.loggers import CSVLogger

import lucid_core
from lucid_core.data.module import DataModule
from lucid_core.evaluation.coco import CocoEvaluation
from lucid_core.module import Detector
from lucid_core.optim.ema import AveragedNetwork
from lucid_core.types import Batch, Targets
from tests.training.conftest import digest

Fit = Callable[..., Trainer]


def detector(trainer: Trainer) -> Detector:
    module = trainer.lightning_module
    assert isinstance(module, Detector)
    return module


class Steps(Callback):
    """Records, after every batch, the counters that have to agree."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int]] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        assert isinstance(pl_module, Detector)
        self.rows.append((trainer.global_step, pl_module.average.updates))


def test_two_runs_of_one_seed_are_equal(fit: Fit, tmp_path: Path) -> None:
    digests = []
    for name, workers in (("a", 0), ("b", 0), ("c", 2)):
        trainer = fit(max_epochs=1, data={"workers": workers})
        trainer.save_checkpoint(tmp_path / name)
        digests.append(digest(torch.load(tmp_path / name, weights_only=True)))
    assert digests[0] == digests[1] == digests[2]
    other = fit(max_epochs=1, data={"seed": 1})
    other.save_checkpoint(tmp_path / "d")
    assert digest(torch.load(tmp_path / "d", weights_only=True)) != digests[0]


@pytest.mark.parametrize(("accumulate", "steps"), [(1, 6), (2, 4), (4, 2), (8, 2)])
def test_the_average_counts_optimizer_steps(fit: Fit, accumulate: int, steps: int) -> None:
    """Three batches an epoch; Lightning also steps on what is left over at an epoch's end."""
    counters = Steps()
    trainer = fit([counters], accumulate_grad_batches=accumulate)
    assert trainer.global_step == steps
    assert len(counters.rows) == 6
    assert all(step == updates for step, updates in counters.rows)


@pytest.mark.parametrize("optimizer", ["musgd", "sgd", "adamw"])
def test_every_optimizer_moves_every_matrix(fit: Fit, optimizer: str) -> None:
    torch.manual_seed(0)
    before: dict[str, torch.Tensor] = {}

    class Start(Callback):
        def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            before.update({name: p.detach().clone() for name, p in pl_module.named_parameters() if p.ndim >= 2})

    trainer = fit([Start()], max_epochs=1, model={"optimizer": optimizer})
    after = dict(detector(trainer).named_parameters())
    assert len(before) == 127
    assert all(not torch.equal(after[name], p) for name, p in before.items())


def test_the_learning_rate_follows_its_schedule(fit: Fit) -> None:
    rates: list[float] = []

    class Rates(Callback):
        def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    fit([Rates()], max_epochs=3, model={"lr": 0.02, "lrf": 0.1, "warmup_epochs": 1.0})
    assert rates[:4] == pytest.approx([0.02 / 3, 0.04 / 3, 0.02, 0.02])
    assert rates[-1] == pytest.approx(0.002)
    assert len(rates) == 9
    rates.clear()
    fit([Rates()], max_epochs=3, accumulate_grad_batches=3, model={"lr": 0.02, "lrf": 0.1, "warmup_epochs": 1.0})
    assert rates == pytest.approx([0.02] * 6 + [0.002] * 3)
    assert rates[3:] == sorted(rates[3:], reverse=True)


def test_a_warm_up_longer_than_the_run_is_told(fit: Fit) -> None:
    with pytest.warns(UserWarning, match="only rises"):
        fit(max_epochs=1, model={"warmup_epochs": 3.0})


def test_the_branch_weight_moves_with_the_epochs(fit: Fit) -> None:
    weights: list[float] = []

    class Weights(Callback):
        def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
            assert isinstance(pl_module, Detector)
            weights.append(float(pl_module.objective.weight))

    fit([Weights()], max_epochs=3, limit_train_batches=1)
    assert weights == pytest.approx([0.8, 0.45, 0.1])
    weights.clear()
    fit([Weights()], max_epochs=-1, max_steps=2)
    assert weights == [0.5, 0.5]


def test_a_checkpoint_holds_raw_weights_and_the_average_beside_them(fit: Fit, tmp_path: Path) -> None:
    trainer = fit(model={"ema_tau": 3.0})
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    module = detector(trainer)
    live = module.network.state_dict()
    assert {name.removeprefix("network.") for name in checkpoint["state_dict"]} == set(live)
    assert all(torch.equal(checkpoint["state_dict"][f"network.{name}"], t) for name, t in live.items())
    shadow = checkpoint["ema"]["tensors"]
    assert set(shadow) == {name for name, t in live.items() if t.is_floating_point()}
    assert checkpoint["ema"]["updates"] == 6
    assert not torch.equal(shadow["backbone.p3.0.conv.weight"], live["backbone.p3.0.conv.weight"])

    loaded = Detector.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    averages = loaded.average.network.state_dict()
    assert all(torch.equal(t, averages[name]) for name, t in shadow.items())
    image = torch.rand(1, 3, 64, 64)
    assert torch.equal(loaded.eval()(image).scores, module.eval()(image).scores)


def test_a_checkpoint_of_other_classes_is_refused(
    fit: Fit, shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when they are as many, where the weights would load and every label would be wrong."""
    fit(max_epochs=1).save_checkpoint(tmp_path / "last.ckpt")
    names = list(DataModule(str(shapes)).class_names)
    for other in (names[::-1], names[:-1]):
        monkeypatch.setattr(DataModule, "class_names", tuple(other))
        with pytest.raises(ValueError, match=r"trained on 5 classes \(circle, .*name the data set"):
            fit(module=Detector(other), ckpt_path=tmp_path / "last.ckpt")


def test_validation_uses_the_average_and_leaves_the_network_alone(fit: Fit) -> None:
    calls: list[tuple[str, bool]] = []
    unchanged: list[bool] = []

    class Around(Callback):
        def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            assert isinstance(pl_module, Detector)
            self.before = {name: t.clone() for name, t in pl_module.state_dict().items()}
            networks = {"raw": pl_module.network, "average": pl_module.average.network}
            self.hooks = [
                network.register_forward_hook(lambda m, *_, name=name: calls.append((name, m.training)))
                for name, network in networks.items()
            ]

        def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            unchanged.append(all(torch.equal(t, self.before[n]) for n, t in pl_module.state_dict().items()))
            for hook in self.hooks:
                hook.remove()

    fit([Around()])
    assert set(calls) == {("average", False)}
    assert unchanged == [True, True]


def test_the_average_follows_the_step_it_counts(fit: Fit) -> None:
    """After one step it lies between the weights before and after, nearly at the former."""
    start: dict[str, torch.Tensor] = {}

    class Start(Callback):
        def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            assert isinstance(pl_module, Detector)
            start.update({name: p.detach().clone() for name, p in pl_module.network.named_parameters()})

    module = detector(fit([Start()], max_epochs=1, limit_train_batches=1, limit_val_batches=0, model={"ema_tau": 1.0}))
    d = 0.9999 * (1 - math.exp(-1.0))
    for (name, live), averaged in zip(
        module.network.named_parameters(), module.average.network.parameters(), strict=True
    ):
        torch.testing.assert_close(averaged, d * start[name] + (1 - d) * live.detach(), rtol=1e-4, atol=1e-6)


def test_other_weights_are_evaluated_as_they_are(fit: Fit, shapes: Path) -> None:
    """Weights that were loaded after an evaluation, or put in by hand before any training, are those that count."""
    module = detector(fit(max_epochs=1))
    image = torch.rand(1, 3, 64, 64)
    trained = module.eval()(image).scores
    torch.manual_seed(5)
    fresh = Detector(module.hparams["class_names"])
    expected = fresh.eval()(image).scores
    module.load_state_dict(fresh.state_dict())
    assert torch.equal(module(image).scores, expected)
    assert not torch.equal(trained, expected)

    data = DataModule(str(shapes), image_size=64, batch_size=4, workers=0)
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu", "barebones": False}
    Trainer(**quiet).validate(fresh, data, verbose=False)
    with torch.no_grad():
        fresh.network.load_state_dict({n: torch.zeros_like(t) for n, t in fresh.network.state_dict().items()})
    Trainer(**quiet).validate(fresh, data, verbose=False)
    assert not any(bool(p.any()) for p in fresh.average.network.parameters())


def test_the_average_goes_where_its_module_goes() -> None:
    module = Detector(["a"]).eval()
    module(torch.rand(1, 3, 64, 64))
    module.double()
    assert module(torch.rand(1, 3, 64, 64, dtype=torch.float64)).boxes.dtype == torch.float32


def test_predict_gives_detections(fit: Fit, shapes: Path) -> None:
    module = detector(fit(max_epochs=1))
    data = DataModule(str(shapes), image_size=64, batch_size=4, workers=0)
    trainer = Trainer(logger=False, accelerator="cpu", enable_progress_bar=False)
    predictions = trainer.predict(module, data.val_dataloader())
    assert predictions is not None
    assert [p.boxes.shape for p in predictions] == [(4, 300, 4), (2, 300, 4)]  # type: ignore[union-attr]


def test_unpacked_images_span_zero_to_one() -> None:
    module = Detector(["a"])
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 32, 32)
    empty = Targets(torch.zeros(1, 1, 4), torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.bool))
    unpacked = module.unpack(Batch(images, empty, torch.zeros(1), torch.zeros(1, 3))).images
    assert unpacked.dtype == torch.float32
    assert unpacked[0, :, 0, 0].tolist() == pytest.approx([0.0, 0.2, 1.0])


def test_a_run_that_fails_leaves_nothing_behind(fit: Fit) -> None:
    class Fails(Callback):
        def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
            assert not torch.utils.deterministic.fill_uninitialized_memory
            if trainer.global_step == 2:
                raise KeyError("broken")

    assert torch.utils.deterministic.fill_uninitialized_memory
    with pytest.raises(KeyError, match="broken"):
        fit([Fails()], data={"workers": 2})
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("setting", "value"),
    [("lrf", -3), ("alpha_start", 1.5), ("warmup_epochs", -1), ("decoders", []), ("ema_decay", 1.0), ("ema_tau", 0)],
)
def test_settings_are_checked_at_once(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=setting):
        Detector(["a"], **{setting: value})


def test_metrics_are_logged_under_their_names(fit: Fit, tmp_path: Path) -> None:
    trainer = fit(logger=CSVLogger(tmp_path, name="", version=""), model={"decoders": ["end_to_end", "nms"]})
    metrics = trainer.callback_metrics
    losses = {"loss", "o2m_box", "o2m_cls", "o2m_l1", "o2o_box", "o2o_cls", "o2o_l1"}
    assert {f"{part}/{name}" for part in ("train", "val") for name in losses} <= set(metrics)
    assert {"val/map", "val/map_50", "val/mar_100", "val/nms/map"} <= set(metrics)
    header = (tmp_path / "metrics.csv").read_text().splitlines()[0].split(",")
    assert "train/o2o_box" in header


def test_validate_fit_validate_fit_in_one_process(fit: Fit, shapes: Path) -> None:
    """Tensors made under inference mode must never meet a later training."""
    data = DataModule(str(shapes), image_size=64, batch_size=4, workers=0)
    module = Detector(list(data.class_names))
    quiet = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu", "enable_model_summary": False}
    Trainer(**quiet).validate(module, data, verbose=False)  # type: ignore[arg-type]
    fit(module=module, max_epochs=1)
    assert module.average.updates == 3
    Trainer(**quiet).validate(module, data, verbose=False)  # type: ignore[arg-type]
    fit(module=module, max_epochs=1)
    assert module.average.updates == 6
    assert torch.utils.deterministic.fill_uninitialized_memory


@pytest.mark.parametrize(
    "settings",
    [
        {"fast_dev_run": True},
        {"overfit_batches": 2},
        {"limit_train_batches": 1},
        {"limit_train_batches": 0},
        {"limit_val_batches": 0},
        {"val_check_interval": 0.5},
        {"max_steps": 2},
        {"num_sanity_val_steps": 1},
        {"reload_dataloaders_every_n_epochs": 1},
        {"max_time": "00:00:00:20"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_debug_switches(fit: Fit, settings: dict[str, Any]) -> None:
    trainer = fit(**{"max_epochs": 1, **settings})
    assert trainer.state.finished
    if settings.get("max_steps"):
        assert trainer.global_step == 2


def test_overfit_batches_repeats_its_batches(fit: Fit) -> None:
    seen: list[tuple[int, ...]] = []

    class Indices(Callback):
        def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, *_: Any) -> None:
            seen.append(tuple(batch.records.tolist()))

    fit([Indices()], overfit_batches=2)
    assert seen[:2] == seen[2:]


def test_a_detector_runs_without_our_data_module(shapes: Path, tmp_path: Path) -> None:
    """Losses are logged; AP needs the records, which a bare loader has not."""
    data = DataModule(str(shapes), image_size=64, batch_size=4, workers=0)
    data.setup("fit")
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        default_root_dir=tmp_path, callbacks=[Timer(duration={"minutes": 5})],
    )  # fmt: skip
    trainer.fit(Detector(list(data.class_names)), data.train_dataloader(), data.val_dataloader())
    assert "val/loss" in trainer.callback_metrics
    assert "val/map" not in trainer.callback_metrics


def test_bfloat16(fit: Fit) -> None:
    trainer = fit(max_epochs=1, precision="bf16-mixed")
    assert all(p.dtype == torch.float32 and bool(p.isfinite().all()) for p in detector(trainer).parameters())


def test_no_warning_of_a_plain_run(fit: Fit) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(max_epochs=1, data={"workers": 2}, model={"warmup_epochs": 0.0})
    package = str(Path(lucid_core.__file__).parent)
    ours = [str(w.message) for w in caught if package in str(w.filename) or "dataloader" in str(w.message)]
    assert ours == []


PROCESS = """
import hashlib, json, os, sys, warnings
from pathlib import Path
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
import lucid_core
from lucid_core.data.module import DataModule
from lucid_core.module import Detector

class Watch(Callback):
    def __init__(self):
        self.indices, self.rates = [], []
    def on_train_batch_start(self, trainer, module, batch, *_):
        self.indices.append(batch.records.tolist())

torch.set_num_threads(1)
root, out = Path(sys.argv[1]), Path(sys.argv[2])
seed_everything(0, verbose=False)
data = DataModule(str(root), image_size=64, batch_size=2, workers=0)
module, watch = Detector(list(data.class_names), ema_tau=3.0), Watch()
trainer = Trainer(accelerator="cpu", strategy="ddp", devices=2, max_epochs=2, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=10.0, callbacks=[watch],
    default_root_dir=out, num_sanity_val_steps=0)
trainer.fit(module, data)
weights = hashlib.sha256()
for p in module.network.parameters():
    weights.update(p.detach().numpy().tobytes())
averages = hashlib.sha256()
for t in module.average.network.state_dict().values():
    averages.update(t.numpy().tobytes())
(out / f"rank{trainer.global_rank}.json").write_text(json.dumps({
    "weights": weights.hexdigest(), "indices": watch.indices, "steps": trainer.global_step,
    "map": float(trainer.callback_metrics["val/map"]), "mar": float(trainer.callback_metrics["val/mar_100"]),
    "averages": averages.hexdigest()}))
trainer.save_checkpoint(out / "ddp.ckpt")
"""


def test_two_processes(shapes: Path, tmp_path: Path) -> None:
    """Same weights on both, every picture once an epoch, and the metrics of all pictures on both."""
    script = tmp_path / "run.py"
    script.write_text(PROCESS)
    source = str(Path(__file__).parents[2] / "src")
    env = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(shapes), str(tmp_path)], env=env, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert ranks[0]["weights"] == ranks[1]["weights"]
    assert ranks[0]["steps"] == ranks[1]["steps"] == 6
    for epoch in range(2):
        parts = [batch for rank in ranks for batch in rank["indices"][3 * epoch : 3 * epoch + 3]]
        assert sorted(i for batch in parts for i in batch) == list(range(10))
    assert ranks[0]["indices"] != ranks[1]["indices"]
    assert ranks[0]["averages"] == ranks[1]["averages"]
    assert (ranks[0]["map"], ranks[0]["mar"]) == (ranks[1]["map"], ranks[1]["mar"])

    # One process, with the weights that were saved, measures the same.
    data = DataModule(str(shapes), image_size=64, batch_size=2, workers=0)
    module = Detector.load_from_checkpoint(tmp_path / "ddp.ckpt", weights_only=True)
    evaluation = CocoEvaluation(data.val_set)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as there: another number of threads rounds otherwise
    with torch.no_grad():
        for batch in data.val_dataloader():
            evaluation.update(module(module.unpack(batch).images), batch.records, batch.letterbox)
    torch.set_num_threads(threads)
    assert evaluation.compute().map == pytest.approx(ranks[0]["map"], abs=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "32-true"])
def test_two_runs_on_a_gpu_are_equal(fit: Fit, tmp_path: Path, precision: str) -> None:
    digests = []
    for name in ("a", "b"):
        trainer = fit(accelerator="gpu", devices=1, precision=precision, data={"workers": 2})
        module = detector(trainer)
        trainer.save_checkpoint(tmp_path / name)
        digests.append(digest(torch.load(tmp_path / name, weights_only=True, map_location="cpu")))
        assert isinstance(module.average, AveragedNetwork)
        weight = module.network.backbone.p4[0].conv.weight  # type: ignore[union-attr]
        assert weight.is_contiguous(memory_format=torch.channels_last)  # type: ignore[operator]
    assert digests[0] == digests[1]


def test_a_step_that_returns_nothing_is_passed_over(fit: Fit, shapes: Path) -> None:
    class Skips(Detector):
        def training_step(self, batch: Batch, batch_idx: int) -> Any:
            return None if batch_idx == 1 else super().training_step(batch, batch_idx)

    module = Skips(list(DataModule(str(shapes)).class_names))
    weights: list[torch.Tensor] = []

    class Watch(Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            weights.append(next(module.parameters()).detach().clone())

    fit([Watch()], module=module, max_epochs=1)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
def test_no_synchronisation_in_a_step_of_the_trainer(fit: Fit, precision: str) -> None:
    """From the arrival of a batch to the end of the optimizer step, clipping and averaging included."""
    watched: list[int] = []

    class Watch(Callback):
        def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
            if trainer.global_step:
                watched.append(trainer.global_step)
                torch.cuda.set_sync_debug_mode("error")

        def on_train_batch_end(self, *_: Any) -> None:
            torch.cuda.set_sync_debug_mode("default")

    try:
        fit([Watch()], accelerator="gpu", devices=1, precision=precision, data={"workers": 2})
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert watched == [1, 2, 3, 4, 5]


@pytest.mark.gpu
def test_a_skipped_fp16_step_still_counts(fit: Fit) -> None:
    """An overflow leaves weights as they were; the average and global_step advance, as documented."""
    weights: list[torch.Tensor] = []
    counters = Steps()

    class Overflow(Callback):
        def on_train_start(self, trainer: Trainer, *_: Any) -> None:
            trainer.precision_plugin.scaler._init_scale = 2.0**30  # type: ignore[union-attr]

        def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
            weights.append(next(pl_module.parameters()).detach().clone())

    fit([counters, Overflow()], accelerator="gpu", devices=1, precision="16-mixed", max_epochs=8)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[-1])
    assert all(step == updates for step, updates in counters.rows)


@pytest.mark.gpu
def test_a_gpu_run_resumes_to_the_same_bytes(fit: Fit, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"accelerator": "gpu", "devices": 1, "precision": "bf16-mixed"}
    whole = fit(max_epochs=2, **settings)
    whole.save_checkpoint(tmp_path / "whole.ckpt")

    class Stop(Callback):
        def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
            trainer.save_checkpoint(tmp_path / "half.ckpt")
            trainer.should_stop = True

    fit([Stop()], max_epochs=2, **settings)
    devices: set[str] = set()

    class Devices(Callback):
        def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
            assert isinstance(pl_module, Detector)
            devices.update(t.device.type for t in pl_module.average.network.state_dict().values())

    again = fit([Devices()], max_epochs=2, ckpt_path=tmp_path / "half.ckpt", **settings)
    assert devices == {"cuda"}
    again.save_checkpoint(tmp_path / "again.ckpt")
    paths = [tmp_path / "whole.ckpt", tmp_path / "again.ckpt"]
    whole_file, again_file = (torch.load(path, weights_only=True, map_location="cpu") for path in paths)
    assert digest(whole_file) == digest(again_file)
