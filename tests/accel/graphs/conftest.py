"""What the tests of recordings share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def nothing_old_to_collect() -> Iterator[None]:
    """Each recording collects garbage first; what was imported needs no look, and there is a lot of it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
