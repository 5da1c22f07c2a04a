"""How far labels of key points spread, for object keypoint similarity (COCO, OKS)."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["oks_sigmas"]

#: Spread of the labels of a person's points, as a part of the root of the area, in COCO's order: nose; then both eyes,
#: ears, shoulders, elbows, wrists, hips, knees and ankles.
PERSON = (0.026, *(s for s in (0.025, 0.035, 0.079, 0.072, 0.062, 0.107, 0.087, 0.089) for _ in range(2)))
#: Spread for points that nobody measured one of: the median of a person's.
TYPICAL = 0.072
#: Below, the arithmetic in float32 ends; above, any two points of an object are alike.
LEAST, MOST = 1e-4, 1.0


def oks_sigmas(points: int, stated: Sequence[float] | None = None) -> tuple[float, ...]:
    """Return the spread of each point, as a part of the root of the area of its object.

    Args:
        points: Key points of an object.
        stated: What the user says; without, COCO's for 17 points, which are taken for a person's, else one for all.

    Raises:
        ValueError: There are not as many spreads as points, or one is out of range.
    """
    if stated is None:
        return PERSON if points == len(PERSON) else (TYPICAL,) * points
    if len(stated) != points or not all(LEAST <= sigma <= MOST for sigma in stated):
        raise ValueError(
            f"{points} key points need {points} sigmas, each from {LEAST:g} to {MOST:g} of the root of the object's "
            f"area, got {len(stated)}: {', '.join(map(str, stated)) or 'none'}"
        )
    return tuple(stated)
