"""Why a call was native: a closed list, the same for every acceleration and every report."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Reason"]


class Reason(StrEnum):
    """Each native call of a claimed seam is counted under one of these."""

    WARMUP = "warmup"  #: native calls that a recording is learnt from, and those it is proven on
    SHAPE = "shape"  #: other shapes than recorded
    PARTIAL_BATCH = "partial_batch"  #: recorded shapes, but fewer images
    DTYPE = "dtype"  #: other types than recorded
    STRIDE = "stride"  #: another memory format than recorded
    STREAM = "stream"  #: another CUDA stream is current
    EVAL = "eval"  #: evaluation
    GRAD_DISABLED = "grad_disabled"  #: no gradients are wanted
    GRAD_ENABLED = "grad_enabled"  #: gradients are wanted, of work that has none
    INFERENCE = "inference"  #: inference mode
    ANOMALY = "anomaly"  #: anomaly mode, whose checks a replay would leave out
    HOOKS = "hooks"  #: a hook inside the recorded part, or somebody else who looks on, such as a profiler
    STRUCTURE = "structure"  #: modules were exchanged, or a forward was
    STORAGE = "storage"  #: a parameter or buffer was exchanged or moved
    MODE = "mode"  #: training and evaluation modes of parts changed
    FREEZE = "freeze"  #: the trainable set changed
    SCALARS = "scalars"  #: a Python value that the recorded part reads changed
    PRECISION = "precision"  #: autocast or a numerical setting of torch changed
    OUTSTANDING_BACKWARD = "outstanding_backward"  #: the backward of an earlier replay is still to come
    MISSING_GRAD = "missing_grad"  #: other results get a gradient than recorded
    ALIAS = "alias"  #: inputs that share memory
    COMPILING = "compiling"  #: torch.compile is tracing
    FOREIGN_CAPTURE = "foreign_capture"  #: somebody else is recording
    RETIRED = "retired"  #: after retirement
    NOT_PAYING = "not_paying"  #: after it was found not to pay
    MEMORY = "memory"  #: no room for another recording
    CAPTURE_FAILED = "capture_failed"  #: it could not be recorded
    UNLIKE = "unlike"  #: a replay gave other bytes than the native run
    UNPROVABLE = "unprovable"  #: the native run gives other bytes each time
    DISABLED = "disabled"  #: switched off: by the user, or for a while to be measured
