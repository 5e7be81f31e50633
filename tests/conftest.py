"""What every test shares: ranks, seeds, no network."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import hypothesis
import numpy as np
import pytest

if TYPE_CHECKING:
    from trimtab.testing import RankPool

hypothesis.settings.register_profile("trimtab", deadline=None, derandomize=True)  # same examples in every run
hypothesis.settings.load_profile("trimtab")


def pytest_configure() -> None:
    """Keep tests, and the processes they start, off the network and on one thread."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["COLUMNS"] = "160"  # tables must not depend on how long a temporary path is


@pytest.fixture(autouse=True)
def seeds() -> None:
    """Start every test from the same random state."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 (code under test may draw from the global generator)
    if "torch" in sys.modules:  # tests of the planning core do not load it
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def rank_pool() -> Iterator[RankPool]:
    """Rank processes shared by the whole run: ``rank_pool.run(2, fn, *args)``."""
    from trimtab.testing import DEFAULT_PRELOAD, RankPool

    with RankPool(preload=(*DEFAULT_PRELOAD, "pytest", "hypothesis")) as pool:
        yield pool
