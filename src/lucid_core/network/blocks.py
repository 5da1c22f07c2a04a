"""Convolutional building blocks. Each maps ``(B, c_in, H, W)`` to ``(B, c_out, H', W')``, in any memory format."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = [
    "C2PSA",
    "SPPF",
    "C3k2",
    "ConvNorm",
    "ConvNormAct",
    "attention_inner",
    "bottleneck",
    "c3k",
    "depthwise",
]

Inner = Callable[[int], nn.Module]


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation that does not count its batches.

    ``num_batches_tracked`` is read only when ``momentum`` is ``None``. Counting would be one more kernel for each of
    over a hundred layers in every step. The buffer stays, at 0, for what expects a batch normalisation of torch.
    """

    def forward(self, x: Tensor) -> Tensor:
        statistics = self.running_mean, self.running_var
        return functional.batch_norm(
            x, *statistics, self.weight, self.bias, self.training, self.momentum or 0.0, self.eps
        )


class ConvNorm(nn.Sequential):
    """Convolution without bias, then batch normalisation; padded so that stride 1 keeps the size."""

    def __init__(self, c_in: int, c_out: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.norm = BatchNorm(c_out)


class ConvNormAct(ConvNorm):
    """:class:`ConvNorm`, then SiLU.

    The activation is not in place: its backward needs its input, so the in-place form would copy it first.
    """

    def __init__(self, c_in: int, c_out: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__(c_in, c_out, kernel, stride, groups)
        self.act = nn.SiLU()


def depthwise(channels: int, kernel: int = 3) -> ConvNormAct:
    """Return a depthwise convolution with normalisation and activation."""
    return ConvNormAct(channels, channels, kernel, groups=channels)


class Bottleneck(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, channels: int, expansion: float) -> None:
        super().__init__()
        hidden = int(channels * expansion)
        self.reduce = ConvNormAct(channels, hidden, 3)
        self.expand = ConvNormAct(hidden, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.expand(self.reduce(x))
        return out


class C3k(nn.Module):
    """Cross-stage block of two branches, one of which holds ``n`` bottlenecks."""

    def __init__(self, channels: int, n: int) -> None:
        super().__init__()
        hidden = channels // 2
        self.deep = ConvNormAct(channels, hidden)
        self.blocks = nn.Sequential(*(Bottleneck(hidden, 1.0) for _ in range(n)))
        self.skip = ConvNormAct(channels, hidden)
        self.merge = ConvNormAct(2 * hidden, channels)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.merge(torch.cat((self.blocks(self.deep(x)), self.skip(x)), 1))
        return out


class Attention(nn.Module):
    """Multi-head self-attention over positions, with a depthwise convolution of the values as positional term.

    Heads are 64 channels wide; keys and queries half of that. Nothing inside is activated.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.heads = max(1, channels // 64)
        width = channels // self.heads
        self.widths = (width // 2, width // 2, width)
        self.qkv = ConvNorm(channels, self.heads * sum(self.widths))
        self.position = ConvNorm(channels, channels, 3, groups=channels)
        self.project = ConvNorm(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        # Positions before channels: with channels_last memory every step of this is a view.
        tokens = self.qkv(x).flatten(2).transpose(1, 2).unflatten(2, (self.heads, -1)).transpose(1, 2)
        q, k, v = tokens.split(self.widths, 3)
        weights = (q * self.widths[0] ** -0.5 @ k.transpose(2, 3)).softmax(3)
        mixed = self._maps(weights @ v, x)
        out: Tensor = self.project(mixed + self.position(self._maps(v, x)))
        return out

    @staticmethod
    def _maps(tokens: Tensor, like: Tensor) -> Tensor:
        """``(B, heads, H*W, width)`` to ``(B, heads*width, H, W)``."""
        maps = tokens.transpose(1, 2).flatten(2).transpose(1, 2)
        return maps.view(*maps.shape[:2], *like.shape[2:])


class PSABlock(nn.Module):
    """Attention and a two-layer feed-forward network, each around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.attention = Attention(channels)
        self.feed_forward = nn.Sequential(ConvNormAct(channels, 2 * channels), ConvNorm(2 * channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        out: Tensor = x + self.feed_forward(x)
        return out


class C2PSA(nn.Module):
    """Half of the channels pass ``n`` attention blocks, the other half passes by."""

    def __init__(self, channels: int, n: int) -> None:
        super().__init__()
        hidden = channels // 2
        self.split = ConvNormAct(channels, 2 * hidden)
        self.blocks = nn.Sequential(*(PSABlock(hidden) for _ in range(n)))
        self.merge = ConvNormAct(2 * hidden, channels)

    def forward(self, x: Tensor) -> Tensor:
        passed, attended = self.split(x).chunk(2, 1)
        out: Tensor = self.merge(torch.cat((passed, self.blocks(attended)), 1))
        return out


class C3k2(nn.Module):
    """Cross-stage block that keeps the output of each of its ``n`` inner blocks.

    Args:
        c_in: Input channels.
        c_out: Output channels.
        n: Inner blocks.
        inner: Makes an inner block from its width: :func:`bottleneck`, :func:`c3k` or :func:`attention_inner`.
        expansion: Width of an inner block as a part of ``c_out``.
    """

    def __init__(self, c_in: int, c_out: int, n: int, inner: Inner, expansion: float = 0.5) -> None:
        super().__init__()
        hidden = int(c_out * expansion)
        self.split = ConvNormAct(c_in, 2 * hidden)
        self.blocks = nn.ModuleList(inner(hidden) for _ in range(n))
        self.merge = ConvNormAct((2 + n) * hidden, c_out)

    def forward(self, x: Tensor) -> Tensor:
        kept = list(self.split(x).chunk(2, 1))
        for block in self.blocks:
            kept.append(block(kept[-1]))
        out: Tensor = self.merge(torch.cat(kept, 1))
        return out


def bottleneck(channels: int) -> nn.Module:
    """Plain inner block of :class:`C3k2`."""
    return Bottleneck(channels, 1.0)


def c3k(channels: int) -> nn.Module:
    """Deeper inner block of :class:`C3k2`."""
    return C3k(channels, 1)


def attention_inner(channels: int) -> nn.Module:
    """Inner block of the last stage of the neck."""
    return nn.Sequential(C3k(channels, 2), PSABlock(channels))


class SPPF(nn.Module):
    """Spatial pyramid pooling: three 5x5 poolings in a row see 5, 9 and 13 cells; with a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = channels // 2
        self.reduce = ConvNormAct(channels, hidden)
        self.pool = nn.MaxPool2d(5, 1, 2)
        self.merge = ConvNormAct(4 * hidden, channels)

    def forward(self, x: Tensor) -> Tensor:
        levels = [self.reduce(x)]
        for _ in range(3):
            levels.append(self.pool(levels[-1]))
        out: Tensor = x + self.merge(torch.cat(levels, 1))
        return out
