"""Pictures in, detections out, by the very steps of validation."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from lucid_core.data.collate import collate
from lucid_core.data.types import DataError
from lucid_core.data.workers import processors
from lucid_core.evaluation.evaluator import Decoder, detect
from lucid_core.evaluation.found import found_in, on_host
from lucid_core.prediction.inputs import Input, Picture, read_ahead
from lucid_core.prediction.results import ImageDetections
from lucid_core.types import Detections

if TYPE_CHECKING:
    from lucid_core.module import Detector

__all__ = ["MOST", "ImageDetections", "Options", "Picture", "Precision", "predict", "stream"]

Precision = Literal["32-true", "bf16-mixed", "16-mixed"]

#: Objects that the decoders return for a picture at most.
MOST = 300
#: Threads that read pictures, at most.
READERS = 8


class Options(TypedDict, total=False):
    """How to predict; every option may be left out.

    Attributes:
        score: Objects below this score are left out; 0.25. With ``nms`` nothing below 0.001 is ever found.
        limit: Objects of a picture at most, the best ones; 300, which is also the most there are.
        decoder: ``end_to_end`` reads the one-to-one branch without suppression, ``nms`` the one-to-many branch with it;
            the first one that the detector was trained with.
        batch_size: Pictures that go through the network together; 16.
        image_size: Side of the network's input in pixels, a multiple of 32; that of the training.
        precision: ``32-true``, or ``bf16-mixed`` or ``16-mixed`` as in training; ``32-true``.
    """

    score: float
    limit: int
    decoder: Decoder | None
    batch_size: int
    image_size: int | None
    precision: Precision


def predict(
    detector: Detector, images: Picture | Sequence[Picture], **options: Unpack[Options]
) -> list[ImageDetections]:
    """Find the objects in pictures, with the averaged weights, on the device where the detector is.

    Args:
        detector: Any detector; whether it trains changes nothing, and nothing changes in it.
        images: One picture or several: paths, pictures of Pillow's, uint8 arrays of RGB pixels.
        options: See :class:`Options`.

    Returns:
        The detections of each picture, in order; a list also for one.

    Raises:
        TypeError: ``images`` is neither a picture nor several.
        ValueError: An option is out of its range, or a picture cannot be read; the message names it.
    """
    single = isinstance(images, (str, os.PathLike, Image.Image)) or (isinstance(images, np.ndarray) and images.ndim < 4)
    # The bytes of a file and a mapping could be iterated over, to a complaint about their first item.
    several = isinstance(images, Iterable) and not isinstance(images, (bytes, bytearray, memoryview, Mapping))
    if not (single or several):
        raise TypeError(
            f"images is of type {type(images).__name__}; give a path, a picture of Pillow's, a uint8 array of RGB "
            f"pixels, or a list of these"
        )
    pictures: Sequence[Picture] = [images] if single else list(images)  # type: ignore[list-item, arg-type]
    found = []
    for result in stream(detector, pictures, **options):
        if isinstance(result, DataError):
            raise result
        found.append(result)
    return found


def stream(
    detector: Detector,
    pictures: Sequence[Picture],
    *,
    score: float = 0.25,
    limit: int = MOST,
    decoder: Decoder | None = None,
    batch_size: int = 16,
    image_size: int | None = None,
    precision: Precision = "32-true",
) -> Iterator[ImageDetections | DataError]:
    """Yield for each picture, in order, what was found in it or why it cannot be read.

    Options are those of :class:`Options`.

    Raises:
        ValueError: An option is out of its range; before the first picture is asked for.
    """
    size = detector.trained_on.image_size if image_size is None else image_size
    if size is None:
        raise ValueError("the checkpoint does not say at what image_size the detector was trained: give image_size")
    for name, value, holds, wanted in (
        ("score", score, 0 <= score <= 1, "lie in [0, 1]"),
        ("limit", limit, 1 <= limit <= MOST, f"lie in [1, {MOST}]"),
        ("batch_size", batch_size, batch_size >= 1, "be at least 1"),
        ("image_size", size, size >= 32 and size % 32 == 0, "be a positive multiple of 32"),
        ("decoder", decoder, decoder in (None, *get_args(Decoder)), f"be one of {', '.join(get_args(Decoder))}"),
        ("precision", precision, precision in get_args(Precision), f"be one of {', '.join(get_args(Precision))}"),
    ):
        if not holds:
            raise ValueError(f"{name} is {value}; it must {wanted}")
    chosen: Decoder = detector.hparams["decoders"][0] if decoder is None else decoder
    return _stream(detector, pictures, size, batch_size, chosen, precision, score, limit)


def _stream(
    detector: Detector,
    pictures: Sequence[Picture],
    size: int,
    batch_size: int,
    decoder: Decoder,
    precision: Precision,
    score: float,
    limit: int,
) -> Iterator[ImageDetections | DataError]:
    names = tuple(detector.hparams["class_names"])
    ids = detector.trained_on.category_ids or tuple(range(len(names)))
    read = read_ahead(pictures, size, min(READERS, processors()), 2 * batch_size)
    start = 0
    while chunk := list(islice(read, batch_size)):
        usable = [item for item in chunk if not isinstance(item, DataError)]
        found = iter(_detect(detector, usable, decoder, precision) if usable else ())
        for index, item in enumerate(chunk, start):
            if isinstance(item, DataError):
                yield item
                continue
            detections, row = next(found)
            scores = detections.scores[row].numpy()
            kept = np.flatnonzero((scores > 0) & (scores >= np.float32(score)))[:limit]
            record = item.record
            placed = found_in(detections, row, kept, item.sample.letterbox, record.width, record.height)
            labels = placed.labels
            labels.setflags(write=False)
            picture = pictures[index]
            path = record.image if isinstance(picture, (str, os.PathLike)) else None
            yield ImageDetections(
                _sealed(placed.boxes),
                _sealed(placed.scores),
                labels,
                names,
                ids,
                record.width,
                record.height,
                index,
                path,
                placed.masks,
                None if placed.rboxes is None else _sealed(placed.rboxes),
                None if placed.points is None else _sealed(placed.points),
                detector.trained_on.points,
            )
        start += len(chunk)


def _detect(
    detector: Detector, inputs: Sequence[Input], decoder: Decoder, precision: Precision
) -> Iterator[tuple[Detections, int]]:
    """The detections of the batch, on the host, and the row of each picture."""
    samples = [replace(item.sample, index=row) for row, item in enumerate(inputs)]
    batch = collate(samples, [item.record for item in inputs], len(detector.hparams["class_names"]))
    network = detector.average.network
    with torch.inference_mode():
        batch = detector.unpack(detector.transfer_batch_to_device(batch, detector.device, 0))
        with _autocast(detector.device, precision):
            found = on_host(detect(network(batch.images), decoder))
    return ((found, row) for row in range(len(inputs)))


def _sealed(values: NDArray[np.float64]) -> NDArray[np.float32]:
    narrow = values.astype(np.float32)
    narrow.setflags(write=False)
    return narrow


def _autocast(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """The context in which a Trainer of that precision validates."""
    if precision == "32-true":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16 if precision == "bf16-mixed" else torch.float16)
