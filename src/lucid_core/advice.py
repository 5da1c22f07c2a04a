"""What the command line did not understand, in one line, with the nearest thing that exists."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import typing
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.accelerators import AcceleratorRegistry
from lightning.pytorch.strategies import StrategyRegistry

from lucid_core import plugins

__all__ = ["checkpoint_fault", "explain", "not_installed", "one_line", "trainer_fault"]

_DISTRIBUTION = "lucid-core"
#: What jsonargparse takes in an entry of a class.
_ENTRY = ("class_path", "init_args", "dict_kwargs")


def explain(parser: Any, message: str) -> str:
    """Turn a message of jsonargparse into one line.

    Args:
        parser: The parser of the command in question.
        message: What jsonargparse said, usually several lines long.
    """
    key = _first(r'key "([^"]+)"', message)
    rules = (_linked_option, _unknown_option, _unknown_key, _no_value, _stray_key, _unknown_class, _wrong_class)
    for rule in (*rules, _wrong_value):
        line = rule(parser, key, message)
        if line is not None:
            return line
    return " ".join(message.split())


def one_line(error: BaseException) -> str:
    """Return the message of ``error``, without the traceback that a loader's worker wraps around it."""
    text = str(error)
    if text.startswith("Caught ") and "\nOriginal Traceback" in text:
        text = text.rpartition(f"{type(error).__name__}: ")[2]
    return " ".join(text.split())


def checkpoint_fault(command: str, given: str | None) -> str | None:
    """Say in one line why a command cannot start from a checkpoint, if so.

    Args:
        command: Such as ``fit``.
        given: ``ckpt_path``: a file, a folder, an address, or one of Lightning's words ``last``, ``hpc``, ``registry``.

    Returns:
        The line, or None. Lightning goes on with random weights where ``last`` finds nothing, so that is for fit only.
    """
    if not given:
        example = "--ckpt_path runs/version_0/checkpoints/best.ckpt"
        return None if command == "fit" else f"{command} needs a checkpoint to measure, such as {example}"
    if given == "best" or (given == "last" and command != "fit"):
        return f"{command} cannot know which checkpoint is the {given} one: name its file with --ckpt_path"
    path = Path(given)
    if given in ("last", "hpc") or given.startswith("registry") or "://" in given or path.exists():
        return None
    return f"no checkpoint is called {given!r}{_nearest(given, map(str, path.parent.glob('*.ckpt')))}"


def trainer_fault(trainer: Any) -> str | None:
    """Say in one line which accelerator, strategy or devices cannot be, if some are named that cannot.

    Args:
        trainer: The settings of the Trainer.
    """
    known = {
        "accelerator": [*AcceleratorRegistry.available_accelerators(), "auto", "gpu"],
        "strategy": [*StrategyRegistry.available_strategies(), "auto"],
    }
    for option, names in known.items():
        name = trainer.get(option)
        if isinstance(name, str) and name not in names:
            return f"no {option} is called {name!r}{_nearest(name, names) or '; there are ' + ', '.join(names)}"
    devices = str(trainer.get("devices")).replace(" ", "").strip("[]")
    if re.fullmatch(r"auto|-1|\d+(,\d+)*,?", devices) is None:
        return f"trainer.devices must be auto or -1, a number, or numbers such as 0,1, got {devices!r}"
    accelerator = trainer.get("accelerator")
    on_cpu = accelerator == "cpu" or (accelerator == "auto" and not torch.accelerator.is_available())
    if on_cpu and devices != "auto" and not devices.isdigit():
        return f"trainer.devices must be auto or a number on a CPU, got {devices!r}"
    return None


def not_installed(module: str = "") -> str:
    """Say in brackets which package is not installed; an empty text where there is nothing to say.

    Args:
        module: The top-level module that is missed. Without it, every extra of ours that is a package of its own and is
            not installed may be what is missed.
    """
    importable = {name: name.replace("-", "_") for name in _package_extras()}
    absent = [name for name, its in importable.items() if module in ("", its) and find_spec(its) is None]
    if absent:
        what = f"{_DISTRIBUTION}[{','.join(absent)}]"
        return f' (not installed: {", ".join(absent)}; pip install "{what}" brings it)'
    return f" (install the package that brings {module!r})" if module and find_spec(module) is None else ""


def _package_extras() -> list[str]:
    """Our extras that are another package, and bear its name."""
    try:
        ours = metadata(_DISTRIBUTION)
    except PackageNotFoundError:
        return []
    required = {re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in ours.get_all("Requires-Dist") or []}
    return [name for name in ours.get_all("Provides-Extra") or [] if name in required]


def _offered() -> list[type]:
    with warnings.catch_warnings():
        # What is wrong with a plugin was said when the command began.
        warnings.simplefilter("ignore", plugins.PluginWarning)
        return plugins.components(plugins.load())


def _linked_option(parser: Any, key: str, message: str) -> str | None:
    found = re.search(r"argument (?P<source>\S+) --> (?P<target>\S+):", message) or re.search(
        r'Linked "(?P<target>\S+)" must be given via "(?P<source>\S+)"', message
    )
    return f"{found['target']} cannot be set: it comes from {found['source']}" if found else None


def _unknown_option(parser: Any, key: str, message: str) -> str | None:
    unknown = _first(r"^unrecognized arguments: (\S+)", message).partition("=")[0]
    if not unknown:
        return None
    if not unknown.startswith("-"):
        return f"unexpected argument {unknown!r}: options start with --"
    options = [option for action in _actions(parser) for option in action.option_strings]
    return f"no option is called {unknown!r}{_nearest(unknown.removesuffix('+'), options)}"


def _unknown_key(parser: Any, key: str, message: str) -> str | None:
    unknown = _first(r"does not accept option '([^']+)'$", message)
    if not unknown:
        return None
    if group := _first(r"^Group '([^']+)' does not accept", message):
        unknown = f"{group}.{unknown}"
    return f"no setting is called {unknown!r}{_nearest(unknown, [action.dest for action in _actions(parser)])}"


def _no_value(parser: Any, key: str, message: str) -> str | None:
    if not key or re.search(r"(Given|Got) value:\s*\Z", message) is None:
        return None
    return f"{key} has no value: on the command line it stands right after the =, without a space"


def _stray_key(parser: Any, key: str, message: str) -> str | None:
    try:
        given = ast.literal_eval(_first(r"Given value: (.+)\Z", message))
    except (ValueError, SyntaxError):
        return None
    for entry in given if isinstance(given, list) else [given]:
        name = entry.get("class_path") if isinstance(entry, dict) else None
        if name and (strays := [option for option in entry if option not in _ENTRY]):
            return f"{key}: {strays[0]!r} stands beside class_path {name}; write options under init_args"
    return None


def _unknown_class(parser: Any, key: str, message: str) -> str | None:
    name = _first(r"Expected a dot import path string: (\S+)", message)
    if not name:
        return None
    key = key or _first(r"^--(\S+?)\.help", message)
    hints = [getattr(action, "_typehint", None) for action in _actions(parser) if action.dest == key]
    bases = [base for hint in hints for base in _classes(hint)]
    names = sorted({known for base in bases for known in plugins.class_names(base)})
    kind = bases[0].__name__.lower() if bases else "class"
    offered = ", ".join(sorted(item.__name__ for item in _offered() if issubclass(item, tuple(bases))))
    return (
        f"no {kind} is called {name!r}{_nearest(name, names) or '.'} Bare names work for Lightning's classes and for "
        f"those of installed plugins: {offered or 'there are none'}{not_installed()}"
    )


def _wrong_class(parser: Any, key: str, message: str) -> str | None:
    found = re.search(
        r"Problem with given class_path '([^']+)':(.*?)(?=\n\s*- |\n\s*Given value|\Z)", message, re.DOTALL
    )
    if found is None:
        stranger = _first(r"(Import path does not correspond to a subclass of \w+)", message)
        return f"{key}: {_first(r'Given value: (.+)', message)}: {stranger}" if stranger else None
    path, problem = found[1], " ".join(found[2].split())
    short = path.rpartition(".")[2]
    if option := _first(r"Option '([^']+)' is not accepted", problem):
        options = _parameters(path)
        known = f"; there are {', '.join(options)}" if options else ", nor any other"
        return f"{short} has no option {option!r}{_nearest(option, options) or known}"
    if required := _first(r"arguments are required: (.+)", problem):
        return f"{short} needs {required}: add --{key}.{required.partition(',')[0]}=..."
    if inner := _first(r'key "([^"]+)"', problem):
        return _wrong_value(parser, f"{short}.{inner}", problem)
    if attribute := _first(r"has no attribute '([^']+)'", problem):
        module = importlib.import_module(path.rpartition(".")[0])
        # A package that imports lazily says in __all__ what it has.
        names = [name for name, _ in inspect.getmembers(module, inspect.isclass)]
        nearest = _nearest(attribute, [*names, *getattr(module, "__all__", ())])
        return f"{module.__name__} has no class {attribute!r}{nearest}"
    absent = _first(r"^No module named '(\w+)", problem)
    hint = not_installed(absent) if absent else ""
    if hint and parser.prog.split()[-1] in ("validate", "test"):
        # The configuration of the checkpoint's run may name it, and measuring can do without most classes of a run.
        hint += "; or name a configuration that does without it: --config FILE"
    return f"{path} cannot be imported: {problem}{hint}"


def _wrong_value(parser: Any, key: str, message: str) -> str | None:
    value = _first(r"Got value: (.+)", message) or _first(r"Given value: (.+)", message)
    expected = _first(r"Expected an? (.+?)\. Got value", message) or _first(r"Subtypes: [\[(](.+)[\])]", message)
    if not key or not value or not expected:
        return None
    choices = re.findall(r"Literal\[(.+?)\]", expected)
    wanted = re.sub(r"(?:typing\.)?Literal\[(.+?)\]", lambda literal: literal[1].replace("'", ""), expected)
    wanted = re.sub(r"<class '([^']+)'>", lambda name: name[1].rpartition(".")[2].replace("NoneType", "null"), wanted)
    options = [option for choice in choices for option in re.findall(r"'([^']*)'", choice)]
    return f"{key} must be {wanted.replace(', ', ' or ')}, got {value!r}{_nearest(value, options)}"


def _actions(parser: Any) -> Iterable[Any]:
    """The arguments of a parser, and of its commands'."""
    for action in parser._actions:
        yield action
        for command in action.choices.values() if isinstance(action.choices, dict) else ():
            yield from _actions(command)


def _nearest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    folded = {item.lower(): item for item in known}
    nearest = get_close_matches(name.lower(), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[nearest[0]]!r}?" if nearest else ""


def _parameters(path: str) -> list[str]:
    module, _, name = path.rpartition(".")
    return list(inspect.signature(getattr(importlib.import_module(module), name)).parameters)


def _classes(hint: Any) -> Iterable[type]:
    """Every class with subclasses of its own inside a type hint, outermost first."""
    if isinstance(hint, type) and hint not in (int, str, float, bool, type(None)):
        yield hint
    for part in typing.get_args(hint):
        yield from _classes(part)


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1].strip() if found else ""
