"""Hooks for authors: how a module that knows nothing of lucid says which of its parts are the seams of its step.

A plugin is an entry point of the group ``lucid_accel.plugins`` that leads to a module, a class or an object::

    from lucid_accel.hookspecs import hookimpl


    @hookimpl
    def lucid_seams(module):
        return {"step.network": module.body} if isinstance(module, MyClassifier) else None

Plugins are read when the first acceleration of a process is set up. ``LUCID_DISABLE_PLUGINS`` keeps them out by name.
One that fails is named in one warning and left out.
"""

from __future__ import annotations

from typing import Any

import pluggy

__all__ = ["GROUP", "PROJECT", "Specs", "hookimpl"]

GROUP = "lucid_accel.plugins"
PROJECT = "lucid_accel"

hookimpl = pluggy.HookimplMarker(PROJECT)
_hookspec = pluggy.HookspecMarker(PROJECT)


class Specs:
    """The hooks a plugin may implement."""

    @_hookspec
    def lucid_seams(self, module: Any) -> dict[str, Any] | None:
        """Say which submodules of ``module``, a LightningModule, are seams, by path; ``None`` for no opinion.

        The submodule's ``forward`` is the seam: device work only, called in the training step, with tensors in and out
        in any tree of lists, tuples, dictionaries and plain values. Paths are keys of
        :data:`lucid_core.seams.SEAMS`. Two plugins that offer different submodules for one path are an error.
        """
