"""The detection objective as one recording."""

from __future__ import annotations

from lucid_accel.replay.part import PartReplay

__all__ = ["LossReplay"]


class LossReplay(PartReplay):
    """Replays the detection objective and its backward: decoding, assignment of both branches, all terms.

    Wraps: the seam ``step.objective.detection``.

    Must hold: one NVIDIA GPU, automatic optimization, 32-true, bf16-mixed or 16-mixed. Labels are checked before they
    are on the GPU. Empty and non-finite batches are replayed like any other.

    Frozen: gains and the settings of the assigners, watched at every step. The weight between the branches is read from
    the device and stays live. Room for objects is that of the fullest batch so far: emptier ones clear the rest, a
    fuller one is recorded again, three times. Containers of more than 256 items in an attribute are known by identity
    and length alone.

    Ends: changed gains, an exchanged part, a hook. One backward per result: a second one is computed natively and ends
    the replay. Smaller batches, evaluation and anomaly mode are native for as long as they last.

    Tasks: detection. Combines with every acceleration but one that takes the whole step.

    Elsewhere: the flag ``capture_loss``.

    Costs: four native steps, and one more after a hundred; the time to record, and little memory.

    Args:
        proof: ``on`` replays a step beside its native run, the first one after recording and one more after a hundred,
            and retires on the first byte that differs. ``off`` leaves that out.
        on_failure: What a failure to record does: ``retire`` warns once and goes on natively, ``raise`` stops the run.
        strict: A no, a retirement, or a fit in which nothing was replayed is an error.
        keep: ``auto`` retires it where it does not pay, by the times of native and replayed steps of this fit;
            ``always`` keeps the recording to the end of the fit.
    """

    claims = ("step.objective.detection",)
    growable = (1,)
