"""The example of packs in a plain DataLoader, alone and on two ranks."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "packed_dataloader.py"


def trained_on(said: str) -> list[int]:
    return [int(count) for count in re.findall(r"trained on (\d+) of 24 samples", said)]


def test_one_rank_trains_on_every_sample(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().out
    assert trained_on(said) == [24]
    first, *_, last = (float(share) for share in re.findall(r"share of the loss ([\d.]+)", said))
    assert last < first


@pytest.mark.slow
def test_two_ranks_share_the_samples() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    counts = trained_on(done.stdout)
    assert len(counts) == 2
    assert sum(counts) == 24
