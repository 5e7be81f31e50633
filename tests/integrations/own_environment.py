"""Another framework beside the tests' packages, in an environment of its own, so that it changes nothing else."""

from __future__ import annotations

import subprocess
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python_with(folder: Path, *requirements: str) -> Path:
    """The interpreter of a new environment in ``folder``: the tests' own packages, this checkout and ``requirements``.

    Those are installed without what they depend on, so that the tests' versions stay.
    """
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    (own,) = (folder / "lib").glob("python*/site-packages")
    (own / "tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT / 'src'}\n")
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps", *requirements], check=True, timeout=240
    )
    return python
