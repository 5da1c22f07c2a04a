"""lucid-core: small real-time detectors, trained eagerly, in steps that can be recorded."""

__version__ = "0.1.0"
