"""What accelerations that record have in common: one region behind one seam."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from typing import Any, ClassVar, Literal

import lightning.pytorch as pl
from torch import nn
from torch.nn.parameter import is_lazy

from lucid_accel.acceleration import Acceleration, Undo
from lucid_accel.adapters import is_free, marked_parts, take
from lucid_accel.graphs.region import Region
from lucid_accel.reasons import Reason
from lucid_accel.site import Answer, Site, no, recordable, yes

__all__ = ["Replay"]


class Replay(Acceleration):
    """Base of accelerations that record one seam, a part of the network or the objective, and replay it.

    Args:
        proof: ``on`` replays a step beside its native run, the first one after recording and one more after a hundred,
            and retires on the first byte that differs. ``off`` leaves that out.
        on_failure: See :class:`Acceleration`.
        strict: See :class:`Acceleration`.
        keep: See :class:`Acceleration`.

    Attributes:
        growable: Positions of arguments of the seam that are padded: dimension 1 of their tensors is a capacity, rows
            of zeros past it are inert.
    """

    growable: ClassVar[Collection[int]] = ()

    def __init__(
        self,
        proof: Literal["on", "off"] = "on",
        on_failure: Literal["retire", "raise"] = "retire",
        strict: bool = False,
        keep: Literal["always"] = "always",
    ) -> None:
        super().__init__(on_failure, strict, keep)
        self.proof = proof
        self._region: Region | None = None
        self._taken: nn.Module | None = None

    def part(self, site: Site) -> nn.Module | None:
        """Return the submodule that is the seam in this run, ``None`` if there is none, or no single one."""
        return site.seam(self.claims[0])

    def eligible(self, site: Site) -> Answer:
        """Ask what every recording needs, and whether the module has the seam."""
        if not self.claims:
            return no("it needs a seam", f"{self.name} names none", "derive a class that names one in claims")
        if not (answer := recordable(site, self.proof == "on")).ok:
            return answer
        if (part := self.part(site)) is None:
            return self.without_part(site)
        if not is_free(part) or getattr(part, "_compiled_call_impl", None) is not None:
            kind = type(part).__name__
            return no("it needs a forward that nobody else took", f"that of {kind} is replaced", "leave it as it is")
        if any(map(is_lazy, [*part.parameters(), *part.buffers()])):
            seen = f"{type(part).__name__} makes some at its first call"
            return no("it needs parameters that exist", seen, "call it once before the fit")
        return yes()

    def without_part(self, site: Site) -> Answer:
        """Say no, where no part is the seam, or several are."""
        path, kind, fix = self.claims[0], type(site.module).__name__, "offer it from a plugin (hook lucid_seams)"
        if len(several := marked_parts(site.module, path)) > 1:
            seen = f"{kind} has {len(several)}: {', '.join(several)}"
            return no(f"it needs one part that is the seam {path}", seen, fix)
        return no(f"it needs the seam {path}", f"{kind} has none", fix)

    def suspend(self) -> None:
        """Call the seam natively, and keep what is recorded, until :meth:`resume`: to compare the two in one fit."""
        if self._region is not None:
            self._region.suspend()

    def resume(self) -> None:
        """Replay again."""
        if self._region is not None:
            self._region.resume()

    def install(self, site: Site) -> Undo:
        """Route every call of the seam through a region."""
        part, engine = self.part(site), site.engine()
        assert part is not None and engine is not None
        region = Region(engine, part, self, self.growable, self.proof == "on")
        undo = ExitStack()
        undo.callback(self._forget)
        undo.callback(region.drop)
        undo.callback(take(site.module, self.claims[0], self.owner, part, region))
        self._region, self._taken = region, part
        return undo.close

    # Lightning's hooks

    def on_train_batch_start(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        """What an earlier batch left undone never comes."""
        super().on_train_batch_start(trainer, *args, **kwargs)
        if self._region is not None:
            self._region.next_step()

    def on_after_backward(self, *args: Any, **kwargs: Any) -> None:
        """Finish a proof."""
        if self._region is not None:
            self._region.after_backward()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Callbacks change modules here: compare everything at the next call."""
        if self._region is not None:
            self._region.suspect()
            if self.part(Site(trainer, pl_module, started=True)) is not self._taken:
                self._region.retire(Reason.STRUCTURE, "the part itself was exchanged")

    def on_validation_end(self, *args: Any, **kwargs: Any) -> None:
        """And here."""
        if self._region is not None:
            self._region.suspect()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_region": None, "_taken": None}

    def _forget(self) -> None:
        self._region = self._taken = None
