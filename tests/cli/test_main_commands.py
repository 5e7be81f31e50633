"""The command line itself: light to start, one clear line where something is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.cli import main as entry
from trimtab.cli.commands import COMMANDS, Command

PROBE = """
import sys
{statement}
heavy = sorted({{"torch", "transformers", "ray", "plotly"}} & set(sys.modules))
assert not heavy, heavy
"""


@pytest.mark.parametrize(
    "statement",
    [
        "import trimtab",
        "import trimtab.families, trimtab.media, trimtab.schema.table_file",
        "from trimtab.cli.main import main; sys.argv[:] = ['trimtab', '--help']\ntry: main()\nexcept SystemExit: pass",
    ],
)
def test_neither_the_package_nor_its_help_loads_torch(statement: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(statement=statement)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_module_runs_as_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "trimtab", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()[0]) == (0, "trimtab")


def test_output_that_cannot_be_written_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "trimtab", "plan", "--demo", "--ranks", "4", "--batch-size", "16"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "trimtab: its output cannot be written (No space left on device); free space or send it elsewhere"
    )


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        entry.main(["--help"])
    assert stopped.value.code == 0
    listed = capsys.readouterr().out
    for command in COMMANDS:
        assert command.name in listed
        assert command.help in listed


def test_every_registered_command_has_its_file() -> None:
    folder = Path(entry.__file__).parent
    assert {f"{command.module}.py" for command in COMMANDS} <= {path.name for path in folder.glob("*.py")}
    assert len({command.name for command in COMMANDS}) == len(COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sing"], "invalid choice: 'sing'"),
        (["scan"], "the following arguments are required: DATA, --model, --out; see `trimtab scan --help`"),
        (["scan", "x", "--model", "m", "--out", "o", "--workers", "two"], "invalid int value: 'two'"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert entry.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert message in printed.err


def write_command(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str, *, own_parser: bool = True) -> None:
    (folder / "made_up_command.py").write_text(body)
    monkeypatch.setattr(sys.modules["trimtab.cli"], "__path__", [str(folder)])
    monkeypatch.setattr(entry, "COMMANDS", (Command("do", "made_up_command", "does", own_parser),))
    monkeypatch.delitem(sys.modules, "trimtab.cli.made_up_command", raising=False)


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("from trimtab.errors import PlanningError\ndef run(a): raise PlanningError('too\\n  long')", 2, "too long"),
        ("def run(a): raise KeyboardInterrupt", 130, "interrupted"),
        ("def run(a): raise ModuleNotFoundError(name='torch.nn')", 2, "needs torch.nn; pip install 'trimtab[train]'"),
        ("def run(a): raise ModuleNotFoundError(name='plotly')", 2, "pip install 'trimtab[report]'"),
        ("def run(a): raise MemoryError('Unable to allocate 14.9 GiB')", 2, "out of memory (Unable to allocate 14.9"),
    ],
)
def test_failures_become_one_line_and_an_exit_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    body: str,
    code: int,
    message: str,
) -> None:
    write_command(tmp_path, monkeypatch, body)
    assert entry.main(["do"]) == code
    printed = capsys.readouterr().err
    assert printed.startswith("trimtab: ")
    assert message in printed
    assert printed.count("\n") == 1


def test_a_defect_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_command(tmp_path, monkeypatch, "def run(a): raise ModuleNotFoundError(name='trimtab.gone')")
    with pytest.raises(ModuleNotFoundError):
        entry.main(["do"])


def test_a_command_with_its_own_parser_gets_its_arguments_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_command(tmp_path, monkeypatch, "def run(a): return len(a) if a[0] == '--x=[1,2]' else 99")
    assert entry.main(["do", "--x=[1,2]", "--help", "--", "y.z=3"]) == 4
