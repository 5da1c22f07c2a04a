"""From raw predictions to metrics, for one or both decoders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from lucid_core.evaluation.coco import CocoEvaluation
from lucid_core.evaluation.decode import end_to_end
from lucid_core.evaluation.engines import Engine
from lucid_core.evaluation.found import EvaluationData
from lucid_core.evaluation.metrics import Metrics
from lucid_core.evaluation.nms import with_nms
from lucid_core.evaluation.table import class_table, results_json, summary
from lucid_core.types import Batch, Detections, Predictions

__all__ = ["Decoder", "Evaluator", "detect"]

Decoder = Literal["end_to_end", "nms"]


def detect(predictions: Predictions, decoder: Decoder) -> Detections:
    """Decode predictions of any task.

    ``end_to_end`` reads the one-to-one branch, ``nms`` suppresses overlaps of the other, exact ones where boxes are
    oriented.
    """
    found = (
        with_nms(predictions.one_to_many, predictions.anchors)
        if decoder == "nms"
        else end_to_end(predictions.one_to_one, predictions.anchors)
    )
    prototypes = predictions.prototypes
    return found if prototypes is None else found._replace(prototypes=prototypes.float())


class Evaluator:
    """Collects the detections of a data set and measures them.

    Args:
        data: Records with their truth; their classes are those of the detector.
        decoders: What to measure; the first one gives the figures without a prefix.
        engine: Evaluator of COCO metrics.
    """

    def __init__(self, data: EvaluationData, decoders: Sequence[Decoder], engine: Engine) -> None:
        self._evaluations = {decoder: CocoEvaluation(data, engine) for decoder in decoders}
        self._metrics: dict[Decoder, Metrics] = {}

    @property
    def first(self) -> CocoEvaluation:
        """What the first decoder detected."""
        return next(iter(self._evaluations.values()))

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add the detections of a batch."""
        for decoder, evaluation in self._evaluations.items():
            evaluation.update(detect(predictions, decoder), batch.records, batch.letterbox)

    def compute(self) -> dict[str, float]:
        """Gather the detections of all processes and return the COCO numbers by name."""
        figures: dict[str, float] = {}
        for place, (decoder, evaluation) in enumerate(self._evaluations.items()):
            evaluation.gather()
            self._metrics[decoder] = evaluation.compute()
            prefix = f"{decoder}/" if place else ""
            figures |= {f"{prefix}{name}": value for name, value in self._metrics[decoder].scalars().items()}
        return figures

    def report(self) -> str:
        """Return what was measured as tables for the terminal."""
        parts = []
        for decoder, metrics in self._metrics.items():
            title = f"{decoder} decoding, averaged weights; AP and AR are means over IoU 0.50 to 0.95"
            parts.append(f"\n{title}\n{class_table(metrics)}\n\n{summary(metrics)}")
        return "\n".join(parts)

    def write_detections(self, folder: Path) -> None:
        """Write the detections of each decoder as ``detections-<decoder>.json`` in COCO's result format."""
        for decoder, evaluation in self._evaluations.items():
            (folder / f"detections-{decoder}.json").write_text(json.dumps(results_json(evaluation)))
