"""What accelerations that record have in common: proof, windows, and the hooks that a routing follows."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import ExitStack
from typing import Any, Literal

import lightning.pytorch as pl

from lucid_accel.acceleration import Acceleration, Undo
from lucid_accel.choices import one_of
from lucid_accel.graphs.router import Router
from lucid_accel.reasons import Reason
from lucid_accel.site import Site

__all__ = ["Replay"]


class Replay(Acceleration):
    """Base of accelerations that record a part of the step and replay it.

    :class:`PartReplay` is for a submodule, with its backward; :class:`OptimizerReplay` for work of the optimizer.

    Args:
        proof: ``on`` replays a step beside its native run, the first one after recording and one more after a hundred,
            and retires on the first byte that differs. ``off`` leaves that out.
        on_failure: See :class:`Acceleration`.
        strict: See :class:`Acceleration`.
        keep: See :class:`Acceleration`.
    """

    def __init__(
        self,
        proof: Literal["on", "off"] = "on",
        on_failure: Literal["retire", "raise"] = "retire",
        strict: bool = False,
        keep: Literal["auto", "always"] = "auto",
    ) -> None:
        super().__init__(on_failure, strict, keep)
        self.proof = one_of("proof", proof, ("on", "off"))
        self._routers: list[Router] = []
        self._taken: object | None = None

    def suspend(self) -> None:
        """Call the seam natively, and keep what is recorded, until :meth:`resume`: to compare the two in one fit."""
        for router in self._routers:
            router.suspend()

    def resume(self) -> None:
        """Replay again."""
        for router in self._routers:
            router.resume()

    @abstractmethod
    def part(self, site: Site) -> object | None:
        """Return the object that has the seam in this run, ``None`` if there is none, or no single one."""

    def drive(self, router: Router, part: object, undo: Undo) -> Undo:
        """Let the run's hooks drive ``router``, to which calls of ``part`` go until ``undo``; return what ends both."""
        ended = ExitStack()
        ended.callback(self._forget)
        ended.callback(router.drop)
        ended.callback(undo)
        self._routers.append(router)
        self._taken = part
        return ended.close

    # Lightning's hooks

    def on_train_batch_start(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        """What an earlier batch left undone never comes."""
        super().on_train_batch_start(trainer, *args, **kwargs)
        for router in list(self._routers):
            router.next_step()

    def on_after_backward(self, *args: Any, **kwargs: Any) -> None:
        """Finish a proof."""
        for router in list(self._routers):
            router.after_backward()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Callbacks change modules here: compare everything at the next call."""
        for router in self._routers:
            router.suspect()
        if self._routers and self.part(Site(trainer, pl_module, started=True)) is not self._taken:
            self._routers[0].retire(Reason.STRUCTURE, "the part itself was exchanged")

    def on_validation_end(self, *args: Any, **kwargs: Any) -> None:
        """And here."""
        for router in self._routers:
            router.suspect()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_routers": [], "_taken": None}

    def _forget(self) -> None:
        self._routers.clear()
        self._taken = None
