"""Faults of training loops that people have reported in public, each by its number in the list this project follows.

A case is a test here, or tests elsewhere that ``ELSEWHERE`` names, or cannot occur, for the reason in ``NOT_HERE``.
"""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lucid_core.module import Detector

Fit = Callable[..., Trainer]

ELSEWHERE = {
    # Mosaic that never closes, since workers that live on do not hear of it.
    "B01": ["data/test_loader.py::test_mosaic_closes_for_workers_that_live_on"],
    # The same draws in every epoch, or in every worker.
    "B04": [
        "data/test_loader.py::test_every_sample_of_every_epoch_is_another",
        "data/test_loader.py::test_samples_do_not_depend_on_workers_or_batches",
    ],
    # An average that stays on the CPU after a resume on the GPU.
    "B08": [
        "training/test_fit.py::test_a_gpu_run_resumes_to_the_same_bytes",
        "training/test_fit.py::test_the_average_goes_where_its_module_goes",
    ],
    # Tensors made under inference mode that are updated in a later fit.
    "B10": [
        "training/test_fit.py::test_validate_fit_validate_fit_in_one_process",
        "optim/test_ema.py::test_made_under_inference_mode_it_can_still_be_updated",
    ],
    # Accumulation over more batches than an epoch has.
    "B14": [
        "training/test_fit.py::test_the_average_counts_optimizer_steps",
        "accel/test_replays.py::test_a_setting_of_the_trainer_changes_no_byte",
    ],
    # A step that the gradient scaler skips.
    "B15": [
        "training/test_fit.py::test_a_skipped_fp16_step_still_counts",
        "accel/test_gpu.py::test_sixteen_bits_overflow_and_recover",
    ],
    # A step that returns nothing.
    "B16": [
        "training/test_fit.py::test_a_step_that_returns_nothing_is_passed_over",
        "accel/test_replays.py::test_steps_that_return_no_loss_are_skipped_alike",
    ],
    # Debug switches of the Trainer.
    "B18": [
        "training/test_fit.py::test_debug_switches",
        "data/test_datamodule.py::test_the_switches_of_the_trainer_work",
        "accel/test_replays.py::test_a_setting_of_the_trainer_changes_no_byte",
    ],
    # Two deterministic runs that differ.
    "B19": [
        "training/test_fit.py::test_two_runs_of_one_seed_are_equal",
        "training/test_fit.py::test_two_runs_on_a_gpu_are_equal",
    ],
    # More shared memory than there is.
    "B20": ["data/test_workers.py::test_both_pools_together_keep_to_half_of_what_is_free"],
    # A learning rate that the checkpoint silently replaces.
    "B23": ["training/test_resume.py::test_other_settings_on_resume_are_told"],
}

NOT_HERE = {
    "B21": "no data set is held in memory: a worker keeps the pictures of one group of 16, see data/test_recent.py",
}

CASES = [f"B{n:02}" for n in (1, 4, 6, 8, 10, 11, 13, 14, 15, 16, 18, 19, 20, 21, 23, 24)]


def test_every_case_is_somewhere() -> None:
    here = {found[1].upper() for name in globals() if (found := re.match(r"test_(b\d\d)_", name))}
    assert sorted([*here, *ELSEWHERE, *NOT_HERE]) == CASES
    for place in (place for places in ELSEWHERE.values() for place in places):
        file, _, name = place.partition("::")
        tree = ast.parse((Path(__file__).parents[1] / file).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, place


def test_b06_validation_before_the_first_update_sees_the_weights_of_the_network(fit: Fit, tmp_path: Path) -> None:
    """Also the weights that a run was started from, which are not those the average was first made of."""
    fit(max_epochs=1).save_checkpoint(tmp_path / "start.ckpt")
    seen: list[bool] = []

    class Compare(Callback):
        def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            assert isinstance(pl_module, Detector)
            live, averaged = pl_module.network.state_dict(), pl_module.average.network.state_dict()
            seen.append(all(torch.equal(averaged[name], tensor) for name, tensor in live.items()))

    fit([Compare()], num_sanity_val_steps=1, max_epochs=1)
    assert seen == [True, False]
    seen.clear()
    started = {"weights": str(tmp_path / "start.ckpt")}
    fit([Compare()], num_sanity_val_steps=1, max_epochs=1, model=started)
    assert seen == [True, False]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_b11_a_checkpoint_keeps_every_bit_of_large_and_small_momentum(fit: Fit, tmp_path: Path, precision: str) -> None:
    odd = torch.tensor([1e5, 1e-9, 1.0 + 2**-23, -3e-38])

    def momentum(trainer: Trainer) -> list[Tensor]:
        (state,) = [optimizer.state for optimizer in trainer.optimizers]
        return [value for entry in state.values() for value in entry.values() if value.numel() >= len(odd)]

    class Save(Callback):
        def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
            if trainer.global_step == 3:
                for tensor in momentum(trainer):
                    tensor.view(-1)[: len(odd)] = odd
                trainer.save_checkpoint(tmp_path / "odd.ckpt")

    class Load(Callback):
        found = 0

        def on_train_start(self, trainer: Trainer, *_: Any) -> None:
            self.found = len(momentum(trainer))
            assert all(torch.equal(tensor.view(-1)[: len(odd)], odd) for tensor in momentum(trainer))
            assert all(tensor.dtype == torch.float32 for tensor in momentum(trainer))

    fit([Save()], max_epochs=1, precision=precision)
    loaded = Load()
    fit([loaded], max_epochs=2, precision=precision, ckpt_path=tmp_path / "odd.ckpt")
    assert loaded.found > 100


def test_b13_the_last_window_of_an_accumulation_is_divided_like_a_whole_one(fit: Fit) -> None:
    """Lightning's rule, as docs/decisions/several-processes.md says: a window of two, and one of one."""
    shares: list[float] = []

    class Shares(Callback):
        loss = 0.0

        def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
            self.loss = float(loss)

        def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any) -> None:
            shares.append(self.loss / float(outputs["scalars"]["loss"]))

    trainer = fit([Shares()], accumulate_grad_batches=2)
    assert trainer.global_step == 4
    assert shares == pytest.approx([0.5] * 6)


def alive(group: int) -> list[str]:
    """Processes of a group that have not ended, by their state."""
    states = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of) == group and state != "Z":
            states.append(stat.parent.name)
    return states


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("interrupt", [False, True], ids=["ends", "interrupted"])
@pytest.mark.parametrize("accelerator", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_b24_a_run_ends_by_itself_and_leaves_no_process(
    shapes: Path, tmp_path: Path, accelerator: str, interrupt: bool
) -> None:
    """With workers that live on and accelerations; interrupted in the middle of an epoch, as ctrl-c does it."""
    command = [sys.executable, "-m", "lucid_core", "fit", "--data.root", str(shapes), "--data.image_size=64"]
    command += ["--data.batch_size=2", "--data.workers=2", "--data.val_workers=1", "--trainer.devices=1"]
    command += [f"--trainer.accelerator={accelerator}", f"--trainer.max_epochs={500 if interrupt else 1}"]
    command += [
        "--trainer.log_every_n_steps=1",
        "--trainer.callbacks+=lucid_accel.NetworkReplay",
    ]
    path = os.pathsep.join([str(Path(__file__).parents[2] / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    output = tmp_path / "output.txt"
    with output.open("w") as out:
        # A shell lets what it starts in the background ignore ctrl-c, and what that starts too.
        heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        run = subprocess.Popen(
            command, cwd=tmp_path, env=env, stdout=out, stderr=out, start_new_session=True, preexec_fn=heed
        )
    try:
        if interrupt:
            metrics = tmp_path / "runs/version_0/metrics.csv"
            deadline = time.monotonic() + 240
            while not metrics.exists() and run.poll() is None and time.monotonic() < deadline:
                time.sleep(0.2)
            assert len(alive(run.pid)) >= 3
            os.killpg(run.pid, signal.SIGINT)
        status = run.wait(timeout=300)
        deadline = time.monotonic() + 10
        while alive(run.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert alive(run.pid) == []
    finally:
        if alive(run.pid):
            os.killpg(run.pid, signal.SIGKILL)
    assert bool(status) == interrupt, output.read_text()
