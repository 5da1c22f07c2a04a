"""The network as one recording."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from torch import nn

from lucid_accel.replay.part import PartReplay
from lucid_accel.site import Answer, Site, no

__all__ = ["NetworkReplay"]


class NetworkReplay(PartReplay):
    """Replays the network's forward and backward: backbone, neck and both branches of the head, or any submodule.

    Wraps: the seam ``step.network``, or ``forward`` of the submodule that ``module`` names.

    Must hold: one NVIDIA GPU, automatic optimization, 32-true, bf16-mixed or 16-mixed; no hooks inside the part; a
    forward without host reads, host randomness, changes of Python state, or writes to tensors that are neither
    parameters nor buffers of the part.

    Frozen: every Python value that the forward reads, such as ``trainer.current_epoch``; attributes of the modules are
    watched, what lies outside them is not. Containers of more than 256 items in an attribute are known by identity and
    length alone.

    Ends: a hook, a parameter or buffer that is exchanged, an attribute that changes, a different set of results with
    gradients. One backward per result: a second one is computed natively and ends the replay. Freezing, and switching
    parts to evaluation, are recorded again, three times. Smaller batches, evaluation and anomaly mode are native for as
    long as they last.

    Tasks: detection, and any submodule of any module. One run can have one ``step.network``, so one NetworkReplay.
    Combines with every acceleration but one that takes the whole step.

    Elsewhere: the flag ``capture_network``.

    Costs: four native steps, and one more after a hundred; the time to record, and memory for one more set of
    activations.

    Args:
        module: Dotted path of a submodule of the LightningModule, for modules that know nothing of lucid.
        proof: ``on`` replays a step beside its native run, the first one after recording and one more after a hundred,
            and retires on the first byte that differs. ``off`` leaves that out.
        on_failure: What a failure to record does: ``retire`` warns once and goes on natively, ``raise`` stops the run.
        strict: A no, a retirement, or a fit in which nothing was replayed is an error.
        keep: ``auto`` retires it where it does not pay, by the times of native and replayed steps of this fit;
            ``always`` keeps the recording to the end of the fit.
    """

    claims = ("step.network",)

    def __init__(
        self,
        module: str | None = None,
        proof: Literal["on", "off"] = "on",
        on_failure: Literal["retire", "raise"] = "retire",
        strict: bool = False,
        keep: Literal["auto", "always"] = "auto",
    ) -> None:
        super().__init__(proof, on_failure, strict, keep)
        self.module = module

    @property
    def owner(self) -> str:
        """Its name, and the submodule."""
        return self.name if self.module is None else f"{self.name}(module={self.module!r})"

    def part(self, site: Site) -> nn.Module | None:
        """Return the named submodule, or the one that is the seam."""
        if self.module is None:
            return super().part(site)
        named = dict(site.module.named_modules(remove_duplicate=False))
        return named.get(self.module) if self.module else None

    def without_part(self, site: Site) -> Answer:
        """Say no, with the names there are."""
        kind = type(site.module).__name__
        known = dict(site.module.named_modules())
        place = self.module or ""
        while place not in known:
            place = place.rpartition(".")[0]
        prefix = f"{place}." if place else ""
        names = ", ".join(prefix + name for name, _ in known[place].named_children()) or "none"
        if self.module is None:
            return replace(super().without_part(site), fix=f"name a submodule with module=; {kind} has {names}")
        return no(
            f"it needs a submodule {self.module!r}", f"{kind} has none of that name", f"name one, such as {names}"
        )
