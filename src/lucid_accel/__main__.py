"""The front door of the ``lucid-accel`` command: what needs no torch is answered here, at once."""

from __future__ import annotations

import sys
import warnings
from difflib import get_close_matches
from typing import Any

from lucid_accel import __version__

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "list": "list every acceleration that an installed plugin offers",
    "doctor": "tell what this machine has, and whether a recording on it has the bytes of a native run",
    "bench": "time whole fits, native and accelerated in alternation, and compare their bytes",
}

HELP = """usage: lucid-accel <command>

Look at accelerations of training; `lucid fit --trainer.callbacks+=NAME` switches one on.

commands:
{commands}

examples:
  lucid-accel list
  lucid-accel doctor
  lucid-accel doctor detect bf16 --data.root FOLDER   which accelerations `lucid fit --config detect --config bf16
                                                      --data.root FOLDER` could use, and why not the others
  lucid-accel bench detect bf16 --data.root FOLDER    what they gain in it, on your data and machine

options of bench, before or among those of `lucid fit`:
  --arms A B+C     accelerations to compare with the native run, those of one arm joined by +; without it those that
                   the run names, or AutoAccelerate
  --pairs N        rounds with one fit of each arm, 5 unless given
  --record FILE    write all figures as JSON, after every round
  --plot FILE.png  draw them

options:
  -h, --help  this text
  --version   the version

A CONFIG after `doctor` or `bench` is what `lucid fit --config` takes; options of `lucid fit` may follow.
doctor: Nothing is trained, and nothing is written, except the generated pictures that the demo trains on.
bench: The run is trained again and again, each time in a fresh process and in a folder that is removed afterwards; name
few epochs (--trainer.max_epochs 3). Nothing else is written but what --record and --plot name, and those pictures.
Exit status: 0 done, 1 bytes differ or the run is broken, 2 not understood.
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit status: 0 done, 1 failed, 2 not understood.

    Args:
        argv: The arguments, those of the process unless given.
    """
    command, *options = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if command in ("-h", "--help") or (command in COMMANDS and options in (["-h"], ["--help"])):
        print(HELP.format(commands="\n".join(f"  {name:<7} {text}" for name, text in COMMANDS.items())), end="")
        return 0
    if command == "--version":
        print(f"lucid-accel {__version__}")
        return 0
    if command not in COMMANDS:
        nearest = get_close_matches(command, COMMANDS, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"Commands are {', '.join(COMMANDS)}."
        return _refuse(f"no command is called {command!r}; {hint}")
    if command == "bench" and not options:
        return _refuse(
            "bench needs a run, as lucid fit takes it: `lucid-accel bench detect --data.root FOLDER`, or demo"
        )
    if command == "list" and options:
        return _refuse(f"list takes no arguments, got {options[0]!r}")

    form = warnings.formatwarning
    warnings.formatwarning = _one_line
    try:
        if command == "list":
            from lucid_accel import catalogue

            return catalogue.main()
        if command == "bench":
            from lucid_accel.bench import command as bench

            return bench.main(options)
        if options:
            from lucid_accel import rehearsal

            return rehearsal.main(options)
        from lucid_accel import doctor

        return doctor.main()
    finally:
        warnings.formatwarning = form


def _refuse(why: str) -> int:
    print(f"lucid-accel: error: {why}", file=sys.stderr)
    return 2


def _one_line(message: Warning | str, *_: Any, **__: Any) -> str:
    return f"lucid-accel: warning: {message}\n"


if __name__ == "__main__":
    sys.exit(main())
