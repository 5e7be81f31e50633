"""verl in an environment of its own, since it pins other versions of what trimtab uses."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FOLDER = Path(__file__).parent.parent / ".venv-peers"
_REQUIREMENTS = ("verl==0.9.1", "torch==2.13.0")
_WORKER = Path(__file__).with_name("verl_partition.py")


def verl_python(*, create: bool) -> Path | None:
    """The interpreter of verl's environment; made first where ``create`` allows, else None where it is missing."""
    python = _FOLDER / "verl" / "bin" / "python"
    ready = _FOLDER / "verl" / "installed"
    if not ready.exists() and create:
        _FOLDER.mkdir(exist_ok=True)
        (_FOLDER / ".gitignore").write_text("*\n")
        print("making verl's environment (about a minute, 2 GB)", file=sys.stderr)
        venv.create(_FOLDER / "verl", with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *_REQUIREMENTS], check=True)
        ready.touch()
    return python if ready.exists() else None


class VerlPartitioner:
    """verl's Karmarkar-Karp in a process of its environment."""

    def __init__(self, python: Path) -> None:
        self.process = subprocess.Popen(
            [str(python), str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def partition(
        self, costs: NDArray[np.int64], ranks: int, *, equal_size: bool, repeat: int
    ) -> tuple[NDArray[np.int64], list[float]]:
        """Rank of each sample (int64 [N]), and milliseconds of each repetition."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        asked = {"costs": costs.tolist(), "ranks": ranks, "equal_size": equal_size, "repeat": repeat}
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        rank = np.zeros(len(costs), dtype=np.int64)
        for index, rows in enumerate(answer["parts"]):
            rank[rows] = index
        return rank, answer["milliseconds"]

    def close(self) -> None:
        """End the process."""
        self.process.communicate()
