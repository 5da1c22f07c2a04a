"""Work that is recorded as branches: the values of one after another, at once where there is a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from lucid_accel.graphs.cuda import BRANCHES, CudaGraphEngine
from lucid_accel.graphs.engine import CaptureError, Engine
from lucid_accel.graphs.tape import TapeEngine

ENGINES = [
    pytest.param(TapeEngine, torch.device("cpu"), id="tape"),
    pytest.param(CudaGraphEngine, torch.device("cuda", 0), id="cuda", marks=pytest.mark.gpu),
]


@pytest.mark.parametrize(("kind", "device"), ENGINES)
@pytest.mark.parametrize("count", [0, 1, BRANCHES, 2 * BRANCHES + 1])
def test_results_come_in_order(kind: Callable[..., Engine], device: torch.device, count: int) -> None:
    engine = kind(device)
    bases = [torch.full((64, 64), float(index), device=device) for index in range(count)]

    def turned(base: Tensor) -> Tensor:
        return (base.cos() @ base.sin()).cumsum(0)

    def body() -> list[Tensor]:
        # What comes before and after waits for the branches, and they for it.
        moved = [base + 1 for base in bases]
        return [x * 2 for x in engine.branches([partial(turned, x) for x in moved])]

    expected = [turned(base + 1) * 2 for base in bases]
    graph, results = engine.capture(body)
    for _ in range(2):
        graph.replay()
        assert all(torch.equal(x, y) for x, y in zip(results, expected, strict=True))
        for x in results:
            x.zero_()
    for base in bases:
        base.add_(1)
    graph.replay()
    assert all(torch.equal(x, turned(base + 1) * 2) for x, base in zip(results, bases, strict=True))


def explode(x: Tensor) -> None:
    raise ValueError("no such luck")


def read_on_host(x: Tensor) -> None:
    x.sum().item()


@pytest.mark.parametrize(("kind", "device"), ENGINES)
@pytest.mark.parametrize(("fault", "told"), [(explode, "no such luck"), (read_on_host, "captur|reads a value")])
@pytest.mark.parametrize("place", range(BRANCHES))
def test_a_body_that_fails_leaves_a_device_that_records(
    kind: Callable[..., Engine], device: torch.device, fault: Callable[[Tensor], None], told: str, place: int
) -> None:
    engine, x = kind(device), torch.ones(3, device=device)

    def fails(index: int) -> Tensor:
        if index == place:
            fault(x)
        return x + index

    with pytest.raises(CaptureError, match=told):
        engine.capture(lambda: engine.branches([partial(fails, index) for index in range(BRANCHES)]))
    assert not engine.is_capturing()
    for again in (engine, kind(device)):
        graph, (one, two) = again.capture(lambda again=again: again.branches([lambda: x + 1, lambda: x + 2]))
        graph.replay()
        assert (one.tolist(), two.tolist()) == ([2.0] * 3, [3.0] * 3)


@pytest.mark.gpu
def test_branches_run_at_once() -> None:
    engine = CudaGraphEngine(torch.device("cuda", 0))

    def sleep() -> None:
        torch.cuda._sleep(20_000_000)

    def seconds(body: Callable[[], object]) -> float:
        graph, _ = engine.capture(body)
        graph.replay()
        # The best of several: another process may use the device in between.
        taken = []
        for _ in range(5):
            torch.cuda.synchronize()
            start = time.perf_counter()
            graph.replay()
            torch.cuda.synchronize()
            taken.append(time.perf_counter() - start)
        return min(taken)

    bodies = [sleep] * BRANCHES
    apart = seconds(lambda: engine.branches(bodies))
    in_turn = seconds(lambda: [body() for body in bodies])
    assert apart < 0.5 * in_turn
