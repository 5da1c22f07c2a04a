"""Write the pages that are made from the code and from other pages: ``make docs``."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import docstring_parser

from lucid_accel.bench.plot import draw_steps
from lucid_accel.plugin import lucid_components
from lucid_accel.replay.network import NetworkReplay
from lucid_core import seams
from lucid_core.data.augment import Recipe
from lucid_core.data.module import DataModule
from lucid_core.defaults import TRAINER_DEFAULTS
from lucid_core.module import Detector
from lucid_core.pictures.callback import Pictures
from lucid_core.progress import ProgressBar

DOCS = Path(__file__).parent
README = DOCS.parent / "README.md"
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

Two exceptions: `step` is two calls of Lightning's, which are taken together; and what is under `data.` is work of the
host, in worker processes. For a module that is not the detector, an
[adapter](writing-an-acceleration.md#a-module-that-knows-nothing-of-lucid) says which submodule a seam is.

Taking a seam: `lucid_core.seams.claim(scope, path, owner, target, replacement)`; `Claim.release()` gives it back.
"""


def configuration() -> str:
    """Every option of the model, the data and our default callbacks, from their signatures and docstrings."""
    defaults = "\n".join(f"| `--trainer.{name}` | `{_shown(value)}` |" for name, value in TRAINER_DEFAULTS.items())
    options = "\n\n".join(
        f"## {title}\n\n{before}\n\n{_options(kind, prefix)}"
        for title, prefix, kind, before in (
            ("Model", "model", Detector, "The network, its objective, its optimizer and its evaluation."),
            ("Data", "data", DataModule, "What is read, and how it is laid out into batches."),
            (
                "Augmentation",
                "data.recipe",
                Recipe,
                "How training images are varied. A value of 0 switches a step off.",
            ),
        )
    )
    callbacks = "\n\n".join(
        f"### {kind.__name__}\n\n{_summary(kind)}\n\n{_options(kind, 'trainer.callbacks')}"
        for kind in (ProgressBar, Pictures)
    )
    linked = "\n".join(f"- `{name}` is {source}." for name, source in LINKED.items())
    return f"""# Configuration

Every option of `lucid fit`, `lucid validate` and `lucid test`. Each is an option of the command line and a key of a
configuration file:

```bash
lucid fit --config detect --data.root path/to/folder --model.variant s --data.recipe.mosaic 0.5
```

```yaml
data:
  root: path/to/folder
  recipe:
    mosaic: 0.5
model:
  variant: s
```

`--config` names such a file, or one that is packaged; several compose, and later ones win.
`--print_config` shows what a command line comes to, without running it. `lucid fit --help` lists the options with those
of Lightning's Trainer. In a configuration, `null` is what is called none here.

What another option or the data say cannot be set, and is left out below:

{linked}

{options}

## Trainer

`--trainer.*` are the arguments of Lightning's [Trainer](https://lightning.ai/docs/pytorch/stable/common/trainer.html).
These have another default than Lightning's:

| option | default |
|---|---|
{defaults}

On MPS, where some operations have no deterministic form, `deterministic` becomes `warn`.

## Callbacks and loggers

A run has these unless one of the same kind is named, or they are switched off:

| what | how to switch it off |
|---|---|
| loggers for TensorBoard and CSV, in a new folder `runs/version_N` | `--trainer.logger false` |
| a progress bar | `--trainer.enable_progress_bar false` |
| the learning rate, logged | `--trainer.logger false` |
| [pictures](pictures.md) | `--trainer.callbacks+=Pictures --trainer.callbacks.every=0` |
| `checkpoints/best.ckpt` by the AP of the task, and `checkpoints/last.ckpt` | `--trainer.enable_checkpointing false` |

Options of a callback follow it: `--trainer.callbacks+=Pictures --trainer.callbacks.tiles=32`.

{callbacks}
"""


#: Options that the command line takes from others, and refuses.
LINKED = {
    "model.class_names": "what the classes of the data are called",
    "model.points": "how many key points its objects have",
    "data.task": "the same as `model.task`",
}


def _options(kind: type, prefix: str) -> str:
    """The arguments of a class as a table, but for those that cannot be typed."""
    told = {entry.arg_name: entry.description or "" for entry in docstring_parser.parse(kind.__doc__ or "").params}
    hints = get_type_hints(kind.__init__)
    rows = []
    for name, parameter in list(inspect.signature(kind).parameters.items()):
        if f"{prefix}.{name}" in LINKED:
            continue
        text = " ".join(told[name].split()).replace("``", "`").replace("|", "\\|")
        if parameter.default is inspect.Parameter.empty:
            default = "to be named"
        elif isinstance(parameter.default, Recipe):
            default = "see below"
        else:
            default = f"`{_shown(parameter.default)}`"
        rows.append(f"| `--{prefix}.{name}` | {_type(hints[name])} | {default} | {text} |")
    return "\n".join(["| option | type | default | what it is |", "|---|---|---|---|", *rows])


def _type(hint: Any) -> str:
    """A type in words."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin in (Union, UnionType):
        return " or ".join(_type(part) for part in parts)
    if origin in (list, tuple, Sequence):
        return f"list of {_type(parts[0])}"
    names = {int: "whole number", float: "number", str: "text", bool: "true or false", Recipe: "settings"}
    names[type(None)] = "none"
    return names.get(hint) or str(hint.__name__)


def _shown(value: Any) -> str:
    """A value as a configuration writes it."""
    return json.dumps(list(value) if isinstance(value, tuple) else value).strip('"')


def _summary(kind: type) -> str:
    """The docstring of a class up to its arguments."""
    return inspect.cleandoc(kind.__doc__ or "").partition("\n\nArgs:")[0].replace("``", "`")


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
CONFIG` asks before you train; [`lucid-accel bench CONFIG`](bench.md) measures whether it pays. A report at the end of
the fit, on screen and as `accelerations.json` in the run's folder, says what was replayed, what was not, and why.

Options follow the callback they are of: `--trainer.callbacks+=StepReplay --trainer.callbacks.keep=always`. All replays
have `proof`, `on_failure`, `strict` and `keep`, and NetworkReplay has `module`:

{_options_of_replays()}

On the cards, *elsewhere* is what the same work is called in other software; lucid has no such flag. *Must hold* is
asked when training starts; what may change later is under *ends*.

{cards}

## Measured

Native times differ between tables, since hosts do: compare within a table. Each is of the commit that it names.

{_measured_steps()}

{_measured_updates()}

{_measured_fits()}
"""


def _options_of_replays() -> str:
    told = {
        entry.arg_name: entry.description or "" for entry in docstring_parser.parse(NetworkReplay.__doc__ or "").params
    }
    rows = [
        f"| `{name}` | `{_shown(parameter.default)}` | {' '.join(told[name].split()).replace('``', '`')} |"
        for name, parameter in inspect.signature(NetworkReplay).parameters.items()
    ]
    return "\n".join(["| option | default | what it is |", "|---|---|---|", *rows])


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


def _routing(record: dict[str, Any], sentence: str) -> str:
    """What deciding costs, where the record knows it."""
    costs = ", ".join(f"{name} {ms:.2f} ms" for name, ms in record.get("routing_ms", {}).items())
    return sentence.format(costs) if costs else ""


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
        hosted = any("fetch_ms" in found for row in record["rows"] for found in row["arms"].values())
        rows = [
            f"| {row['batch']} | {_arm(arm)} | {found['step_ms']['median']:.1f} ms | {_faster(found)} | "
            f"{found['busy_ms']:.1f} ms | {found['step_ms']['median'] / found['busy_ms']:.2f} | "
            f"{found['setup_seconds']:.1f} s | {found['reserved_mib']} MiB "
            f"({found['reserved_mib'] / row['arms']['native']['reserved_mib']:.2f}) | {found['peak_mib']} MiB |"
            + (f" {_host(found)} |" if hosted else "")
            for row in record["rows"]
            for arm, found in row["arms"].items()
        ]
        parts += [
            f"One training step, {_where(record)}: nano, {record['settings']['size']} px, "
            f"{record['settings']['precision']}, real batches kept in memory, windows of native and replayed steps in "
            "turn within one fit, checkpoints of all arms equal in bits. Times faster: median of the windows, and the "
            "95 % interval of the mean. Busy: time in which the GPU computes."
            + _routing(record, " Deciding costs a step {} of host time.")
            + (
                " Host: what it does in a step whose launches never wait, and the same dry, with no graph launched; "
                "the wait for the next batch is not in it."
                if hosted
                else ""
            ),
            "",
            "| batch | | step | times faster | GPU busy | step over busy | set-up | memory reserved (over native) | "
            "peak, with proof |" + (" host |" if hosted else ""),
            "|---|---|---|---|---|---|---|---|---|" + ("---|" if hosted else ""),
            *rows,
            "",
        ]
        if (picture := _picture_of(record)) is not None:
            parts += [f"![Steps over batch sizes](pictures/{picture.name})", ""]
    return "\n".join(parts).strip() or "Steps: no record yet."


def _host(found: dict[str, Any]) -> str:
    times = [f"{found[kind]['median']:.1f} ms" for kind in ("host_ms", "dry_ms") if kind in found]
    return ", dry ".join(times)


def readme() -> str:
    """The front page, with the newest record of the whole step between its marks."""
    before, mark, rest = README.read_text().partition("<!-- steps -->\n")
    _, end, after = rest.partition("<!-- end of steps -->")
    (record,) = _records("accelerated-steps-whole")
    versions, settings = record["versions"], record["settings"]
    where = (
        f"One training step on an {record['card']} (nano, {settings['size']} px, {settings['precision']}, torch "
        f"{versions['torch']}, driver {record['driver']}, commit `{record['commit'][:7]}`), eager and replayed windows "
        "in turn within one fit, checkpoints equal in every bit:"
    )
    lines = [
        *textwrap.wrap(where, 120, break_on_hyphens=False),
        "",
        "| batch | eager | `StepReplay` | times faster (95 %) | GPU busy |",
        "|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        native, replayed = row["arms"]["native"], row["arms"]["StepReplay"]
        steps = f"{native['step_ms']['median']:.1f} ms | {replayed['step_ms']['median']:.1f} ms"
        lines.append(f"| {row['batch']} | {steps} | {_faster(replayed)} | {replayed['busy_ms']:.1f} ms |")
    sequel = "The more the GPU has to do in a step, the less there is to gain:"
    lines += ["", f"{sequel} [all that was measured](docs/accelerations.md#measured).", ""]
    return f"{before}{mark}{chr(10).join(lines)}{end}{after}"


def _picture_of(record: dict[str, Any]) -> Path | None:
    """Where steps over batch sizes are drawn, if there are enough of them."""
    name = record["file"].partition("_")[2].removesuffix(".json")
    return DOCS / "pictures" / f"{name}.png" if len(record["rows"]) > 2 else None


def draw_pictures() -> None:
    """Draw the records of steps."""
    for record in _records("accelerated-steps"):
        if (picture := _picture_of(record)) is not None:
            title = f"one training step, {record['card']}, nano, {record['settings']['size']} px"
            draw_steps(record["rows"], title, picture)


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
        parts += [
            f"Phases after the backward, {_where(record)}: the same training, network and objective replayed; each "
            "phase timed from one synchronisation to the next. Busy: time in which the GPU computes in the replayed "
            "phase."
            + _routing(record, " Describing and comparing a call takes {} of host time, contained in the figures."),
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
        at_once = settings.get("at_once", 1)
        beside = f" {at_once} rounds ran side by side on the machine." if at_once > 1 else ""
        parts += [
            f"Whole `lucid fit` commands, {_where(record)}: {settings['pairs']} rounds of all arms in turn, each fit "
            f"in a fresh process, 118 pictures of COCO, {settings['epochs']} epochs; start-up, loading, validation and "
            "checkpoints included. Checkpoints and logged values of all fits are equal in bits. Saved is the median of "
            "native less accelerated within a round, which need not be what the medians differ by; an interval with 0 "
            f"in it shows no saving.{beside}",
            "",
            "| batch | | native (range) | accelerated (range) | saved (95 % interval of the mean) | saved |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    return "\n".join(parts).strip() or "Whole fits: no record yet."


def _where(record: dict[str, Any]) -> str:
    versions = record["versions"]
    # A machine with two cards tells its driver twice.
    driver = record["driver"].split()[0]
    return (
        f"{record['card']}, driver {driver}, torch {versions['torch']}, commit `{record['commit'][:7]}`, "
        f"[record](../benchmarks/records/{record['file']})"
    )


PAGES = {
    README: readme,
    DOCS / "step.md": step,
    DOCS / "configuration.md": configuration,
    DOCS / "decisions" / "README.md": decisions,
    DOCS / "accelerations.md": accelerations,
}


if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page())
    draw_pictures()
