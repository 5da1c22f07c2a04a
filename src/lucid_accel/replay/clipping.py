"""Whether Lightning clips the gradients of a run by their norm, in its own way."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from torch.nn.utils.clip_grad import clip_grad_norm_

from lucid_accel.adapters import is_free

__all__ = ["is_stock", "off", "own_method"]

#: Methods of a precision plugin that clipping goes through, as Lightning has them before anybody patches a class.
_STOCK = {
    name: [getattr(kind, name) for kind in (Precision, MixedPrecision)]
    for name in ("clip_gradients", "clip_grad_by_norm", "main_params")
}


def is_stock() -> bool:
    """Whether torch's function is the one that this module was imported with."""
    return torch.nn.utils.clip_grad_norm_ is clip_grad_norm_


def off(trainer: pl.Trainer) -> str | None:
    """Say why gradients are not clipped by norm, if they are not."""
    limit, algorithm = trainer.gradient_clip_val, trainer.gradient_clip_algorithm
    if limit is None or limit <= 0:
        return f"clipping is off, with gradient_clip_val={limit}"
    if algorithm is not None and algorithm != "norm":
        return f"gradients are clipped by {getattr(algorithm, 'value', algorithm)}"
    return None


def own_method(plugin: Precision) -> str | None:
    """Return the method of clipping that is not Lightning's, if one is not."""
    for name, stock in _STOCK.items():
        if getattr(type(plugin), name) not in stock or not is_free(plugin, name):
            return name
    return None
