"""Write the pages that are made from the code and from other pages: ``make docs``."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from pathlib import Path
from typing import Any

from lucid_accel.plugin import lucid_components
from lucid_core import seams

DOCS = Path(__file__).parent
RECORDS = DOCS.parent / "benchmarks" / "records"


def step() -> str:
    """The training step with its seams, from the docstring and table of ``lucid_core.seams``."""
    text = inspect.cleandoc(seams.__doc__ or "")
    title, _, rest = text.partition("\n\n")
    before, _, drawn = rest.partition("::\n\n")
    loop, _, after = drawn.partition("\n\nA seam's body")
    rows = "\n".join(f"| `{path}` | `{binding}` |" for path, binding in seams.SEAMS.items())
    prose = f"A seam's body{after}".replace(":func:`seam`", "`@seam`").replace("``", "`")
    return f"""# {title.removesuffix(".")}

{before.replace(":func:`seam`", "`@seam`").replace("``", "`")}:

```text
{textwrap.dedent(loop)}
```

{prose}

## Seams and their bindings

| seam | binding |
|---|---|
{rows}

Taking a seam: `lucid_core.seams.claim(scope, path, owner, target, replacement)`; `Claim.release()` gives it back.
"""


def decisions() -> str:
    """The list of decision pages, from their titles."""
    pages = sorted(page for page in (DOCS / "decisions").glob("*.md") if page.name != "README.md")
    lines = [f"- [{page.read_text().partition(chr(10))[0].removeprefix('# ')}]({page.name})" for page in pages]
    return "\n".join(
        [
            "# Decisions",
            "",
            "One page for each choice that could have gone another way: what was decided, why, and what was measured.",
            "",
            *lines,
            "",
        ]
    )


def accelerations() -> str:
    """The cards of the accelerations, from their docstrings, and what was measured, from the newest records."""
    cards = "\n\n".join(_card(kind) for kind in sorted(lucid_components(), key=lambda kind: kind.__name__))
    return f"""# Accelerations

Each is a callback of the package `lucid-accel`, off until it is named:

```bash
lucid fit --config detect --data.root FOLDER --trainer.callbacks+=NetworkReplay --trainer.callbacks+=LossReplay
```

`--trainer.callbacks.help=LossReplay` describes the options of one. On the CPU, on MPS, on several devices, and wherever
else a need is not met, one warning says why, and training goes on natively with the same bytes. `lucid-accel doctor
CONFIG` asks before you train. A report at the end of the fit, on screen and as `accelerations.json` in the run's
folder, says what was replayed, what was not, and why.

{cards}

## Measured

{_measured_steps()}

{_measured_fits()}
"""


def _card(kind: Any) -> str:
    text = inspect.cleandoc(kind.__doc__).partition("\n\nArgs:")[0].replace("``", "`")
    title, _, rest = text.partition("\n\n")
    bold = re.sub(r"^(\w[\w ]*):", r"**\1:**", rest, flags=re.MULTILINE)
    promise = "the bytes of the native run" if kind.numerics == "bitwise" else "not the bytes of the native run"
    return f"## {kind.__name__}\n\n{title}\n\n{bold}\n\n**Numerics:** `{kind.numerics}`: {promise}."


def _newest(what: str) -> dict[str, Any] | None:
    found = sorted(RECORDS.glob(f"*_{what}.json"))
    return dict(json.loads(found[-1].read_text()), file=found[-1].name) if found else None


def _measured_steps() -> str:
    record = _newest("accelerated-steps")
    if record is None:
        return "Steps: no record yet."
    rows = [
        f"| {row['batch']} | {arm} | {row[arm]['step_ms']['median']:.1f} ms | "
        f"{row[arm]['times_faster']['median']:.2f} ({row[arm]['times_faster']['interval_95'][0]:.2f} to "
        f"{row[arm]['times_faster']['interval_95'][1]:.2f}) | {row[arm]['busy_ms']:.1f} ms | "
        f"{row[arm]['setup_seconds']:.1f} s | {row[arm]['reserved_mib']} MiB | {row[arm]['peak_mib']} MiB |"
        for row in record["rows"]
        for arm in ("native", "NetworkReplay", "LossReplay", "both")
    ]
    routing = ", ".join(f"{name} {ms:.2f} ms" for name, ms in record["routing_ms"].items())
    return "\n".join(
        [
            f"One training step, {_where(record)}: nano, {record['settings']['size']} px, "
            f"{record['settings']['precision']}, real batches kept in memory, windows of every arm in turn within one "
            "fit, checkpoints of all arms equal in bits. Times faster: median of the windows, and the 95 % interval of "
            "the mean. Busy: time in which the GPU computes. "
            f"Deciding costs a step {routing} of host time.",
            "",
            "| batch | | step | times faster | GPU busy | set-up | memory reserved | peak, with proof |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
        ]
    )


def _measured_fits() -> str:
    record = _newest("accelerated-fits")
    if record is None:
        return "Whole fits: no record yet."
    rows = [
        f"| {row['batch']} | {row['seconds']['native']['median']:.1f} s ({row['seconds']['native']['min']:.1f} to "
        f"{row['seconds']['native']['max']:.1f}) | {row['seconds']['accelerated']['median']:.1f} s "
        f"({row['seconds']['accelerated']['min']:.1f} to {row['seconds']['accelerated']['max']:.1f}) | "
        f"{row['seconds_saved']['median']:.1f} s ({row['seconds_saved']['interval_95'][0]:.1f} to "
        f"{row['seconds_saved']['interval_95'][1]:.1f}) | {row['percent_saved']:.1f} % |"
        for row in record["rows"]
    ]
    settings = record["settings"]
    return "\n".join(
        [
            f"Whole `lucid fit` commands with {' and '.join(settings['accelerations'])}, {_where(record)}: "
            f"{settings['pairs']} pairs in turn, each fit in a fresh process, 118 pictures of COCO, "
            f"{settings['epochs']} epochs; start-up, loading, validation and checkpoints included. Checkpoints and "
            "logged values of all fits are equal in bits.",
            "",
            "| batch | native (range) | accelerated (range) | saved (95 % interval of the mean) | saved |",
            "|---|---|---|---|---|",
            *rows,
        ]
    )


def _where(record: dict[str, Any]) -> str:
    versions = record["versions"]
    return (
        f"{record['card']}, driver {record['driver']}, torch {versions['torch']}, commit `{record['commit'][:7]}`, "
        f"[record](../benchmarks/records/{record['file']})"
    )


PAGES = {DOCS / "step.md": step, DOCS / "decisions" / "README.md": decisions, DOCS / "accelerations.md": accelerations}


if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page())
