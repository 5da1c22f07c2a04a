"""Two libraries that match detections with ground truth as COCO does, behind one call.

``pycocotools`` is the reference, ``faster_coco_eval`` the same arithmetic in C++.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from lucid_core.evaluation.original import Float64

__all__ = ["RECALL_THRESHOLDS", "Curves", "Engine", "Kind", "curves"]

Engine = Literal["faster", "pycocotools"]
Kind = Literal["bbox", "segm", "keypoints"]

#: The reference's own recall grid in double precision. In float32 it would lie above ``k / 100`` at 36 of 101 points,
#: and a recall that is exactly ``k / 100`` would miss its threshold.
RECALL_THRESHOLDS = np.linspace(0.0, 1.0, 101)


class Curves(NamedTuple):
    """What an engine accumulates; -1 where nothing was to be found.

    ``T`` IoU thresholds 0.50:0.05:0.95, ``R`` recall thresholds, ``K`` classes, areas (all, small, medium, large),
    at most (1, 10, 100) detections per image and class. Of key points, areas are (all, medium, large), and at most 20
    detections count.

    Attributes:
        precision: ``(T, R, K, 4, 3)``; of key points ``(T, R, K, 3, 1)``.
        recall: ``(T, K, 4, 3)``; of key points ``(T, K, 3, 1)``.
    """

    precision: Float64
    recall: Float64


def curves(
    engine: Engine,
    truth: dict[str, Any],
    detections: dict[str, Any],
    kind: Kind = "bbox",
    sigmas: Sequence[float] = (),
) -> Curves:
    """Match and accumulate.

    Args:
        engine: Which library.
        truth: A data set in COCO form; annotation ids start at 1, since both libraries take 0 for "not matched".
        detections: The same images and categories, with scored annotations. May have none. Both are modified.
        kind: What is compared: boxes, masks or key points.
        sigmas: Spread of each key point, as a part of the root of the area.

    Returns:
        The curves of all images of ``truth``.

    Raises:
        ValueError: No such engine.
    """
    coco, evaluator = _libraries(engine)
    with redirect_stdout(io.StringIO()):  # pycocotools prints, and cannot be told not to
        run = evaluator(_indexed(coco, truth), _indexed(coco, detections), kind)
        if kind == "keypoints":
            run.params.kpt_oks_sigmas = np.array(sigmas)
            # One library leaves out classes without objects here, which would move the others up.
            run.params.catIds = sorted(category["id"] for category in truth["categories"])
        run.params.recThrs = RECALL_THRESHOLDS
        run.evaluate()
        run.accumulate()
    return Curves(np.asarray(run.eval["precision"]), np.asarray(run.eval["recall"]))


def _libraries(engine: Engine) -> tuple[Any, Any]:
    if engine == "faster":
        from faster_coco_eval import COCO, COCOeval_faster

        return COCO, COCOeval_faster
    if engine == "pycocotools":
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        return COCO, COCOeval
    raise ValueError(f"no evaluation engine is called {engine!r}; engines are {', '.join(get_args(Engine))}")


def _indexed(coco: Any, dataset: dict[str, Any]) -> Any:
    """Skip ``loadRes``: it fails on no detections at all and adds a polygon to each of a million boxes."""
    indexed = coco()
    indexed.dataset = dataset
    indexed.createIndex()
    return indexed
