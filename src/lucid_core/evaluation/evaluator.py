"""From raw predictions to metrics, for one or both decoders."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from lucid_core.evaluation.coco import CocoEvaluation
from lucid_core.evaluation.decode import end_to_end
from lucid_core.evaluation.engines import Engine
from lucid_core.evaluation.found import Collected, EvaluationData
from lucid_core.evaluation.metrics import Measured
from lucid_core.evaluation.nms import with_nms
from lucid_core.evaluation.oriented import OrientedEvaluation
from lucid_core.evaluation.results import Part, results_json
from lucid_core.evaluation.table import class_table, summary
from lucid_core.types import Batch, Detections, Predictions, Task

__all__ = ["HEADLINES", "Decoder", "Evaluator", "detect"]

Decoder = Literal["end_to_end", "nms"]

#: The figure of each task that says how good a detector is.
HEADLINES: dict[Task, str] = {"detect": "map", "segment": "segm_map", "obb": "map", "keypoints": "oks_map"}

#: Files of detections, and what each is about; all of it in one file where nothing is named.
_FILES: dict[Task, dict[str, Part | None]] = {
    "detect": {"detections": None},
    "segment": {"detections": "segmentation", "boxes": "bbox"},
    "obb": {"detections": None},
    "keypoints": {"detections": "keypoints", "boxes": "bbox"},
}


class _Measure(NamedTuple):
    """One way to measure what was collected."""

    prefix: str
    subject: str
    similarity: str
    compute: Callable[[], Measured]


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

    Figures are called ``map`` and so on, those of masks ``segm_map``, of key points ``oks_map``, and of pictures put
    together from tiles ``merged_map``; with the name of the decoder before all but the first one's.

    Args:
        data: Records with their truth; their classes are those of the detector.
        decoders: What to measure; the first one gives the figures without a prefix.
        engine: Evaluator of COCO metrics.
        task: What the detector finds.
        sigmas: Spread of each key point; ``None`` for those of :func:`~lucid_core.oks.oks_sigmas`.
    """

    def __init__(
        self,
        data: EvaluationData,
        decoders: Sequence[Decoder],
        engine: Engine,
        task: Task = "detect",
        sigmas: Sequence[float] | None = None,
    ) -> None:
        self._files = _FILES[task]
        self._evaluations: dict[Decoder, Collected] = {}
        self._measures: dict[Decoder, list[_Measure]] = {}
        self._metrics: dict[tuple[Decoder, _Measure], Measured] = {}
        for decoder in decoders:
            if task == "obb":
                oriented = OrientedEvaluation(data)
                measures = [_Measure("", "oriented boxes", "IoU", oriented.compute)]
                if oriented.tiled:
                    subject = "oriented boxes in whole pictures"
                    measures.append(_Measure("merged_", subject, "IoU", oriented.compute_merged))
                self._evaluations[decoder] = oriented
            else:
                coco = CocoEvaluation(data, engine, sigmas)
                measures = [_Measure("", "boxes", "IoU", coco.compute)]
                if task == "segment":
                    measures.append(_Measure("segm_", "masks", "IoU", coco.compute_masks))
                if task == "keypoints":
                    measures.append(_Measure("oks_", "key points", "OKS", coco.compute_points))
                self._evaluations[decoder] = coco
            self._measures[decoder] = measures

    @property
    def first(self) -> Collected:
        """What the first decoder detected."""
        return next(iter(self._evaluations.values()))

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add the detections of a batch."""
        for decoder, evaluation in self._evaluations.items():
            evaluation.update(detect(predictions, decoder), batch.records, batch.letterbox)

    def compute(self) -> dict[str, float]:
        """Gather the detections of all processes and return the numbers by name."""
        figures: dict[str, float] = {}
        for place, (decoder, evaluation) in enumerate(self._evaluations.items()):
            evaluation.gather()
            for measure in self._measures[decoder]:
                metrics = self._metrics[decoder, measure] = measure.compute()
                prefix = f"{decoder}/" * bool(place) + measure.prefix
                figures |= {f"{prefix}{name}": value for name, value in metrics.scalars().items()}
        return figures

    def report(self) -> str:
        """Return what was measured as tables for the terminal."""
        parts = []
        for (decoder, measure), metrics in self._metrics.items():
            title = (
                f"{measure.subject}, {decoder} decoding, averaged weights; "
                f"AP and AR are means over {measure.similarity} 0.50 to 0.95"
            )
            parts.append(f"\n{title}\n{class_table(metrics)}\n\n{summary(metrics)}")
            if not any(row.objects for row in metrics.classes):
                seen = f"{metrics.images} images have no labels of {measure.subject} that count"
                parts.append(f"\nnothing to measure: {seen}")
        return "\n".join(parts)

    def write_detections(self, folder: Path) -> None:
        """Write the detections of each decoder in COCO's result format.

        ``detections-<decoder>.json`` holds what the task finds; where that is masks or key points,
        ``boxes-<decoder>.json`` the boxes. So pycocotools measures in each file what was measured here.
        """
        for decoder, evaluation in self._evaluations.items():
            for name, part in self._files.items():
                (folder / f"{name}-{decoder}.json").write_text(json.dumps(results_json(evaluation, part)))
