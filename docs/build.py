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

{_measured_updates()}

{_measured_fits()}
"""


def _card(kind: Any) -> str:
    text = inspect.cleandoc(kind.__doc__).partition("\n\nArgs:")[0].replace("``", "`")
    title, _, rest = text.partition("\n\n")
    bold = re.sub(r"^(\w[\w ]*):", r"**\1:**", rest, flags=re.MULTILINE)
    promise = "the bytes of the native run" if kind.numerics == "bitwise" else "not the bytes of the native run"
    return f"## {kind.__name__}\n\n{title}\n\n{bold}\n\n**Numerics:** `{kind.numerics}`: {promise}."


def _records(what: str) -> list[dict[str, Any]]:
    """The newest record of each name that begins so, such as ``..._fits.json`` and ``..._fits-updates.json``."""
    newest = {path.stem.partition("_")[2]: path for path in sorted(RECORDS.glob(f"*_{what}*.json"))}
    return [dict(json.loads(path.read_text()), file=path.name) for path in newest.values()]


def _arm(name: str) -> str:
    return name.replace("+", " + ")


def _faster(figures: dict[str, Any]) -> str:
    low, high = figures["times_faster"]["interval_95"]
    return f"{figures['times_faster']['median']:.2f} ({low:.2f} to {high:.2f})"


def _range(figures: dict[str, Any], unit: str) -> str:
    return f"{figures['median']:.1f} {unit} ({figures['min']:.1f} to {figures['max']:.1f})"


def _measured_steps() -> str:
    parts = []
    for record in _records("accelerated-steps"):
        rows = [
            f"| {row['batch']} | {_arm(arm)} | {found['step_ms']['median']:.1f} ms | {_faster(found)} | "
            f"{found['busy_ms']:.1f} ms | {found['setup_seconds']:.1f} s | {found['reserved_mib']} MiB | "
            f"{found['peak_mib']} MiB |"
            for row in record["rows"]
            for arm, found in row["arms"].items()
        ]
        routing = ", ".join(f"{name} {ms:.2f} ms" for name, ms in record["routing_ms"].items())
        parts += [
            f"One training step, {_where(record)}: nano, {record['settings']['size']} px, "
            f"{record['settings']['precision']}, real batches kept in memory, windows of every arm in turn within one "
            "fit, checkpoints of all arms equal in bits. Times faster: median of the windows, and the 95 % interval of "
            "the mean. Busy: time in which the GPU computes. "
            f"Deciding costs a step {routing} of host time.",
            "",
            "| batch | | step | times faster | GPU busy | set-up | memory reserved | peak, with proof |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    return "\n".join(parts).strip() or "Steps: no record yet."


def _measured_updates() -> str:
    parts = []
    for record in _records("accelerated-updates"):
        rows = [
            f"| {row['batch']} | {arm} | {found['phase']} | {found['native_ms']['median']:.2f} ms | "
            f"{found['replayed_ms']['median']:.2f} ms | {_faster(found)} | {found['busy_ms']:.2f} ms | "
            f"{found['over_busy']:.2f} |"
            for row in record["rows"]
            for arm, found in row["arms"].items()
        ]
        routing = ", ".join(f"{name} {ms:.2f} ms" for name, ms in record["routing_ms"].items())
        parts += [
            f"Phases after the backward, {_where(record)}: the same training, network and objective replayed; each "
            "phase timed from one synchronisation to the next. Busy: time in which the GPU computes in the replayed "
            f"phase. Describing and comparing a call takes {routing} of host time, contained in the figures.",
            "",
            "| batch | | phase | native | replayed | times faster | GPU busy | replayed over busy |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    return "\n".join(parts).strip() or "Phases of the optimizer: no record yet."


def _measured_fits() -> str:
    parts = []
    for record in _records("accelerated-fits"):
        rows = [
            f"| {row['batch']} | {_arm(arm)} | {_range(row['arms']['native']['seconds'], 's')} | "
            f"{_range(found['seconds'], 's')} | {found['seconds_saved']['median']:.1f} s "
            f"({found['seconds_saved']['interval_95'][0]:.1f} to {found['seconds_saved']['interval_95'][1]:.1f}) | "
            f"{found['percent_saved']:.1f} % |"
            for row in record["rows"]
            for arm, found in row["arms"].items()
            if arm != "native"
        ]
        settings = record["settings"]
        parts += [
            f"Whole `lucid fit` commands, {_where(record)}: {settings['pairs']} rounds of all arms in turn, each fit "
            f"in a fresh process, 118 pictures of COCO, {settings['epochs']} epochs; start-up, loading, validation and "
            "checkpoints included. Checkpoints and logged values of all fits are equal in bits.",
            "",
            "| batch | | native (range) | accelerated (range) | saved (95 % interval of the mean) | saved |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    return "\n".join(parts).strip() or "Whole fits: no record yet."


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
