from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lucid_core.cli import LucidCLI, run

from .standin import Data, Model

Command = Callable[..., LucidCLI]
QUIET = ("--trainer.enable_model_summary=false", "--trainer.max_epochs=1", "--trainer.accelerator=cpu")


@pytest.fixture
def lucid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command line, as typed, on the stand-ins, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def command(line: str, *more: str) -> LucidCLI:
        return run([*line.split(), *more], Model, Data)

    return command


@pytest.fixture
def printed(lucid: Command, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """The configuration that a command line comes to."""

    def config(line: str, *more: str) -> dict[str, Any]:
        with pytest.raises(SystemExit) as stopped:
            lucid(line, *more, "--print_config")
        out = capsys.readouterr()
        assert stopped.value.code == 0, out.err
        return dict(json.loads(json.dumps(yaml.safe_load(out.out))))

    return config


@pytest.fixture
def refused(lucid: Command, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The one line that refuses a command line."""

    def line(text: str, *more: str) -> str:
        with pytest.raises(SystemExit) as stopped:
            lucid(text, *more)
        err = capsys.readouterr().err
        assert stopped.value.code == 2
        assert err.startswith("lucid: error: ")
        assert err.count("\n") == 1, err
        return err

    return line
