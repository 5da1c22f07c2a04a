"""Nothing between the arrival of a batch and the end of the optimizer step is read back by the host."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import lucid_core
from lucid_core.module import Detector
from lucid_core.network.detector import Network
from lucid_core.optim.build import build_optimizer
from lucid_core.optim.ema import AveragedNetwork
from lucid_core.types import Batch, Targets, Task
from tests.objective.tasks import CANVAS, CLASSES, POINTS, TASKS, objective_of, targets_of

aten = torch.ops.aten


class HostRead(AssertionError):
    """An operation that makes the host wait for the device, or whose shape depends on values."""


class NoHostReads(TorchDispatchMode):
    """Refuse what would synchronise on a GPU, wherever it runs."""

    READS = (aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.lift_fresh, aten.equal, aten.bincount)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in self.READS:
            raise HostRead(f"{func} in the step")
        indexing = func.overloadpacket in (aten.index, aten.index_put, aten.index_put_)
        if indexing and any(index is not None and index.dtype == torch.bool for index in args[1]):
            raise HostRead(f"{func} by a mask in the step")
        return func(*args, **(kwargs or {}))


def make(device: str, capacity: int = 4, filled: int = 3) -> tuple[Any, Any]:
    torch.manual_seed(0)
    module = Detector(["a", "b"]).to(device).train()
    optimizer = build_optimizer("musgd", module.network.parameters(), 0.01, 0.95, 5e-4)
    average = AveragedNetwork(module.network)
    valid = torch.arange(capacity).expand(2, -1) < filled
    corner = torch.rand(2, capacity, 2) * 30
    boxes = torch.cat((corner, corner + 20), 2) * valid.unsqueeze(2)
    targets = Targets(*(t.to(device) for t in (boxes, valid.long(), valid.clone())))
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8, device=device)
    batch = Batch(images, targets, torch.arange(2), torch.zeros(2, 3))

    def step() -> None:
        unpacked = module.unpack(batch)
        losses = module.objective(module.network(unpacked.images), unpacked.targets)
        losses.total.backward()
        optimizer.step()
        optimizer.zero_grad()
        average.write_scalars()
        average.update()
        losses.scalars()

    return step, module


def make_task(task: Task, device: str, filled: int) -> tuple[Any, Any]:
    """A step of a task by its parts."""
    torch.manual_seed(0)
    network, objective = Network("n", CLASSES, task, POINTS).to(device).train(), objective_of(task).to(device)
    optimizer = build_optimizer("musgd", [*network.parameters(), *objective.parameters()], 0.01, 0.95, 5e-4)
    targets = Targets(*(None if t is None else t.to(device) for t in targets_of(task, (filled, 0))))
    images = torch.rand(2, 3, CANVAS, CANVAS, device=device)

    def step() -> None:
        losses = objective(network(images), targets)
        losses.total.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.scalars()

    return step, network


@pytest.mark.parametrize("filled", [0, 3])
@pytest.mark.parametrize("task", TASKS)
def test_no_host_read_in_a_step_of_a_task(task: Task, filled: int) -> None:
    step, _ = make_task(task, "cpu", filled)
    step()  # the canvas is new, and its anchors are made once
    with NoHostReads():
        step()
        step()


@pytest.mark.parametrize("filled", [0, 3])
def test_no_host_read_in_a_step(filled: int) -> None:
    step, _ = make("cpu", filled=filled)
    with NoHostReads():
        step()
        step()


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: x[x > 0],
        lambda x: (x > 0).nonzero(),
        lambda x: x.new_tensor([1.0, 2.0]),
    ],
)
def test_the_check_sees_host_reads(read: Any) -> None:
    with NoHostReads(), pytest.raises(HostRead):
        read(torch.rand(3, 4))


def test_no_source_line_copies_to_the_host() -> None:
    """``tolist`` and its kind read CPU memory without an operation that a dispatch mode could see."""
    root = Path(lucid_core.__file__).parent
    files = [path for part in ("network", "objective", "optim") for path in (root / part).glob("*.py")]
    files.append(root / "module.py")
    assert {"segment.py", "oriented.py", "keypoints.py", "flow.py", "masks.py"} < {path.name for path in files}
    for path in files:
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        calls = [node.func.attr for node in nodes if isinstance(node.func, ast.Attribute)]
        assert not {"item", "tolist", "numpy", "cpu", "nonzero"} & set(calls), path


@contextmanager
def sync_errors() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("filled", [0, 3])
def test_no_synchronisation_in_a_step(filled: int) -> None:
    step, module = make("cuda", filled=filled)
    with torch.autocast("cuda", torch.bfloat16):
        step()
        with sync_errors():
            step()
    with sync_errors(), pytest.raises(RuntimeError, match="synchronizing"):
        next(module.parameters()).sum().item()


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("filled", [0, 3])
@pytest.mark.parametrize("task", TASKS)
def test_no_synchronisation_in_a_step_of_a_task(task: Task, filled: int, deterministic: bool) -> None:
    """Also with algorithms that give the same bits every time, which not every operation has."""
    step, _ = make_task(task, "cuda", filled)
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    try:
        with warnings.catch_warnings(record=True) as told, torch.autocast("cuda", torch.bfloat16):
            warnings.simplefilter("always")
            step()
            with sync_errors():
                step()
    finally:
        torch.use_deterministic_algorithms(False)
    assert not [str(w.message) for w in told if "does not have a deterministic implementation" in str(w.message)]
