"""Contexts of torch in which a call is native: a replay would pass them by."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from lucid_accel.reasons import Reason

__all__ = ["native_context"]


def native_context(differentiable: bool) -> Reason | None:
    """Say why a call here and now has to be native, ``None`` if it need not.

    Args:
        differentiable: What is called takes part in a backward; else it is for where gradients are off.
    """
    if torch.is_inference_mode_enabled():
        return Reason.INFERENCE
    if torch.is_grad_enabled() is not differentiable:
        return Reason.GRAD_DISABLED if differentiable else Reason.GRAD_ENABLED
    if torch.is_anomaly_enabled():
        return Reason.ANOMALY
    if torch.compiler.is_compiling():
        return Reason.COMPILING
    return Reason.HOOKS if _is_seen() else None


def _is_seen() -> bool:
    """Whether somebody sees operators, functions or saved tensors as they pass, or transforms them.

    A replay would pass unseen. Among these are ``torch.func``, forward-mode differentiation and checkpointing.
    """
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        or any(not isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())  # type: ignore[no-untyped-call]
    )
