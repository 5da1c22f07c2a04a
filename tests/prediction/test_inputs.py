"""Pictures are made ready in several threads, and come out as they would in one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from lucid_core.prediction.inputs import Input, read_ahead


def test_one_picture_of_pillow_may_be_given_many_times(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (1000, 1000, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    for _ in range(3):
        # Opened, and not loaded: each thread that is given it would start to.
        with Image.open(tmp_path / "a.png") as picture:
            made = list(read_ahead([picture] * 8, 64, threads=4, ahead=8))
        assert all(isinstance(one, Input) for one in made), made
        assert len({one.sample.image.tobytes() for one in made if isinstance(one, Input)}) == 1
