"""Reader of YOLO folders: a ``data.yaml``, pictures, and one text file of labels per picture."""

from __future__ import annotations

from pathlib import Path

from lucid_core.data.points import PointTable, mirror_remark
from lucid_core.data.problems import Kind, Problem, first_fault
from lucid_core.data.records import DataSet
from lucid_core.data.scan import PictureScan
from lucid_core.data.text_labels import TextLabels, image_ids
from lucid_core.data.types import DataError, Task, Wanted
from lucid_core.data.yolo_files import YoloFiles
from lucid_core.data.yolo_points import names_fault, read_points
from lucid_core.data.yolo_rows import YoloRows

__all__ = ["read_yolo", "read_yolo_classes"]


def read_yolo_classes(data_yaml: Path, task: Task = "detect") -> DataSet:
    """Read the table of classes, and of key points, alone: a split without images.

    Raises:
        DataError: The yaml is not usable.
    """
    files = YoloFiles(data_yaml)
    points, _ = _points(files, task)
    return DataSet((), files.names, tuple(range(len(files.names))), points=points)


def read_yolo(data_yaml: Path, split: str, scan: PictureScan | None = None, task: Task = "detect") -> DataSet:
    """Read one split of a YOLO data set.

    The yaml has ``names`` (a list, or a mapping from 0 on) and an entry for each split: a folder, searched with all
    its sub-folders, or a ``.txt`` list of pictures, or several of these. Entries are relative to ``path`` if the yaml
    has one, and to the yaml itself; leading ``..`` that lead nowhere are dropped. Nothing outside these two folders is
    read.

    The labels of ``images/x/a.jpg`` are in ``labels/x/a.txt`` (the last folder called ``images`` counts), or beside
    the picture where no folder is called so. A picture without label file is background, and so is one with an empty
    file. Rows are

    - ``class cx cy w h``, shares of the picture; or
    - ``class x1 y1 x2 y2 x3 y3 ...``, a polygon of three or more points, whose envelope is the box; it alone will do
      for the task ``segment``;
    - with ``kpt_shape`` in the yaml, ``class cx cy w h`` followed by key points, which only the task ``keypoints``
      reads; ``flip_idx`` says which change places in a mirror, else names ``kpt_names`` do;
    - for the task ``obb``, ``class x1 y1 x2 y2 x3 y3 x4 y4``, the corners of an oriented box.

    The task says how rows are read, the number of fields does not. Values up to
    :data:`~lucid_core.data.records.TOLERANCE` outside [0, 1] are clamped, boxes are clamped to the picture; corners of
    oriented boxes may lie up to a side of the picture outside, and are cut. Other rows are left out and told; a picture
    none of whose rows is usable is left out whole, as is one that cannot be decoded.

    Args:
        data_yaml: The yaml file.
        split: ``train``, ``val`` or ``test``.
        scan: Looks at the pictures.
        task: What is learnt.

    Returns:
        The split, folders in path order and lists in their own; whatever was left out is in its ``problems``.

    Raises:
        NoSplit: The yaml has no entry for the split.
        DataError: The yaml is not usable, an entry leads nowhere or out of the data set, or no picture is usable.
    """
    files = YoloFiles(data_yaml)
    images = files.images(split)
    sizes = (scan or PictureScan())(images)
    points, shape = _points(files, task)
    # A stated flip_idx is sure, whatever the names say.
    if points is not None and files.config.get("flip_idx") is None:
        remark = mirror_remark(points, names_fault(files.config, points.count))
        if remark is not None:
            files.problems.append(Problem(remark[0], f"{data_yaml}: has no flip_idx, and {remark[1]}", data_yaml))
    rows = YoloRows(task, len(files.names), shape)
    labels = TextLabels(Wanted(task, points.count if points else 0), rows.read, files.problems)
    read = (
        labels.record(image, key, sizes[image], files.labels(image))
        for image, key in zip(images, image_ids(images), strict=True)
    )
    records = tuple(record for record in read if record is not None)
    if not records:
        seen = first_fault(files.problems)
        raise DataError(f"{data_yaml}: no picture of split {split!r} is usable{seen}")
    if not labels.pictures:
        seen = (
            f"{data_yaml}: none of the {len(images)} pictures of split {split!r} has a label file, so all are "
            f"background; looked for {files.label_path(images[0])}"
        )
        files.problems.append(Problem(Kind.NO_LABELS, seen, data_yaml))
    names = files.names
    return DataSet(records, names, tuple(range(len(names))), tuple(files.problems), points)


def _points(files: YoloFiles, task: Task) -> tuple[PointTable | None, tuple[int, int] | None]:
    """Return the table of key points where they are the task, and the ``(points, numbers)`` that rows have."""
    if task == "keypoints":
        table, numbers = read_points(files.config, files.file)
        return table, (table.count, numbers)
    if "kpt_shape" not in files.config:
        return None, None
    if task != "detect":
        raise DataError(
            f"{files.file}: its rows are boxes with key points, as kpt_shape says, which have nothing for the task "
            f"{task}; train keypoints or detect, or remove kpt_shape if that is not so"
        )
    return None, (0, 0)
