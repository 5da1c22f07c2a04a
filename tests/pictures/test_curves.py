"""What was logged, as curves."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from lucid_core.pictures.curves import MOST, draw_curves, read_metrics

CSV = """epoch,lr-MuSGD,step,train/loss,val/map,val/map_50
0,,9,4.5,,
0,,19,nan,,
0,,19,,0.25,0.5
1,0.01,29,inf,,
1,,39,,0.125,0.25
"""


def test_every_value_is_read_at_its_step(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(CSV)
    series = read_metrics(tmp_path / "metrics.csv")
    assert series["val/map"] == [(19, 0, 0.25), (39, 1, 0.125)]
    assert series["lr-MuSGD"] == [(29, 1, 0.01)]
    assert [(step, math.isnan(value)) for step, _, value in series["train/loss"]] == [
        (9, False),
        (19, True),
        (29, True),
    ]
    assert "step" not in series and "epoch" not in series
    assert read_metrics(tmp_path / "none.csv") == {}


def test_curves_show_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(CSV)
    series = read_metrics(tmp_path / "metrics.csv")
    picture, other = draw_curves(series), draw_curves({**series, "val/map": [(19, 0, 0.25), (39, 1, 0.5)]})
    assert picture is not None and other is not None
    assert picture.shape == (700, 1000, 3)
    # Three panels of four, and only the one of AP moves.
    assert (picture[400:, 540:] == 255).all()
    changed = np.argwhere((picture != other).any(2))
    assert changed[:, 1].min() > 500 and changed[:, 0].max() < 350
    assert draw_curves({}) is None
    assert draw_curves({"something else": [(0, 0, 1.0)]}) is None
    assert draw_curves({"val/map": [(0, 0, math.nan)]}) is not None


def test_a_long_run_is_thinned() -> None:
    thick = {"train/loss": [(step, 0, math.sin(step)) for step in range(10 * MOST)]}
    picture = draw_curves(thick)
    assert picture is not None
    assert np.array_equal(picture, draw_curves(thick))


def test_losses_that_differ_widely_are_still_told_apart() -> None:
    """One value far off must not flatten all others to a line, which it does on a linear scale."""
    falling = [(step, 0, 20.0 - step) for step in range(16)]
    picture = draw_curves({"train/o2o_box": falling, "val/o2o_cls": [(0, 0, 2e4), (15, 0, 5.0)]})
    assert picture is not None
    # Rows of the first panel, left of its legend, that the curve in the first colour of matplotlib runs through.
    blue = (np.abs(picture[:330, 100:350].astype(int) - (31, 119, 180)) < 40).all(2)
    assert blue.any(1).sum() > 15
