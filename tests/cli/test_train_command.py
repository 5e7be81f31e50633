"""``trimtab train``: settings, exit codes, and ranks the command starts itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.training.small_run import write_run

from trimtab.cli.main import main
from trimtab.cli.settings_parser import parse_settings
from trimtab.training.settings import SFTSettings

NEEDED = ["model=m", "data=[a.jsonl]", "table=t.parquet"]


def parse(*words: str) -> SFTSettings:
    return parse_settings(SFTSettings, [*NEEDED, *words], command="trimtab train sft")


def test_settings_are_written_with_or_without_dashes() -> None:
    settings = parse("balance.mode=off", "--loader.mode=central", "--resume", "optimizer.learning_rate=2e-4")
    assert (settings.balance.mode, settings.loader.mode, settings.resume) == ("off", "central", True)
    assert settings.optimizer.learning_rate == 2e-4
    assert settings.data == ("a.jsonl",)


def test_later_words_win_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("steps: 7\nbalance:\n  mode: observe\n")
    settings = parse("--config", str(config), "steps=9")
    assert (settings.steps, settings.balance.mode) == (9, "observe")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["balance.mode=maybe"], "balance.mode"),
        (["blance.mode=off"], "blance.mode"),
        (["steps=none"], "steps"),
        (["steps=0"], "steps=0 must be at least 1"),
        (["loader.workers=0"], "loader.workers=0 must be at least 1"),
        (["balance.max_degree=0"], "balance.max_degree=0 must be at least 1"),
        (["evaluation.data=[h.jsonl]"], "evaluation.data and evaluation.table go together"),
    ],
)
def test_bad_settings_are_one_line_and_exit_2(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "sft", *NEEDED, *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("model", "gone: no config.json"),
        ("data", "no such file; give"),
        ("table", "write it with `trimtab"),
    ],
)
def test_missing_files_are_named_before_ranks_start(
    missing: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = write_run(tmp_path, samples=2, photos=False)
    files[missing] = (tmp_path / "gone",) if missing == "data" else tmp_path / "gone"
    words = [f"model={files['model']}", f"data=[{files['data'][0]}]", f"table={files['table']}"]
    assert main(["train", "sft", *words, f"runs={tmp_path / 'runs'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize("of", ["", "evaluation."])
def test_a_missing_media_folder_is_named_before_ranks_start(
    of: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = write_run(tmp_path, samples=2, photos=False)
    words = [f"model={files['model']}", f"data=[{files['data'][0]}]", f"table={files['table']}"]
    words += [f"evaluation.data=[{files['data'][0]}]", f"evaluation.table={files['table']}"]
    assert main(["train", "sft", *words, f"{of}root={tmp_path / 'gone'}", f"runs={tmp_path / 'runs'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f" {of}root={tmp_path / 'gone'}: no such folder; give the folder that relative media" in line


def test_an_unknown_loop_names_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "dpo"]) == 2
    assert "choose sft" in capsys.readouterr().err


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "trimtab", "train", "sft", f"model={folder / 'model'}"]
    command += [f"data=[{folder / 'train.jsonl'}]", f"table={folder / 'train.parquet'}", f"runs={folder / 'runs'}"]
    command += ["name=run", "samples_per_step=6", "dtype=float64", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for(condition: Callable[[], bool], timeout_s: float = 90) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def processes() -> list[tuple[int, int, str]]:
    """Process, parent and command line of all."""
    listing = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = (line.split(maxsplit=2) for line in listing.splitlines())
    return [(int(pid), int(parent), args) for pid, parent, args in rows]


def fork_servers_of(process: subprocess.Popen[str]) -> set[int]:
    """Children of the command that fork its ranks."""
    return {pid for pid, parent, args in processes() if parent == process.pid and "forkserver" in args}


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
    """The rank processes."""
    servers = fork_servers_of(process)
    return [pid for pid, parent, _ in processes() if parent in servers]


@pytest.mark.slow
def test_a_signal_leaves_a_checkpoint_to_resume_from(tmp_path: Path) -> None:
    write_run(tmp_path)
    steps = tmp_path / "runs" / "run" / "balanced" / "steps.jsonl"
    process = start(tmp_path, "steps=200")
    wait_for(lambda: steps.exists() and bool(steps.read_text()))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=90)
    assert process.returncode == 75, said
    assert "--resume goes on from the checkpoint" in said
    done = len(steps.read_text().splitlines())
    again = start(tmp_path, "steps=200", f"stop_after={done + 1}", "--resume")
    _, said = again.communicate(timeout=90)
    assert again.returncode == 0, said
    assert len(steps.read_text().splitlines()) == done + 1


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_the_ranks_with_its_own_exit_code(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    write_run(tmp_path)
    steps = tmp_path / "runs" / "run" / "balanced" / "steps.jsonl"
    process = start(tmp_path, "steps=200")
    wait_for(lambda: steps.exists() and bool(steps.read_text()))
    process.send_signal(number)
    time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=90)
    assert process.returncode == code, said
    assert "stopped by a second signal; --resume goes on" in said


@pytest.mark.slow
def test_ctrl_c_while_modules_load_ends_quietly(tmp_path: Path) -> None:
    write_run(tmp_path)
    process = start(tmp_path, "steps=200")
    wait_for(lambda: bool(fork_servers_of(process)))
    time.sleep(0.5)  # it imports by now; ranks start much later
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Traceback" not in said


@pytest.mark.slow
def test_sigterm_while_modules_load_is_told(tmp_path: Path) -> None:
    write_run(tmp_path)
    process = start(tmp_path, "steps=200")
    wait_for(lambda: "libtorch" in Path(f"/proc/{process.pid}/maps").read_text())
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143, said
    assert said == "trimtab: ended by SIGTERM before the ranks were started\n"


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_by_name_within_a_minute(tmp_path: Path) -> None:
    write_run(tmp_path)
    steps = tmp_path / "runs" / "run" / "balanced" / "steps.jsonl"
    process = start(tmp_path, "steps=500")
    wait_for(lambda: steps.exists() and bool(steps.read_text()))
    ranks = ranks_of(process)
    os.kill(ranks[-1], signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "was ended by SIGKILL" in said.splitlines()[-1]
    wait_for(lambda: not any(_alive(pid) for pid in ranks), timeout_s=10)


@pytest.mark.slow
def test_an_unforeseen_error_ends_the_run_with_its_traceback(tmp_path: Path) -> None:
    write_run(tmp_path)
    (tmp_path / "model" / "config.json").write_text(
        (tmp_path / "model" / "config.json").read_text().replace('"num_heads": 2', '"num_heads": 7')
    )
    process = start(tmp_path, "steps=3")
    _, said = process.communicate(timeout=90)
    assert process.returncode == 2
    assert "Traceback (most recent call last)" in said
    assert "its traceback is above" in said.splitlines()[-1]


@pytest.mark.slow
def test_ranks_leave_no_semaphore_behind(tmp_path: Path) -> None:
    write_run(tmp_path)
    _, said = start(tmp_path, "steps=1", "lora.rank=2").communicate(timeout=110)
    assert "model written" in said
    assert "leaked" not in said


@pytest.mark.slow
def test_torchrun_brings_its_own_ranks(tmp_path: Path) -> None:
    write_run(tmp_path)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "trimtab"]
    command += ["train", "sft", f"model={tmp_path / 'model'}", f"data=[{tmp_path / 'train.jsonl'}]", "steps=1"]
    command += [f"table={tmp_path / 'train.parquet'}", f"runs={tmp_path / 'runs'}", "name=run", "samples_per_step=6"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "run" / "balanced" / "model" / "model.safetensors").exists()


def _alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
