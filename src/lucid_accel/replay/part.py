"""What accelerations that record a submodule have in common: one region behind one seam."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from torch import nn
from torch.nn.parameter import is_lazy

from lucid_accel.acceleration import Undo
from lucid_accel.adapters import is_free, marked_parts, take
from lucid_accel.graphs.region import Region
from lucid_accel.replay.base import Replay
from lucid_accel.site import Answer, Site, no, recordable, yes

__all__ = ["PartReplay"]


class PartReplay(Replay):
    """Base of accelerations that record one seam, a part of the network or the objective, and its backward.

    Args:
        proof: See :class:`Replay`.
        on_failure: See :class:`Acceleration`.
        strict: See :class:`Acceleration`.
        keep: See :class:`Acceleration`.

    Attributes:
        growable: Positions of arguments of the seam that are padded: dimension 1 of their tensors is a capacity, rows
            of zeros past it are inert.
    """

    growable: ClassVar[Collection[int]] = ()

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

    def install(self, site: Site) -> Undo:
        """Route every call of the seam through a region."""
        part, engine = self.part(site), site.engine()
        assert part is not None and engine is not None
        region = Region(engine, part, self, self._padded, self.proof == "on")
        return self.drive(region, part, take(site.module, self.claims[0], self.owner, part, region))

    def _padded(self, args: tuple[Any, ...]) -> list[Any]:
        return [args[position] for position in self.growable if position < len(args)]
