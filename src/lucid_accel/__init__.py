"""lucid-accel: accelerations that record what lucid-core trains eagerly."""

__version__ = "0.1.0"
