"""The commands of ``lucid`` that need torch: LightningCLI with our model, our data, and errors of one line."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from inspect import signature
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import ActionConfigFile, Namespace  # type: ignore[attr-defined]
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins import Precision
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.optim import Optimizer

from lucid_core import plugins
from lucid_core.advice import checkpoint_fault, explain, not_installed, one_line, trainer_fault
from lucid_core.checkpoint import read_checkpoint
from lucid_core.data.types import DataError
from lucid_core.defaults import TRAINER_DEFAULTS, callbacks_of, deterministic_on, run_loggers

__all__ = ["CONFIGS", "LucidCLI", "main", "run"]

#: Where the packaged configurations lie.
CONFIGS = Path(__file__).parent / "configs"


def main(argv: Sequence[str], cli: type[LucidCLI] | None = None) -> int:
    """Run one command as typed.

    Args:
        argv: The command, then its options.
        cli: What carries it out, :class:`LucidCLI` unless given. A subclass with a method named like the command,
            such as ``fit``, runs that instead of the Trainer's.

    Returns:
        0 when done, 1 when the run failed for a reason the user can mend, 143 when it was told to end.
        ``LUCID_DEBUG=1`` raises instead.

    Raises:
        SystemExit: With 2 where the command line was not understood or refused, with 0 after ``--help`` and its like.
    """
    from lucid_core.data.module import DataModule
    from lucid_core.module import Detector

    form = warnings.formatwarning
    warnings.formatwarning = _one_line_warning
    try:
        run(argv, Detector, DataModule, cli)
    except SIGTERMException:
        return 143
    except (ValueError, OSError, RuntimeError, MisconfigurationException) as error:
        lost_worker = str(error).startswith("DataLoader worker")
        if os.environ.get("LUCID_DEBUG") or (type(error) is RuntimeError and not lost_worker):
            raise
        hint = "" if isinstance(error, DataError) else " (LUCID_DEBUG=1 shows where)"
        print(f"lucid: error: {one_line(error)}{hint}", file=sys.stderr)
        return 1
    finally:
        warnings.formatwarning = form
    return 0


def run(
    argv: Sequence[str],
    model: type[LightningModule],
    data: type[LightningDataModule],
    cli: type[LucidCLI] | None = None,
) -> LucidCLI:
    """Load the plugins, then parse and carry out one command."""
    load_plugins()
    _quieten()
    return (cli or LucidCLI)(argv, model, data)


def load_plugins() -> list[type]:
    """Import what the installed plugins offer, and warn of names that no longer work bare."""
    offered = plugins.components(plugins.load())
    for base in (Callback, Logger, Optimizer, Precision, Strategy):
        for name, paths in plugins.name_clashes(base, offered).items():
            text = f"the name {name} is ambiguous: use one of {', '.join(paths)}"
            warnings.warn(text, plugins.PluginWarning, stacklevel=2)
    return offered


class Parser(LightningArgumentParser):
    """A parser that says in one line what it did not understand, and what was probably meant."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print one line and exit with status 2."""
        if not self.exit_on_error:
            super().error(message, ex)
        parser = getattr(ex, "subcommand_parser", None) or self
        self.exit(2, f"lucid: error: {explain(parser, message)}\n")


class ConfigFile(ActionConfigFile):
    """``--config`` that also takes the name of a packaged configuration, and an empty file."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        """Merge one configuration into what was parsed so far."""
        if values.lstrip().startswith("{"):
            self.apply_config(parser, cfg, self.dest, values)
        else:
            path = _find_config(values)
            if not _is_empty(path):
                self.apply_config(parser, cfg, self.dest, str(path))


class LucidCLI(LightningCLI):
    """LightningCLI for one command.

    Args:
        argv: The command, then its options.
        model: The LightningModule class; it takes ``class_names``, and ``task`` and ``points`` if there are tasks.
        data: The LightningDataModule class; its instances have ``class_names``, and of tasks ``num_points``.
    """

    def __init__(self, argv: Sequence[str], model: type[LightningModule], data: type[LightningDataModule]) -> None:
        self.command = argv[0]
        self._has_tasks = "task" in signature(model).parameters
        super().__init__(
            model,
            data,
            save_config_kwargs={"overwrite": True},
            trainer_defaults=TRAINER_DEFAULTS,
            seed_everything_default=0,
            parser_kwargs={"prog": "lucid", "allow_abbrev": False, self.command: {"allow_abbrev": False}},
            parser_class=Parser,
            args=[self.command, *_base_configs(argv[1:]), *argv[1:]],
            auto_configure_optimizers=False,
        )

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """Build the parser of the asked command only."""
        return {self.command: LightningCLI.subcommands()[self.command]}

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """Make a parser with our ``--config``."""
        parser = self.parser_class(dump_header=["lucid-core"], **kwargs)
        parser.add_argument(
            "-c",
            "--config",
            action=ConfigFile,
            help=f"A file, or a packaged one: {', '.join(_packaged())}. Several compose; later ones win.",
        )
        return parser

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Let the model take its names from the data, and the data its task from the model."""
        parser.link_arguments("data.class_names", "model.class_names", apply_on="instantiate")
        if self._has_tasks:
            parser.link_arguments("model.task", "data.task")
            parser.link_arguments("data.num_points", "model.points", apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse ``args`` without asking whether ``sys.argv`` holds the same."""
        if self.command in ("validate", "test"):
            # Lightning would print every metric once more, under the table of classes.
            self._parser(self.command).set_defaults(verbose=False)
        self.config = parser.parse_args(args)
        asked = self.config[self.command]
        fault = checkpoint_fault(self.command, asked.ckpt_path) or trainer_fault(asked.trainer)
        if fault is not None:
            parser.error(fault)
        if asked.ckpt_path and Path(asked.ckpt_path).exists() and "weights" in asked.model:
            asked.model.weights = None  # the checkpoint's own ones would replace them, and their file may be gone

    def _parse_ckpt_path(self) -> None:
        # Lightning puts the checkpoint's hyperparameters over what the user typed; _base_configs puts them under it.
        pass

    def instantiate_classes(self) -> None:
        """Make what the command needs; a class that refuses its options is named in one line."""
        for base in (Callback, Logger, Precision, Strategy):
            self.parser.add_instantiator(self._make, base)
        super().instantiate_classes()

    def _make(self, kind: type, *args: Any, **options: Any) -> Any:
        # jsonargparse would bury the refusal under all that the option could have been instead.
        try:
            return kind(*args, **options)
        except (ValueError, MisconfigurationException) as error:
            if os.environ.get("LUCID_DEBUG"):
                raise
            self.parser.error(f"{kind.__name__}: {one_line(error)}")

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add the loggers and callbacks of a run, except where the user named their own."""
        asked: Namespace = self.config_init[self.command].trainer
        changed: dict[str, Any] = {"deterministic": deterministic_on(asked.deterministic, asked.accelerator)}
        if not asked.barebones:
            ours = asked.logger in (None, True)
            changed["logger"] = run_loggers(asked.default_root_dir) if ours else asked.logger
            given = asked.callbacks or []
            given = list(given) if isinstance(given, list) else [given]
            task = self.config[self.command].model.get("task", "detect")
            changed["callbacks"] = callbacks_of(asked, given, bool(changed["logger"]), task)
        return super().instantiate_trainer(**changed, **kwargs)


def _packaged() -> dict[str, Path]:
    """Our configurations by name, then those that plugins have in a folder ``configs`` of their package.

    The latter are named after the plugin too, as in ``warp/fast``. No plugin is imported.
    """
    ours = {path.stem: path for path in sorted(CONFIGS.glob("*.yaml"))}
    theirs = {
        f"{name}/{path.stem}": path for name, f in plugins.folders("configs") for path in sorted(f.glob("*.yaml"))
    }
    return {**ours, **theirs}


def _find_config(name: str) -> Path:
    """The file that ``--config name`` means: one that exists, else a packaged one."""
    if (path := Path(name)).is_file():
        return path
    packaged = _packaged()
    if (found := packaged.get(name.removesuffix(".yaml"))) is not None:
        return found
    near = get_close_matches(name, packaged, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"packaged ones are {', '.join(packaged)}{not_installed()}"
    raise TypeError(f"no file or packaged configuration is called {name!r}; {hint}")


def _is_empty(path: Path) -> bool:
    """Whether ``path`` holds nothing, or nothing but comments; anything but settings is refused, with its name."""
    try:
        content = yaml.safe_load(path.read_text("utf-8-sig"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TypeError(f"configuration {path} cannot be read: {error}") from error
    if content is not None and not isinstance(content, dict):
        raise TypeError(f"configuration {path} must hold settings, such as 'trainer:', got {str(content)[:40]!r}")
    return not content


def _base_configs(options: Sequence[str]) -> list[str]:
    """Options to put before the user's own, so that theirs win: where a run starts from when it does not say.

    With ``--ckpt_path`` that is what the checkpoint was trained with, and its run's configuration unless another one is
    named. Without either, it is the demo, unless the user names data of their own: then it is the defaults.
    """
    names_config = any(option in ("-c", "--config") or option.startswith("--config=") for option in options)
    names_data = any(option.partition("=")[0] == "--data.root" for option in options)
    checkpoint = _checkpoint_of(options)
    if checkpoint is None:
        return [] if names_config or names_data else ["--config", str(CONFIGS / "demo.yaml")]
    if not checkpoint.is_file():
        return []
    trained_with = read_checkpoint(checkpoint)["hyper_parameters"]
    # Names come from the data; what starts with an underscore is Lightning's own note.
    model = {k: v for k, v in trained_with.items() if not k.startswith("_") and k not in ("class_names", "points")}
    base = ["--config", json.dumps({"model": model})]
    run_config = checkpoint.parent.parent / "config.yaml"
    return base if names_config or not run_config.is_file() else [*base, "--config", str(run_config)]


def _checkpoint_of(options: Sequence[str]) -> Path | None:
    found = None
    for option, following in pairwise([*options, ""]):
        name, equals, value = option.partition("=")
        if name == "--ckpt_path":
            found = Path(value if equals else following)
    return found


def _quieten() -> None:
    """Leave out what Lightning says in every run and nobody can act on."""
    # The run folder is new, but by the time the CSV logger looks the configuration lies in it.
    warnings.filterwarnings("ignore", message="Experiment logs directory .* exists and is not empty")
    # A run that starts from a checkpoint has a folder of its own, and finds its own best.
    warnings.filterwarnings("ignore", message="The dirpath has changed from")
    warnings.filterwarnings("ignore", message="You have overridden `.*batch.*` in `LightningModule`")
    # A 1x1 kernel has the same bytes in both memory formats, whatever its strides say.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    warnings.filterwarnings("ignore", message=".*treespec, LeafSpec.* is deprecated")
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(_is_no_advertisement)


def _one_line_warning(message: Warning | str, *_: Any, **__: Any) -> str:
    """A warning as the user needs it, without the line of code that gave it."""
    return f"lucid: warning: {message}\n"


def _is_no_advertisement(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("💡")
