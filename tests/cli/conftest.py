from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import lucid_core.cli
from lucid_core.cli import LucidCLI, run

from .standin import Data, Model

Command = Callable[..., LucidCLI]
QUIET = ("--trainer.enable_model_summary=false", "--trainer.max_epochs=1", "--trainer.accelerator=cpu")


@pytest.fixture
def packaged(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Packaged configurations that fit the stand-ins, and an empty folder to work in."""
    folder = tmp_path_factory.mktemp("configs")
    (folder / "demo.yaml").write_text("trainer: {max_epochs: 5}\n")
    (folder / "detect.yaml").write_text("trainer: {max_epochs: 60}\n")
    monkeypatch.setattr(lucid_core.cli, "CONFIGS", folder)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def lucid(packaged: Path) -> Command:
    """Run a command line, as typed, on the stand-ins."""

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
