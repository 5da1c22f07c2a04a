"""What the parts do, alone and together."""

from __future__ import annotations

import gc

import pytest
import torch
from test_accelerations import batches, module

from lucid_accel import AccelerationWarning, NetworkReplay
from lucid_accel.testing import assert_parity, cpu_engine, run
from lucid_example.collection import ScheduledCollection
from lucid_example.criterion import CriterionReplay
from lucid_example.optimizer import CentredSGD
from lucid_example.precision import PerTensorClip


def test_they_work_beside_the_precision_plugin() -> None:
    with cpu_engine():
        accelerations = [NetworkReplay(strict=True), CriterionReplay(strict=True)]
        assert_parity(module, batches, accelerations, plugins=PerTensorClip(), gradient_clip_val=0.01)


def test_without_a_gpu_training_goes_on_with_one_warning() -> None:
    with pytest.warns(AccelerationWarning, match="it needs an NVIDIA GPU") as warned:
        run(module, batches, [CriterionReplay()])
    assert len([item for item in warned if item.category is AccelerationWarning]) == 1


def test_the_collector_is_on_again_after_the_fit() -> None:
    run(module, batches, [ScheduledCollection(every=2)])
    assert gc.isenabled()


def test_where_the_collector_is_off_there_is_nothing_to_do() -> None:
    gc.disable()
    try:
        with pytest.warns(AccelerationWarning, match=r"leave out gc\.disable"):
            run(module, batches, [ScheduledCollection()])
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_each_gradient_is_clipped_by_a_norm_of_its_own() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
    for parameter, gradient in zip(parameters, ([3.0, 4.0], [0.3, 0.4], [0.0, 0.0]), strict=True):
        parameter.grad = torch.tensor(gradient)
    PerTensorClip().clip_grad_by_norm(torch.optim.SGD(parameters), 1.0)
    expected = torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]])
    torch.testing.assert_close(torch.stack([x.grad for x in parameters if x.grad is not None]), expected)


def test_gradients_are_centred_after_the_closure() -> None:
    matrix, vector = torch.nn.Parameter(torch.zeros(2, 2)), torch.nn.Parameter(torch.zeros(2))

    def closure() -> str:
        matrix.grad, vector.grad = torch.tensor([[1.0, 3.0], [2.0, 2.0]]), torch.ones(2)
        return "loss"

    assert CentredSGD([matrix, vector], lr=1.0).step(closure) == "loss"
    assert matrix.tolist() == [[1.0, -1.0], [0.0, 0.0]]
    assert vector.tolist() == [-1.0, -1.0]
