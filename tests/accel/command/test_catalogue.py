"""``lucid-accel list``, and plugins that are broken."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lucid_accel import __version__
from lucid_accel.__main__ import main
from lucid_accel.catalogue import offers
from lucid_accel.hookspecs import GROUP, PROJECT, Specs
from lucid_core import plugins

from .conftest import REPOSITORY, warned

Stranger = Callable[..., None]

#: What we offer, with what the list says of each.
OURS = {
    "GradientNormReplay": "Replays the norm of all gradients that clipping by norm needs; the scaling stays native.",
    "LossReplay": "Replays the detection objective and its backward: decoding, assignment of both branches, all terms.",
    "NetworkReplay": (
        "Replays the network's forward and backward: backbone, neck and both branches of the head, or any submodule."
    ),
    "OrthogonalizationReplay": (
        "Replays the orthogonalisation of the optimizer MuSGD: the Newton-Schulz iteration of all stacks of matrices."
    ),
    "StepReplay": (
        "Replays the whole training step: network, objective and backward, clipping, the update and the average."
    ),
    "UpdateReplay": (
        "Replays what the optimizer MuSGD computes for each group: momentum, Nesterov, orthogonalisation, gains and "
        "decay."
    ),
}

#: What arms the best of them, and is none itself.
AUTO = {
    "AutoAccelerate": ("Arms the best accelerations that this run allows, and lets each be kept only where it pays.")
}

WARP = '''
from lightning.pytorch import Callback
from lucid_accel import Acceleration
from lucid_core.plugins import hookimpl


class WarpReplay(Acceleration):
    """Warps the step.

    And more.
    """

    numerics = "tolerance"

    def eligible(self, site): ...

    def install(self, site): ...


class Silent(WarpReplay):
    numerics = "bitwise"


class Unfinished(Acceleration):
    """Lacks its methods."""


class Stopwatch(Callback):
    """No acceleration."""


@hookimpl
def lucid_components():
    return [WarpReplay, Silent, Unfinished, Stopwatch]
'''


@pytest.mark.usefixtures("installed")
def test_the_list_names_ours_and_a_strangers_with_source_and_card(
    stranger: Stranger, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger("warp_one", WARP, lucid_core__plugins="warp_one")
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    ours = {name: ["lucid-accel", __version__, card] for name, card in {**OURS, **AUTO}.items()}
    theirs = {
        "Silent": ["warp-one", "1.0", "(without a description)"],
        "WarpReplay": ["warp-one", "1.0", "Warps the step. (other bytes than a native run)"],
    }
    found = {name: rest for name, *rest in (line.split(maxsplit=3) for line in lines)}
    assert found == {**ours, **theirs}
    assert list(found) == sorted(found)


@pytest.mark.usefixtures("installed")
def test_where_nothing_is_offered_the_list_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUCID_DISABLE_PLUGINS", "*")
    assert main(["list"]) == 0
    assert capsys.readouterr().out.startswith("no installed plugin offers an acceleration")


BROKEN = {
    "fails": ("raise RuntimeError('libcuda is missing')", "libcuda is missing"),
    "misspelt": (
        "from {module} import hookimpl\n@hookimpl\ndef lucid_saems(module): ...\n",
        "unknown hook 'lucid_saems'",
    ),
    "bare": ("x = 1", "it implements no hook; mark one with pluggy.HookimplMarker("),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_plugin_is_named_once_and_the_others_are_offered(stranger: Stranger, fault: str) -> None:
    code, why = BROKEN[fault]
    stranger(f"bad_{fault}", code.format(module="lucid_core.plugins"), lucid_core__plugins=f"bad_{fault}")
    with warned(plugins.PluginWarning) as texts:
        names = [offer.name for offer in offers()]
    assert names == list(OURS)
    assert len(texts) == 1
    assert f"bad_{fault} (bad-{fault} 1.0: bad_{fault}) skipped" in texts[0]
    assert why in texts[0]


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_adapter_is_named_once_and_the_others_are_asked(stranger: Stranger, fault: str) -> None:
    code, why = BROKEN[fault]
    stranger(f"bad_{fault}", code.format(module="lucid_accel.hookspecs"), lucid_accel__plugins=f"bad_{fault}")
    good = "from lucid_accel.hookspecs import hookimpl\n@hookimpl\ndef lucid_seams(module): return {'step': module}\n"
    stranger("fine", good, lucid_accel__plugins="fine")
    with warned(plugins.PluginWarning) as texts:
        manager = plugins.load(GROUP, PROJECT, Specs)
    assert [name for name, _ in manager.list_name_plugin()] == ["fine"]
    assert len(texts) == 1
    assert f"bad_{fault}" in texts[0]
    assert why in texts[0]


LIGHT = """
import sys
import lucid_accel, lucid_accel.plugin
from lucid_accel.__main__ import main
status = main(sys.argv[1:])
heavy = {"torch", "lightning", "triton", "numpy", "jsonargparse"} & set(sys.modules)
assert not heavy, heavy
sys.exit(status)
"""


@pytest.mark.parametrize(
    ("argv", "status", "text"),
    [
        ([], 0, "usage: lucid-accel <command>"),
        (["--help"], 0, "doctor detect bf16"),
        (["doctor", "--help"], 0, "Nothing is trained"),
        (["--version"], 0, f"lucid-accel {__version__}\n"),
        (["lsit"], 2, "lucid-accel: error: no command is called 'lsit'; did you mean list?\n"),
        (["xyzzy"], 2, "no command is called 'xyzzy'; Commands are list, doctor, bench.\n"),
        (["list", "all"], 2, "list takes no arguments, got 'all'\n"),
    ],
)
def test_the_front_door_and_the_package_import_nothing_heavy(argv: list[str], status: int, text: str) -> None:
    command = [sys.executable, "-c", LIGHT, *argv]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(REPOSITORY / "src")})
    assert done.returncode == status, done.stderr
    assert text in (done.stderr if status else done.stdout)


def test_the_script_is_installed(site: Path) -> None:
    assert (site / "bin/lucid-accel").is_file()
