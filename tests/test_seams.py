"""Claims on seams: one owner, nothing left behind."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lucid_core.network.detector import Network
from lucid_core.optim.musgd import MuSGD
from lucid_core.seams import SeamConflict, claim


def network() -> Network:
    torch.manual_seed(0)
    return Network("n", 2).eval()


def recorder(calls: list[str], name: str = "seen") -> Callable[..., Any]:
    def replacement(native: Callable[..., Any], *args: Any) -> Any:
        calls.append(name)
        return native(*args)

    return replacement


IMAGE = torch.rand(1, 3, 64, 64)


def test_a_claim_replaces_the_call_until_it_is_released() -> None:
    net, calls = network(), list[str]()
    before = net(IMAGE)
    taken = claim(net, "step.network", "Recorder", net, recorder(calls))
    inside = net(IMAGE)
    assert calls == ["seen"]
    assert torch.equal(before.one_to_one.logits, inside.one_to_one.logits)
    taken.release()
    taken.release()
    net(IMAGE)
    assert calls == ["seen"]


def test_only_the_claimed_object_is_affected() -> None:
    net, other, calls = network(), network(), list[str]()
    taken = claim(net, "step.network", "Recorder", net, recorder(calls))
    other(IMAGE)
    copy.deepcopy(net)(IMAGE)
    pickle.loads(pickle.dumps(net))(IMAGE)
    assert calls == []
    assert not any("claim" in name or "seam" in name for name in vars(net))
    taken.release()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("step.network", "step.network"),
        ("step.network", "step.network.features"),
        ("step.network.heads", "step.network"),
        ("step", "step.objective.detection"),
        ("update.prepare", "update.prepare.orthogonalize"),
    ],
)
def test_overlapping_claims_are_refused(first: str, second: str) -> None:
    scope = network()
    taken = claim(scope, first, "FirstReplay")
    with pytest.raises(SeamConflict, match=f"SecondReplay wants {second}, and FirstReplay holds {first}"):
        claim(scope, second, "SecondReplay")
    claim(network(), second, "SecondReplay").release()
    taken.release()
    claim(scope, second, "SecondReplay").release()


def test_neighbours_are_no_conflict() -> None:
    scope = network()
    paths = ("step.network.features", "step.network.heads", "step.objective", "update.norm", "update.prepare", "ema")
    for taken in [claim(scope, path, path) for path in paths]:
        taken.release()


def test_an_unknown_seam_is_named() -> None:
    with pytest.raises(KeyError, match=r"step\.netwrok"):
        claim(network(), "step.netwrok", "Recorder")


def test_a_claim_that_could_never_run_is_refused() -> None:
    net = network()
    with pytest.raises(TypeError, match="only one of target and replacement"):
        claim(net, "step", "Recorder", replacement=recorder([]))
    with pytest.raises(TypeError, match=r"step\.objective, which is .*Objective\.forward, on a Network"):
        claim(net, "step.objective", "Recorder", net, recorder([]))
    claim(net, "step.network", "Recorder", net, recorder([])).release()


def test_a_claim_does_not_keep_its_objects() -> None:
    net = network()
    alive = weakref.ref(net)
    taken = claim(net, "step.network", "Recorder", net, recorder([]))
    del net
    gc.collect()
    assert alive() is None
    taken.release()


def test_a_replacement_runs_without_gradients_where_the_method_does() -> None:
    p = torch.nn.Parameter(torch.zeros(2))
    optimizer, modes = MuSGD([p], lr=0.1), list[bool]()
    taken = claim(optimizer, "update", "Recorder", optimizer, lambda native: modes.append(torch.is_grad_enabled()))
    p.grad = torch.ones(2)
    optimizer.step()
    assert modes == [False]
    assert not p.any()
    taken.release()
