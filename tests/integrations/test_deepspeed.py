"""DeepSpeed ZeRO-3 with balance: the losses are those without."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.integrations.own_environment import python_with

DEEPSPEED = ("deepspeed==0.19.8", "einops", "hjson", "msgpack", "ninja", "py-cpuinfo")


@pytest.mark.slow
@pytest.mark.timeout(540)
def test_batch_and_encoder_balance_keep_the_losses_under_zero_3(tmp_path: Path) -> None:
    python = python_with(tmp_path / "deepspeed", *DEEPSPEED)
    program = Path(__file__).with_name("deepspeed_run.py")
    done = subprocess.run(
        [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr[-4000:]
    found = json.loads(lines[-1])
    expected = found["off"]["losses"]
    assert len(expected) == 3
    assert expected[-1] < expected[0]
    for name in ("on", "on, encoder", "off, encoder"):
        assert found[name]["losses"] == pytest.approx(expected, rel=1e-5), name
    assert "applied 0 of" not in found["on"]["batches"]
    assert "applied 0 of" not in found["off, encoder"]["encoder"]
