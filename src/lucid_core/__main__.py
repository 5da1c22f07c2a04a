"""The front door of the ``lucid`` command: what needs no torch is answered here, at once."""

from __future__ import annotations

import io
import os
import sys
from difflib import get_close_matches
from typing import Any

from lucid_core import __version__

COMMANDS = {
    "fit": "train, validate after each epoch, and print the result; without arguments, train the demo",
    "validate": "measure a checkpoint on the validation images",
    "test": "measure a checkpoint on the test images",
    "data": "check a data set: what it holds, and every fault in it; cut large pictures into tiles",
    "predict": "find objects in pictures: draw them, and write them as JSON",
    "plugins": "list the installed plugins",
}

HELP = """usage: lucid <command> [options]

Train small real-time detectors, and measure them.

commands:
{commands}

examples:
  lucid fit                                     train the demo (generated images, no download)
  lucid data check FOLDER                       look a COCO or YOLO folder over
  lucid fit --config detect --data.root FOLDER  train on it
  lucid validate --ckpt_path RUN/checkpoints/best.ckpt
  lucid predict RUN/checkpoints/best.ckpt FOLDER

options:
  -h, --help  this text; `lucid <command> --help` lists the options of a command
  --version   the version
"""


class _Piped(io.FileIO):
    """Standard output that goes nowhere once whoever reads it, such as ``head``, has seen enough.

    The command goes on to its own end and status: files that it writes become complete, and a training is not lost. Any
    other broken pipe, such as that to a worker, is still an error.
    """

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return super().write(data)


def _outlive_reader() -> None:
    """Replace standard output by one that minds no closed pipe, unless it is a terminal or not the process's own."""
    stream = sys.stdout
    if stream is not sys.__stdout__ or not isinstance(stream, io.TextIOWrapper) or stream.isatty():
        return
    stream.flush()
    raw = _Piped(stream.fileno(), "w", closefd=False)
    sys.stdout = io.TextIOWrapper(
        raw if stream.write_through else io.BufferedWriter(raw),  # type: ignore[arg-type]
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def main() -> int:
    """Run the command line and return its exit status: 0 done, 1 failed, 2 not understood; `data` has more of them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names of files and classes are in any script; a terminal may not be.
            stream.reconfigure(errors="backslashreplace")
    _outlive_reader()
    argv = sys.argv[1:]
    command = argv[0] if argv else "--help"
    if command in ("-h", "--help"):
        print(HELP.format(commands="\n".join(f"  {name:<9} {text}" for name, text in COMMANDS.items())), end="")
        return 0
    if command == "--version":
        print(f"lucid-core {__version__}")
        return 0
    if command not in COMMANDS:
        nearest = get_close_matches(command, COMMANDS, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"Commands are {', '.join(COMMANDS)}."
        print(f"lucid: error: no command is called {command!r}; {hint}", file=sys.stderr)
        return 2
    if command == "plugins":
        return _list_plugins()
    if command == "data":
        from lucid_core.data.command import main as data

        return data(argv[1:])

    if command == "predict":
        from lucid_core.prediction.command import main as predict

        return predict(argv[1:])

    from lucid_core.cli import main as run

    return run(argv)


def _list_plugins() -> int:
    from lucid_core.plugins import installed

    plugins = installed()
    if not plugins:
        print("no plugins are installed")
    for plugin in plugins:
        print(f"{plugin.name}  {plugin.distribution}  ({plugin.target})  {plugin.state}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
