"""What this package offers to the ``lucid`` command line."""

from __future__ import annotations

from lucid_core.plugins import hookimpl


@hookimpl
def lucid_components() -> list[type]:
    """Offer classes by their bare names."""
    from lucid_example.collection import ScheduledCollection
    from lucid_example.criterion import CriterionReplay
    from lucid_example.optimizer import CentredSGD
    from lucid_example.precision import PerTensorClip

    return [ScheduledCollection, CriterionReplay, PerTensorClip, CentredSGD]
