"""``trimtab simulate``: its JSON, its trace, files of settings, no torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from simulate_command_cases import NEEDED, SMALL, flat_table, printed

from trimtab.cli import simulate
from trimtab.simulate.bundled import scenario_names

ROW = {"name", "step_ms", "phases", "tokens_per_step", "tokens_per_gpu_s", "attention_ratio", "out_of_memory"}


@pytest.mark.parametrize(
    "name",
    [n if n == "flexrl-video-heavy" else pytest.param(n, marks=pytest.mark.slow) for n in scenario_names()],
)
def test_every_bundled_scenario_runs_and_says_where_its_figures_come_from(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = printed(capsys, name, "steps=1")
    assert result["simulated"] is True
    assert result["scenario"] == name
    assert result.keys() == {"simulated", "scenario", "settings", "steps", "strategies", "left_out"}
    assert result["settings"]["ranks"] > 1
    for row in result["strategies"]:
        assert row.keys() == ROW
        assert row["phases"].keys() == {"data", "rollout", "inference", "update"}
        assert row["step_ms"] > 0
        assert isinstance(row["out_of_memory"], list)


@pytest.mark.slow
def test_a_scenarios_file_and_settings_that_win_over_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"name: ours\ntask: grpo\n{NEEDED}ranks: 8\nbatch_size: 16\nsteps: 1\nrollout:\n  replies: 2\n")
    more = printed(capsys, str(file), "strategies=[all]", "rollout.replies=4")["strategies"]
    less = printed(capsys, str(file), "strategies=[all]")["strategies"]
    assert [row["name"] for row in more] == ["all"]
    assert more[0]["phases"]["update"] > less[0]["phases"]["update"]


def test_options_may_be_written_like_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    one = printed(capsys, "flexrl-video-heavy", "--strategies=[all]", "--batch-size", "16", "--ranks", "16", "steps=1")
    other = printed(capsys, "flexrl-video-heavy", "strategies=[all]", "batch_size=16", "ranks=16", "steps=1")
    assert one == other


def test_a_pipeline_of_a_short_table_is_swept_over_all_strategies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [flat_table(tmp_path / "t.parquet"), "model=internvl-6b-20b", "ranks=8", "batch_size=12", "steps=6"]
    words += ["pipeline.stages=4", "pipeline.pack_tokens=8192", "shards=2"]
    result = printed(capsys, *words, "--sweep", "loading.prefetch=1,2")
    assert (result["steps"], len(result["strategies"])) == (6, 4)
    assert not any(said.startswith("One step") for said in result["recommended"]["doubts"])
    assert simulate.run([*words, "strategies=[random,isf]"]) == 0
    assert "means of 6 steps." in capsys.readouterr().out


def test_one_stage_leaves_nothing_to_cut(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["omnibal-6b-20b", "pipeline.stages=1", "steps=1", "batch_size=64", "strategies=[isf,isf+stages]"]
    result = printed(capsys, *words)
    assert [row["name"] for row in result["strategies"]] == ["isf"]
    assert result["left_out"] == {
        "isf+stages": "pipeline.stages=1 leaves nothing to cut, so it is isf; take 2 stages or more"
    }


def test_the_trace_is_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "trace.json"
    printed(capsys, "flexrl-video-heavy", *SMALL, "strategies=[all]", "--timeline", str(target))
    events = json.loads(target.read_text())["traceEvents"]
    busy = [event for event in events if event["ph"] == "X"]
    assert {"vision", "language", "rollout"} <= {event["name"] for event in busy}
    assert all({"pid", "tid", "ts", "dur", "cat"} <= event.keys() for event in busy)


def test_what_a_scenario_file_leaves_out_may_stand_behind_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text("ranks: 8\nbatch_size: 16\nsteps: 1\n")
    words = ["data=video-heavy", "--model", "mimo-vl-7b", "strategies=[as-is]"]
    assert printed(capsys, str(tmp_path / "mine.yaml"), *words)["settings"]["data"] == "video-heavy"


def test_files_a_scenario_names_start_from_its_folder_then_from_where_one_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, elsewhere = tmp_path / "jobs", tmp_path / "elsewhere"
    jobs.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    flat_table(elsewhere / "meta.parquet")
    (jobs / "mine.yaml").write_text("data: meta.parquet\nmodel: internvl-6b-20b\nranks: 8\nbatch_size: 16\nsteps: 1\n")
    arguments = ("../jobs/mine.yaml", "strategies=[as-is]")
    assert printed(capsys, *arguments)["settings"]["data"] == "meta.parquet"
    flat_table(jobs / "meta.parquet")
    assert printed(capsys, *arguments)["settings"]["data"] == "../jobs/meta.parquet"
    assert printed(capsys, *arguments, "data=meta.parquet")["settings"]["data"] == "meta.parquet"


def test_the_command_needs_no_torch() -> None:
    program = (
        "import sys\nfrom trimtab.cli.main import main\n"
        "code = main(['simulate', 'flexrl-video-heavy', 'steps=1', 'strategies=[all]', '--json'])\n"
        "assert code == 0\nassert not {'torch', 'ray', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
