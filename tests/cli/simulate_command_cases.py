"""A small scenario, a table, and what ``trimtab simulate --json`` prints."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trimtab.cli import simulate

SMALL = ("ranks=8", "batch_size=16", "steps=1", "shards=8", "loading.prefetch=0")
NEEDED = "data: video-heavy\nmodel: mimo-vl-7b\n"


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert simulate.run([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def flat_table(path: Path) -> str:
    rng = np.random.default_rng(0)
    columns = {"text_tokens": rng.integers(20, 4000, 200), "vision_tiles": rng.integers(0, 6, 200)}
    pq.write_table(pa.table(columns), path)
    return str(path)
