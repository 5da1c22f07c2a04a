"""A generated data set of coloured shapes: no download, the same bytes everywhere, labels for four tasks."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from lucid_core.data.geometry import area
from lucid_core.data.types import DataError

__all__ = ["CLASSES", "write_shapes"]

#: Class names, in label order.
CLASSES = ("circle", "square", "triangle", "rectangle", "star")

#: Four points of every object, in its own upright frame.
KEYPOINTS = ("top", "right", "bottom", "left")

_MARKER = "shapes.json"
#: Vertices lie on a grid of 1/16 pixel, in which OpenCV fills polygons with integers alone.
_SHIFT = 4
_GRID = 1 << _SHIFT
_MAX_TILT = math.radians(30)

Pixels = NDArray[np.uint8]
Points = NDArray[np.float64]


def write_shapes(root: Path, train: int = 800, val: int = 200, size: int = 160, seed: int = 0) -> Path:
    """Write the data set in COCO layout, unless it is there already.

    Pictures show one to six shapes in random colours on textured grounds; shapes lie within the picture and cover each
    other only slightly. ``annotations/instances_{train,val}.json`` holds boxes, polygons, key points ``top``,
    ``right``, ``bottom``, ``left``, and under the extra key ``rbox`` the oriented box ``[cx, cy, w, h, theta]``: ``w``
    is the long edge and ``theta``, in radians within [-pi/4, 3 pi/4), its direction, clockwise on the screen.

    A picture is a function of seed, split and its number, so a larger set begins with the smaller one. The folder
    appears complete or not at all, also when several processes write it at once.

    Args:
        root: The folder to make.
        train: Pictures in ``train/``.
        val: Pictures in ``val/``.
        size: Side of the square pictures in pixels, at least 64.
        seed: Another seed is another data set.

    Returns:
        ``root``.

    Raises:
        DataError: ``root`` holds something else, or shapes of other settings.
    """
    settings = {"train": train, "val": val, "size": size, "seed": seed, "version": 1}
    if size < 64 or min(train, val) < 1:
        raise DataError(f"shapes need size >= 64 and a picture in each split, not {settings}")
    if _is_complete(root, settings):
        return root
    root.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{root.name}.", dir=root.parent))
    try:
        (work / "annotations").mkdir()
        _write_split(work, "train", train, size, seed)
        _write_split(work, "val", val, size, seed)
        (work / _MARKER).write_text(json.dumps(settings))
        work.chmod(0o755)
        try:
            if root.is_dir():
                root.rmdir()
            work.rename(root)
        except OSError:
            # Another process was first; both wrote the same bytes.
            if not _is_complete(root, settings):
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return root


def _is_complete(root: Path, settings: dict[str, int]) -> bool:
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return False
    try:
        seen = json.loads((root / _MARKER).read_text())
    except (OSError, ValueError):
        raise DataError(f"{root}: holds files that are not the shapes data set; choose another folder") from None
    if seen != settings:
        raise DataError(f"{root}: holds shapes made with {seen}, not {settings}; choose another folder or remove it")
    return True


def _write_split(root: Path, split: str, count: int, size: int, seed: int) -> None:
    (root / split).mkdir()
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for i in range(count):
        image, shapes = _picture(seed, split, i, size)
        name = f"{i:06d}.png"
        cv2.imwrite(str(root / split / name), image[..., ::-1], [cv2.IMWRITE_PNG_COMPRESSION, 1])
        images.append({"id": i + 1, "file_name": name, "width": size, "height": size})
        for place, shape in enumerate(shapes):
            annotations.append(
                {"id": len(annotations) + 1, "image_id": i + 1, **_annotation(shape, shapes[place + 1 :])}
            )
    categories = [
        {"id": label + 1, "name": name, "supercategory": "shape", "keypoints": KEYPOINTS, "skeleton": [[1, 3], [2, 4]]}
        for label, name in enumerate(CLASSES)
    ]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))


@dataclass(frozen=True, slots=True)
class _Shape:
    """One object as drawn; all points in pixels from the outer corner of the first pixel.

    Attributes:
        label: Index into ``CLASSES``.
        outline: ``(P, 2)``.
        points: ``(4, 2)`` key points.
        rbox: ``cx, cy, w, h, theta``.
    """

    label: int
    outline: Points
    points: Points
    rbox: tuple[float, float, float, float, float]

    @property
    def box(self) -> Points:
        """``x1, y1, x2, y2``."""
        return np.concatenate([self.outline.min(axis=0), self.outline.max(axis=0)])


def _picture(seed: int, split: str, i: int, size: int) -> tuple[Pixels, list[_Shape]]:
    """Draw picture ``i``: ``(size, size, 3)`` RGB and its shapes, the lowest first."""
    rng = np.random.default_rng((seed, ("train", "val").index(split), i))
    image = _ground(rng, size)
    shapes: list[_Shape] = []
    for _ in range(int(rng.integers(1, 7))):
        for _ in range(12):
            shape = _shape(rng, size)
            if all(_overlap(shape.box, other.box) < 0.12 for other in shapes):
                _draw(image, shape, rng)
                shapes.append(shape)
                break
    return image, shapes


def _ground(rng: np.random.Generator, size: int) -> Pixels:
    """Make a muted ground: two tones mixed by smooth noise, a few strokes, and grain."""
    tones = _colours(rng, 2, saturation=(0, 90), value=(50, 210)).astype(np.int32)
    coarse = rng.integers(0, 256, (int(rng.integers(3, 9)),) * 2, dtype=np.uint8)
    mix = np.asarray(cv2.resize(coarse, (size, size), interpolation=cv2.INTER_CUBIC)).astype(np.int32)[..., None]
    image = ((tones[0] * mix + tones[1] * (255 - mix)) // 255).astype(np.uint8)
    for colour in _colours(rng, int(rng.integers(0, 4)), saturation=(0, 120), value=(40, 220)).tolist():
        ends = rng.integers(0, size * _GRID, (2, 2)).tolist()
        cv2.line(image, ends[0], ends[1], colour, int(rng.integers(1, 3)), cv2.LINE_AA, _SHIFT)
    grain = rng.integers(-5, 6, (size, size, 1))
    return np.asarray((image + grain).clip(0, 255), dtype=np.uint8)


def _colours(rng: np.random.Generator, count: int, saturation: tuple[int, int], value: tuple[int, int]) -> Pixels:
    """Draw ``(count, 3)`` RGB colours of any hue."""
    hue = rng.integers(0, 6 * 256, count)
    chroma = rng.integers(*saturation, count)
    level = rng.integers(*value, count)
    ramp = np.abs((hue[:, None] - 256 * np.array((0, 2, 4)) + 768) % 1536 - 768)
    colour = level[:, None] * (255 - chroma[:, None] * (256 - (512 - ramp).clip(0, 256)) // 256) // 255
    return np.asarray(colour, dtype=np.uint8)


def _shape(rng: np.random.Generator, size: int) -> _Shape:
    label = int(rng.integers(len(CLASSES)))
    name = CLASSES[label]
    side = size * math.exp(rng.uniform(math.log(0.1), math.log(0.42)))
    outline, points = _template(name, rng)
    tilt = 0.0 if name == "circle" else rng.uniform(-_MAX_TILT, _MAX_TILT)
    turn = np.array(((math.cos(tilt), math.sin(tilt)), (-math.sin(tilt), math.cos(tilt))))

    low, high = outline.min(axis=0), outline.max(axis=0)
    placed = outline * side @ turn
    room_low, room_high = 1 - placed.min(axis=0), size - 1 - placed.max(axis=0)
    shift = room_low + rng.random(2) * (room_high - room_low)
    centre = (low + high) / 2 * side @ turn + shift
    extent = (high - low) * side
    return _Shape(label, _on_grid(placed + shift), _on_grid(points * side @ turn + shift), _rbox(centre, extent, tilt))


def _template(name: str, rng: np.random.Generator) -> tuple[Points, Points]:
    """Give outline and key points of a shape about the origin, its long side near 1, y downwards."""
    if name in ("circle", "star"):
        count = 40 if name == "circle" else 10
        angles = np.arange(count) * (2 * math.pi / count)
        radii = np.where(np.arange(count) % 2, 0.5 if name == "circle" else 0.22, 0.5)
        outline = np.stack([radii * np.sin(angles), -radii * np.cos(angles)], axis=1)
    elif name == "triangle":
        height = rng.uniform(0.75, 1.0)
        outline = np.array([(0, -height / 2), (0.5, height / 2), (-0.5, height / 2)])
    else:
        ratio = 1.0 if name == "square" else rng.uniform(0.35, 0.6)
        scale = 0.8 if name == "square" else 1.0
        w, h = (scale, scale * ratio) if rng.random() < 0.5 else (scale * ratio, scale)
        outline = np.array([(-w / 2, -h / 2), (w / 2, -h / 2), (w / 2, h / 2), (-w / 2, h / 2)])
    (x1, y1), (x2, y2) = outline.min(axis=0), outline.max(axis=0)
    if name == "triangle":
        return outline, np.array([(0, y1), (x2, y2), (0, y2), (x1, y2)])
    if name == "star":
        # The tips; the lowest point is the notch between the feet.
        return outline, outline[[0, 2, 5, 8]]
    return outline, np.array([(0, y1), (x2, 0), (0, y2), (x1, 0)])


def _on_grid(points: Points) -> Points:
    return np.round(points * _GRID) / _GRID


def _rbox(centre: Points, extent: Points, tilt: float) -> tuple[float, float, float, float, float]:
    w, h = extent.tolist()
    if w < h:
        w, h, tilt = h, w, tilt + math.pi / 2
    return float(centre[0]), float(centre[1]), w, h, tilt


def _draw(image: Pixels, shape: _Shape, rng: np.random.Generator) -> None:
    """Fill a shape with a bright colour, within a darker rim."""
    colour = _colours(rng, 1, saturation=(140, 256), value=(150, 256))[0]
    middle = shape.outline.mean(axis=0)
    inner = middle + (shape.outline - middle) * 0.84
    for outline, tone in ((shape.outline, colour // 2), (inner, colour)):
        # OpenCV counts from the centre of the first pixel, labels from its outer corner.
        vertices = np.round((outline - 0.5) * _GRID).astype(np.int32)
        cv2.fillPoly(image, [vertices], tone.tolist(), cv2.LINE_AA, _SHIFT)


def _overlap(a: Points, b: Points) -> float:
    """Share of the smaller box that the other one covers."""
    sides = (np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])).clip(min=0)
    return float(sides.prod() / min((a[2:] - a[:2]).prod(), (b[2:] - b[:2]).prod()))


def _annotation(shape: _Shape, above: list[_Shape]) -> dict[str, Any]:
    """Describe a shape in COCO's terms; ``above`` are the shapes drawn after it."""
    outlines = [other.outline.astype(np.float32) for other in above]
    keypoints: list[float] = []
    for x, y in shape.points.tolist():
        hidden = any(cv2.pointPolygonTest(outline, (x, y), False) >= 0 for outline in outlines)
        keypoints += [x, y, 1 if hidden else 2]
    x1, y1, x2, y2 = shape.box.tolist()
    return {
        "category_id": shape.label + 1,
        "bbox": [x1, y1, x2 - x1, y2 - y1],
        "area": area(shape.outline),
        "iscrowd": 0,
        "segmentation": [shape.outline.ravel().tolist()],
        "keypoints": keypoints,
        "num_keypoints": len(shape.points),
        "rbox": list(shape.rbox),
    }
