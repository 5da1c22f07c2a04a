"""What the accelerations of a fit did: on screen, as a file beside the logs, and through the logger."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only

from lucid_accel.clock import FitClock
from lucid_accel.finding import Finding, unmeasured
from lucid_accel.state import State

if TYPE_CHECKING:
    from lucid_accel.acceleration import Acceleration

__all__ = ["FILE", "idleness", "publish"]

_log = logging.getLogger(__name__)

#: Name of the file in the run's folder.
FILE = "accelerations.json"


@rank_zero_only
def publish(trainer: Trainer, party: Sequence[Acceleration], clock: FitClock) -> None:
    """Report for ``party``, the accelerations of one fit. Never raises."""
    try:
        _publish(trainer, collect(party, clock))
    except Exception:
        # A full disk or a logger that is gone must not end a run that has trained.
        _log.warning("the report on accelerations could not be written", exc_info=True)


def _publish(trainer: Trainer, report: dict[str, Any]) -> None:
    if any(row["steps"] and row["state"] != "ineligible" for row in report["accelerations"]):
        rank_zero_info(render(report))
    if (folder := _folder(trainer)) is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_text(json.dumps(report, indent=1) + "\n")
    for logger in trainer.loggers:
        for row in report["accelerations"]:
            name, metrics = row["name"], {"replayed": row["replayed"], "steps": row["steps"]}
            logger.log_metrics({f"accel/{name}/{key}": float(n) for key, n in metrics.items()}, trainer.global_step)


def idleness(item: Acceleration) -> str:
    """Say why an acceleration that was ready replayed nothing."""
    reasons = ", ".join(f"{n} {reason}" for reason, n in item.tally.native_steps().items())
    return f"none of {item.batches} steps were replayed: {reasons or 'it was never called'}"


def collect(party: Sequence[Acceleration], clock: FitClock) -> dict[str, Any]:
    """Return the report as plain values."""
    native, replayed = clock.steps()
    estimate = clock.native_seconds(sum(item.tally.setup_seconds for item in party))
    return {
        "fit_seconds": round(clock.seconds(), 3),
        "native_estimate_seconds": _rounded(estimate),
        "native_step_seconds": _rounded(native),
        "replayed_step_seconds": _rounded(replayed),
        "accelerations": [
            {
                "name": item.name,
                "state": str(item.state),
                "numerics": item.numerics,
                "verdict": item.verdict,
                "keep": item.keep,
                "payoff": None if (finding := _finding(item)) is None else finding.as_dict(),
                "steps": item.batches,
                **item.tally.as_dict(),
            }
            for item in party
        ],
    }


def _finding(item: Acceleration) -> Finding | None:
    """Return what was measured, or that there was no time for it."""
    if item.finding is None and item.keep == "auto" and item.state is State.RECORDED:
        return unmeasured("the fit was too short")
    return item.finding


def render(report: dict[str, Any]) -> str:
    """Return the report as lines for a screen."""
    lines = ["", f"Accelerations: this fit took {report['fit_seconds']:.1f} s"]
    if report["native_estimate_seconds"] is not None:
        native, replayed = 1e3 * report["native_step_seconds"], 1e3 * report["replayed_step_seconds"]
        lines[-1] += (
            f", natively about {report['native_estimate_seconds']:.1f} s "
            f"(a step {replayed:.1f} ms, natively {native:.1f} ms)"
        )
    for row in report["accelerations"]:
        native = ", ".join(f"{n} {reason}" for reason, n in row["native"].items() if reason != "eval")
        equal = f"bytes proven equal {row['proofs']}x" if row["proofs"] else "bytes not compared"
        lines.append(
            f"  {row['name']}: {row['replayed_steps']} of {row['steps']} steps replayed"
            + (f", native: {native}" if native else "")
        )
        lines.append(
            f"    {equal}, set-up {row['setup_seconds']:.1f} s, memory {row['reserved_bytes'] / 2**20:.0f} MiB"
            + (f"; {row['verdict']}" if row["verdict"] else "")
        )
        if parts := [_part(*part) for part in row["beside"].items() if sum(part[1].values())]:
            lines.append(f"    replayed beside it: {', '.join(parts)}")
        if row["without"]:
            lines.append(f"    native: {row['without']}")
        if row["payoff"] is not None and row["payoff"]["kept"]:
            lines.append(f"    {row['payoff']['why']}")
    return "\n".join(lines)


def _part(name: str, calls: dict[str, int]) -> str:
    native = ", ".join(f"{n} {reason}" for reason, n in calls.items() if reason != "replayed")
    return f"{name} {calls['replayed']}x" + ("" if calls["replayed"] or not native else f" (native: {native})")


def _folder(trainer: Trainer) -> Path | None:
    """Return the run's folder, if it has one; ``trainer.log_dir`` asks every rank, and would wait for the others."""
    logger = trainer.logger
    folder = None if logger is None else logger.log_dir or logger.save_dir
    return None if folder is None else Path(folder)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)
