"""Planning, reporting and the command line's help start without torch: imports are cheap and need no GPU stack."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys

import pytest

import trimtab

HEAVY = {"torch", "transformers", "ray"}
CORE = ("errors", "schema", "families", "media", "cost", "planning", "simulate", "report")


def heavy_modules_after(statements: str) -> list[str]:
    """Run ``statements`` in a new interpreter and list the heavy packages it has loaded by the end."""
    program = f"import json, sys\n{statements}\nprint(json.dumps(sorted({HEAVY!r} & set(sys.modules))))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    loaded: list[str] = json.loads(done.stdout.splitlines()[-1])
    return loaded


def core_modules() -> list[str]:
    names = [module.name for module in pkgutil.walk_packages(trimtab.__path__, "trimtab.")]
    return [name for name in names if name.split(".")[1] in CORE]


def test_the_check_itself_notices_torch() -> None:
    assert heavy_modules_after("import torch") == ["torch"]


def test_importing_trimtab_loads_no_torch() -> None:
    assert heavy_modules_after("import trimtab") == []


def test_no_module_of_the_planning_core_loads_torch() -> None:
    names = core_modules()
    assert {name.split(".")[1] for name in names} == set(CORE)
    assert heavy_modules_after("\n".join(f"import {name}" for name in names)) == []


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"]])
def test_the_command_lines_help_loads_no_torch(arguments: list[str]) -> None:
    statements = f"""
from trimtab.cli.main import main
sys.argv = ["trimtab", *{arguments!r}]
try:
    code = main()
except SystemExit as end:
    code = end.code
assert not code, code
"""
    assert heavy_modules_after(statements) == []
