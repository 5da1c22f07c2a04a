from __future__ import annotations

import numpy as np

from lucid_core.evaluation.coco import CocoEvaluation
from lucid_core.evaluation.metrics import Metrics
from lucid_core.evaluation.table import class_table, summary

from .scenes import Scene, as_batch, record


def metrics(names: list[str]) -> Metrics:
    data = Scene([record([[0, 0, 50, 50], [100, 100, 180, 180]], [0, 1])], names, list(range(len(names))))
    evaluation = CocoEvaluation(data)
    evaluation.update(*as_batch(data, [np.array([[0, 0, 50, 50, 0.9, 0.0]])], [0]))
    return evaluation.compute()


def test_class_table() -> None:
    assert class_table(metrics(["cat", "traffic light", "none of it"])).splitlines() == [
        "class           images  objects       AP     AP50       AR",
        "cat                  1        1    1.000    1.000    1.000",
        "traffic light        1        1    0.000    0.000    0.000",
        "none of it           0        0      n/a      n/a      n/a",
        "all                  1        2    0.500    0.500    0.500",
    ]


def test_long_and_wide_names_stay_within_the_terminal() -> None:
    lines = class_table(metrics(["x" * 300, "猫" * 300, "é"]), width=60).splitlines()
    assert {len(line) for line in (lines[0], lines[1], lines[3])} == {60}
    assert "猫" * 7 + " " in lines[2] and "猫" * 8 not in lines[2]


def test_summary_names_twelve_numbers_and_never_minus_one() -> None:
    text = summary(metrics(["cat", "dog"]))
    assert text.splitlines()[0] == "map        0.500    mar_1      0.500"
    assert "map_small    n/a" in text and "-1" not in text
    assert len(text.split()) == 24
