"""The parser of the commands that answer without torch: what it does not understand, it says in one line."""

from __future__ import annotations

import argparse
from difflib import get_close_matches
from typing import NoReturn

__all__ = ["Parser"]


class Parser(argparse.ArgumentParser):
    """An :class:`argparse.ArgumentParser` whose errors are one line, with the option that was probably meant."""

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with status 2."""
        unknown = message.removeprefix("unrecognized arguments: ").split()[0]
        if message.startswith("unrecognized") and unknown.startswith("-"):
            nearest = get_close_matches(unknown.partition("=")[0], self._known(), n=1)
            hint = f"; did you mean {nearest[0]}?" if nearest else f"; `{self.prog} --help` lists them"
            message = f"no option is called {unknown!r}{hint}"
        self.exit(2, f"lucid: error: {message}\n")

    def _known(self) -> list[str]:
        """Every option, those of subcommands too: their parsers leave what they do not know to this one."""
        own = [option for action in self._actions for option in action.option_strings]
        below = [action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return own + [option for choices in below for parser in choices.values() for option in parser._known()]
