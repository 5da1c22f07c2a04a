"""From the key of a sample to its pixels and labels."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial

import cv2
import numpy as np
from numpy.typing import NDArray

from lucid_core.data.colour import apply_colour, colour_matrix
from lucid_core.data.geometry import flip
from lucid_core.data.mix import Labelled, copy_paste, mixup
from lucid_core.data.mosaic import Picture, draw_centre, draw_scale, mosaic, single, warp
from lucid_core.data.plan import EpochPlan
from lucid_core.data.points import Pairs
from lucid_core.data.random import Stream, sample_rng
from lucid_core.data.recent import RecentSources, Source
from lucid_core.data.types import Record, Sample, SampleKey
from lucid_core.seams import seam

__all__ = ["Augmenter", "Recipe"]


@dataclass(frozen=True)
class Recipe:
    """How training images are varied. A value of 0 switches a step off.

    Attributes:
        mosaic: Probability of laying four images together, while the epoch plan has mosaic on.
        scale: Objects appear up to ``1 + scale`` times larger or smaller than in evaluation.
        translate: The image, or the point where four meet, moves by up to this share of the canvas.
        degrees: Largest rotation, either way.
        shear: Largest shear along x and along y, degrees.
        mixup: Probability of blending in a second sample.
        copy_paste: Probability of pasting outlined objects of another image; no effect without polygons.
        hue: Largest turn of colours, in turns.
        saturation: Largest relative change of saturation.
        value: Largest relative change of brightness.
        flip: Probability of mirroring left and right.
    """

    mosaic: float = 1.0
    scale: float = 0.5
    translate: float = 0.1
    degrees: float = 0.0
    shear: float = 0.0
    mixup: float = 0.0
    copy_paste: float = 0.1
    hue: float = 0.015
    saturation: float = 0.7
    value: float = 0.4
    flip: float = 0.5

    def __post_init__(self) -> None:
        limits = dict.fromkeys(("mosaic", "mixup", "copy_paste", "saturation", "value", "flip"), 1.0)
        limits |= {"scale": 3.0, "translate": 0.5, "degrees": 180.0, "shear": 45.0, "hue": 0.5}
        for name, limit in limits.items():
            given = getattr(self, name)
            if not 0 <= given <= limit:
                raise ValueError(f"recipe.{name} is {given}; it must lie in [0, {limit:g}]")


class Augmenter:
    """Makes training samples. A sample depends on its key, the seed, the recipe and the data set, on nothing else.

    Args:
        source: Gives images at evaluation scale; they are only read.
        records: The split.
        plan: Which record stands where, and who belongs to one group.
        size: Side of a sample, pixels.
        recipe: What to vary.
        seed: Seed of the run.
        pairs: Key points that change places in a mirrored image; ``None`` mirrors none, since that is not known.
    """

    def __init__(
        self,
        source: Source,
        records: Sequence[Record],
        plan: EpochPlan,
        size: int,
        recipe: Recipe,
        seed: int,
        pairs: Pairs | None = (),
    ) -> None:
        self.source = RecentSources(source)
        self.records = records
        self.plan = plan
        self.size = size
        self.recipe = recipe
        self.seed = seed
        self.pairs = pairs
        self._outlined = any(rings for record in records for rings in record.instances.polygons)

    def fresh(self) -> Augmenter:
        """Return another one that makes the same samples: it keeps images of its own, and has no seam taken."""
        made = copy(self)
        made.source = RecentSources(self.source.inner)
        return made

    def sample(self, key: SampleKey) -> Sample:
        """Make one sample.

        Returns:
            ``(S, S, 3)`` uint8 RGB with its labels in pixels; all memory is the sample's own.

        Raises:
            DataError: A file that it needs cannot be read.
        """
        recipe = self.recipe
        draws = partial(sample_rng, self.seed, key.epoch, key.position)
        made = self._geometry(key, draws(Stream.GEOMETRY), key.mosaic)
        rng, pasted = draws(Stream.PASTE), range(0)
        if rng.random() < recipe.copy_paste and self._outlined:
            partner = self._partners(key, rng, 1)[0]
            before = len(made[1])
            made = copy_paste(made, self._geometry(key._replace(position=partner), rng, False))
            pasted = range(before, len(made[1]))
        rng = draws(Stream.MIXUP)
        if rng.random() < recipe.mixup:
            share = rng.beta(32.0, 32.0)
            partner = self._partners(key, rng, 1)[0]
            made = mixup(made, self._geometry(key._replace(position=partner), rng, key.mosaic), share)
        image, instances = made
        gains = draws(Stream.COLOUR).uniform(-1, 1, 3) * (recipe.hue, recipe.saturation, recipe.value)
        image = self.colour(image, gains)
        if self.pairs is not None and draws(Stream.FLIP).random() < recipe.flip:
            image = cv2.flip(image, 1).astype(np.uint8, copy=False)
            instances = flip(instances, self.size, self.pairs)
        return Sample(image, instances, int(self.plan.order(key.epoch)[key.position]), pasted=pasted)

    @seam("data.colour")
    def colour(self, image: NDArray[np.uint8], gains: NDArray[np.float64]) -> NDArray[np.uint8]:
        """Change the colours of a sample.

        Args:
            image: ``(S, S, 3)`` uint8.
            gains: ``(3,)`` float64, see :func:`~lucid_core.data.colour.colour_matrix`.
        """
        return apply_colour(image, colour_matrix(gains)) if gains.any() else image

    def _geometry(self, key: SampleKey, rng: np.random.Generator, may_mosaic: bool) -> Labelled:
        recipe, size = self.recipe, self.size
        four = may_mosaic and rng.random() < recipe.mosaic
        scale = draw_scale(rng, recipe.scale, 4 if four else 1)
        if four:
            positions = [key.position, *self._partners(key, rng, 3)]
            pictures = [self._picture(key.epoch, position) for position in positions]
            made = mosaic(pictures, size, scale, draw_centre(rng, size, scale, recipe.translate))
        else:
            across, down = rng.uniform(-1, 1, 2) * (recipe.translate * size)
            made = single(self._picture(key.epoch, key.position), size, scale, (across, down))
        if recipe.degrees or recipe.shear:
            angle, *shear = rng.uniform(-1, 1, 3) * (recipe.degrees, recipe.shear, recipe.shear)
            made = warp(*made, angle, (shear[0], shear[1]))
        return made

    def _partners(self, key: SampleKey, rng: np.random.Generator, count: int) -> list[int]:
        group = self.plan.group(key.position)
        others = [position for position in group if position != key.position] or list(group)
        return [int(position) for position in rng.choice(others, count, replace=len(others) < count)]

    def _picture(self, epoch: int, position: int) -> Picture:
        index = int(self.plan.order(epoch)[position])
        record = self.records[index]
        return Picture(self.source.source(index), record.instances, record.width, record.height)
