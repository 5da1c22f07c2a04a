"""What a comparison says on the screen: a table, what each arm did, and what to do now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lucid_accel.bench.rounds import NATIVE, members

__all__ = ["advice", "duration", "idle", "retired", "table"]

HEADS = ("", "fit", "(range)", "saved", "(95 % interval)", "step", "GPU busy", "memory", "(reserved)", "AP")


def table(row: dict[str, Any]) -> str:
    """Return the figures of every arm, one a line, and the verdict on their bytes."""
    lines = [HEADS, *(_line(arm, found) for arm, found in row["arms"].items())]
    # A figure that no arm has needs no column.
    kept = [place for place, head in enumerate(HEADS) if not head or any(line[place] for line in lines[1:])]
    widths = {place: max(len(line[place]) for line in lines) for place in kept}
    drawn = ["  ".join(line[place].ljust(widths[place]) for place in kept).rstrip() for line in lines]
    return "\n".join([*drawn, f"parity {row['parity']}"])


def idle(row: dict[str, Any]) -> dict[str, str]:
    """Return the accelerations that replayed nothing in the last fit of an arm, by name, and why."""
    found = {
        item["name"]: item["verdict"] or ", ".join(f"{n} {why}" for why, n in item["native"].items()) or item["state"]
        for item in _reported(*row["arms"].values())
        if not item["replayed"]
    }
    for arm, figures in row["arms"].items():
        if arm != NATIVE and not _reported(figures):
            # Such as AutoAccelerate, where it finds nothing to arm.
            said = [f"it {line.removeprefix(f'{arm} ')}" for line in figures["said"]]
            found[arm] = "; ".join(said) or "it reported nothing"
    return found


def retired(row: dict[str, Any]) -> dict[str, str]:
    """Return those that replayed something and stopped, by name, and why."""
    return {
        item["name"]: item["verdict"]
        for item in _reported(*row["arms"].values())
        if item["replayed"] and item["verdict"]
    }


def advice(row: dict[str, Any], named: Sequence[str]) -> str:
    """Say which words to add to the command, or that nothing pays.

    Args:
        row: The figures.
        named: Accelerations that the run names already.
    """
    arms = {arm: found for arm, found in row["arms"].items() if arm != NATIVE}
    able = {arm: found for arm, found in arms.items() if any(item["replayed"] for item in _reported(found))}
    drop = f"; leave out {' and '.join(named)}" if named else ""
    if not able:
        return f"Nothing to add here: no acceleration did anything in this run{drop}."
    if any(found["seconds_saved"]["interval_95"] is None for found in able.values()):
        return "One round cannot tell a gain from chance: ask for more, such as --pairs 5."
    sure = {arm: found for arm, found in able.items() if found["seconds_saved"]["interval_95"][0] > 0}
    if not sure:
        return f"Nothing pays in a fit like this one: no time saved is above chance{drop}.{_later(row, able)}"
    best = max(sure, key=lambda arm: sure[arm]["seconds_saved"]["median"])
    wanted = members(best)
    add = " ".join(f"--trainer.callbacks+={name}" for name in wanted if name not in named)
    surplus = [name for name in named if name not in wanted]
    done = f"Add {add}" if add else f"Keep {' and '.join(wanted)}"
    dropped = f" and leave out {' and '.join(surplus)}" if surplus else ""
    saved = sure[best]
    low, high = saved["seconds_saved"]["interval_95"]
    return (
        f"{done}{dropped}: it saves {saved['seconds_saved']['median']:.1f} s of a fit ({low:.1f} to {high:.1f}), "
        f"{saved['percent_saved']:.0f} %."
    )


def duration(seconds: float) -> str:
    """Return a time in words."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def _reported(*arms: dict[str, Any]) -> list[dict[str, Any]]:
    """What the accelerations of these arms reported, one after the other."""
    reports = [found.get("report_of_the_last_fit") or {} for found in arms]
    return [item for report in reports for item in report.get("accelerations", ())]


def _line(arm: str, found: dict[str, Any]) -> tuple[str, ...]:
    seconds, saved = found["seconds"], found.get("seconds_saved")
    between = saved and saved["interval_95"]
    return (
        arm,
        f"{seconds['median']:.1f} s",
        f"({seconds['min']:.1f} to {seconds['max']:.1f})",
        f"{saved['median']:.1f} s, {found['percent_saved']:.0f} %" if saved else "",
        f"({between[0]:.1f} to {between[1]:.1f})" if between else "",
        _shown(found["step_ms"], "{:.1f} ms"),
        _shown(found["busy_ms"], "{:.1f} ms"),
        _shown(found["allocated_mib"], "{} MiB"),
        _shown(found["reserved_mib"], "({} MiB)"),
        _shown(found["ap"], "{:.4f}"),
    )


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _later(row: dict[str, Any], arms: dict[str, Any]) -> str:
    """Whether a longer fit would make up for what recording costs."""
    native = row["arms"][NATIVE]["step_ms"]
    steps = {}
    for arm, found in arms.items():
        setup = sum(item["setup_seconds"] for item in _reported(found))
        if native and found["step_ms"] and found["step_ms"] < 0.97 * native:
            steps[arm] = 1e3 * setup / (native - found["step_ms"])
    if not steps:
        return ""
    arm = min(steps, key=lambda arm: steps[arm])
    step = row["arms"][arm]["step_ms"]
    return (
        f" A step with {arm} takes {step:.1f} ms instead of {native:.1f}, so a fit of many more than {steps[arm]:.0f} "
        "steps may gain; measure a longer one."
    )
