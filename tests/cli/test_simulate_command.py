"""``trimtab simulate``: its JSON, its trace, sweeps and recommendation, bad input in one clear line, no torch."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trimtab.cli import simulate
from trimtab.cli.main import main
from trimtab.report.build import build_report
from trimtab.simulate.bundled import scenario_names

SMALL = ("ranks=8", "batch_size=16", "steps=1", "shards=8", "loading.prefetch=0")
NEEDED = "data: video-heavy\nmodel: mimo-vl-7b\n"
ROW = {"name", "step_ms", "phases", "tokens_per_step", "tokens_per_gpu_s", "attention_ratio", "out_of_memory"}


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert simulate.run([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def flat_table(path: Path) -> str:
    rng = np.random.default_rng(0)
    columns = {"text_tokens": rng.integers(20, 4000, 200), "vision_tiles": rng.integers(0, 6, 200)}
    pq.write_table(pa.table(columns), path)
    return str(path)


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


def test_a_table_of_ones_own_gets_a_recommendation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = flat_table(tmp_path / "meta.parquet")
    arguments = [table, "model=internvl-6b-20b", "cluster=h100", "ranks=8", "batch_size=16", "steps=1", "--sweep"]
    result = printed(capsys, *arguments)
    assert result["scenario"] == "meta"
    assert {row["name"] for row in result["strategies"]} >= {"as-is", "loongforge", "whole-sample", "all"}
    best = result["recommended"]
    assert best["step_ms"] <= min(row["step_ms"] for row in result["strategies"])
    assert best["fits"] is True
    assert all(point["settings"] for point in result["sweep"])
    assert best["run"].startswith(
        "trimtab train sft model=MODEL data=[DATA] table=TABLE samples_per_step=16 dtype=bfloat16"
    )
    assert {"recompute=", "balance.max_degree=", "max_tokens_per_micro_batch="} <= set(
        re.findall(r"[\w.]+=", best["run"])
    )
    assert simulate.run([*arguments[:-1], "strategies=[as-is,all]", "--sweep", "recompute=true,false"]) == 0
    said = capsys.readouterr().out
    assert "recommended (simulated): strategy" in said
    assert "in the 1 step simulated" in said
    (doubt,) = best["doubts"]
    assert doubt in said
    assert "…" not in said


def test_of_strategies_as_fast_trimtabs_own_is_recommended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["model=qwen2.5-vl-7b", "cluster=h100", "ranks=16", "batch_size=64", "steps=1"]
    result = printed(capsys, flat_table(tmp_path / "meta.parquet"), *arguments, "--sweep", "max_degree=1,8")
    rows = {row["name"]: row["step_ms"] for row in result["strategies"]}
    assert rows["adaptive-only"] == pytest.approx(rows["all"], rel=0.01)
    assert result["recommended"]["strategy"] == "all"


def test_where_nothing_fits_the_nearest_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = flat_table(tmp_path / "meta.parquet")
    arguments = [table, "model=qwen2.5-vl-72b", "cluster=a100", "ranks=8", "batch_size=16", "steps=1"]
    arguments += ["strategies=[as-is,all]", "--sweep", "recompute=true,false"]
    result = printed(capsys, *arguments)
    needed = [max(each["needed_gb"] for each in row["out_of_memory"]) for row in result["sweep"]]
    best = max(each["needed_gb"] for each in result["recommended"]["out_of_memory"])
    assert best <= 1.05 * min(needed)
    assert simulate.run(arguments) == 0
    said = capsys.readouterr().out
    assert "nothing fits in memory (simulated); the nearest is" in said
    assert "recommended" not in said
    recommended = result["recommended"]
    assert (recommended["fits"], recommended["run"], recommended["run_needs"]) == (False, "", "")
    assert recommended["remedy"].startswith("take more ranks")
    assert recommended["remedy"] in said
    assert not any(point["standing"] == "recommended" for point in result["sweep"])


def test_no_gain_over_itself_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["flexrl-video-heavy", *SMALL, "strategies=[all]", "--sweep"]
    assert simulate.run([*words, "seed=0,1"]) == 0
    said = capsys.readouterr().out
    assert "recommended (simulated): strategy all, the settings as given" in said
    assert "times the throughput" not in said


def test_switches_are_said_as_in_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["flexrl-video-heavy", *SMALL, "strategies=[all]", "--sweep", "recompute=on,off,True"]
    tried = [point["settings"] for point in printed(capsys, *words)["sweep"]]
    assert tried == [{"recompute": "true"}, {"recompute": "false"}]


@pytest.mark.slow
def test_pipelines_are_compared_by_throughput(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["omnibal-6b-20b", "steps=1", "strategies=[random,isf+stages]", "--sweep", "loading.prefetch=2,3"]
    rows = printed(capsys, *arguments)["strategies"]
    gain = max(row["tokens_per_gpu_s"] for row in rows) / rows[0]["tokens_per_gpu_s"]
    assert simulate.run(arguments) == 0
    said = capsys.readouterr().out
    assert f"{gain:.2f} times the throughput of random" in said
    assert "steps hold different tokens" in said


PIPELINE = ("omnibal-6b-20b", "batch_size=64", "steps=1", "strategies=[isf+stages]", "--sweep", "seed=0,0")


@pytest.mark.parametrize("changed", [(), ("pipeline.pack_tiles=40", "pipeline.stages=8")])
def test_the_command_that_plans_stages_runs_as_it_stands(
    changed: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    trimtab, *words = shlex.split(printed(capsys, *PIPELINE, *changed)["recommended"]["run"])
    assert trimtab == "trimtab"
    assert words[:4] == ["stages", "--model", "internvl-6b-20b", "--cluster"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predicted_step_ms"] > 0


def test_data_that_end_early_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [flat_table(tmp_path / "t.parquet"), "model=internvl-6b-20b", "ranks=8", "batch_size=12", "steps=40"]
    words += ["pipeline.stages=4", "pipeline.pack_tokens=8192", "shards=2", "strategies=[random,isf]"]
    steps = printed(capsys, *words)["steps"]
    assert 0 < steps < 40
    assert simulate.run(words) == 0
    assert f"means of {steps} steps (of 40: the data hold no more)" in capsys.readouterr().out


def test_one_stage_leaves_nothing_to_cut(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["omnibal-6b-20b", "pipeline.stages=1", "steps=1", "batch_size=64", "strategies=[isf,isf+stages]"]
    result = printed(capsys, *words)
    assert [row["name"] for row in result["strategies"]] == ["isf"]
    assert result["left_out"] == {
        "isf+stages": "pipeline.stages=1 leaves nothing to cut, so it is isf; take 2 stages or more"
    }


@pytest.mark.slow
def test_a_sweep_tries_each_value(capsys: pytest.CaptureFixture[str]) -> None:
    result = printed(
        capsys, "flexrl-video-heavy", *SMALL, "strategies=[all]", "--sweep", "max_degree=1,8", "H_pack=4096,65536"
    )
    tried = [point["settings"] for point in result["sweep"]]
    assert tried == [{"max_degree": "1"}, {"max_degree": "8"}, {"pack_tokens": "4096"}, {"pack_tokens": "65536"}]
    at = {point["settings"].get("max_degree"): point["step_ms"] for point in result["sweep"]}
    assert at["8"] <= at["1"]
    assert result["recommended"]["strategy"] == "all"


def test_what_is_the_job_itself_is_tabulated_and_not_recommended(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["flexrl-video-heavy", *SMALL, "strategies=[all]", "--sweep", "seed=0,1,2", "batch_size=16,32"]
    result = printed(capsys, *words)
    assert len({point["tokens_per_gpu_s"] for point in result["sweep"]}) > 1
    assert result["recommended"]["settings"] == {}
    assert result["not_recommended"] == ["seed", "batch_size"]
    assert simulate.run(words) == 0
    assert "not recommended, as it is the job itself or assumed: seed, batch_size" in capsys.readouterr().out


def test_page_and_command_and_json_recommend_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["model=qwen2.5-vl-7b", "cluster=h100", "ranks=16", "batch_size=64", "steps=1"]
    words = [flat_table(tmp_path / "meta.parquet"), *arguments, "strategies=[all]", "--sweep"]
    result = printed(capsys, *words)
    best = result["recommended"]
    tried = {(*point["settings"].items(),): point["standing"] for point in result["sweep"]}
    assert {pair for (pair,), standing in tried.items() if standing == "recommended"} == {*best["settings"].items()}
    degrees = [point["settings"]["max_degree"] for point in result["sweep"] if "max_degree" in point["settings"]]
    assert degrees == ["1", "2", "4"]  # of 28 heads
    assert tried[("max_degree", "4"),] == "as given"
    assert "balance.max_degree=4" in best["run"]
    assert "pack_tokens" in result["without_effect"]
    document = tmp_path / "sweep.json"
    document.write_text(json.dumps(result))
    group = build_report([document]).document_groups[0]
    table = next(section.table for section in group.sections if section.title.startswith("Sweep"))
    assert table is not None
    marked = {table.rows[row][0].removesuffix(" (recommended)") for row in table.marked}
    assert marked - {"these together"} == {f"{name}={value}" for name, value in best["settings"].items()}
    assert simulate.run(words) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    (line,) = [line for line in captured.out.splitlines() if line.startswith("no effect on all: ")]
    assert "pack_tokens (4096, 16384, 65536)" in line
    assert "few or none are shared here" in line


def test_degrees_that_heads_do_not_allow_are_told_as_what_they_act_as(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["flexrl-video-heavy", *SMALL, "strategies=[all]", "--json", "--sweep", "max_degree=2,3,8"]
    assert simulate.run(words) == 0
    captured = capsys.readouterr()
    assert [point["settings"] for point in json.loads(captured.out)["sweep"]] == [
        {"max_degree": "2"},
        {"max_degree": "8"},
    ]
    assert "max_degree=3: not possible with these heads and ranks; it acts as the next lower of 2, 8" in captured.err


def test_a_setting_behind_the_sweep_is_a_setting(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--sweep", "max_degree=1,8", "strategies=[all,loader-only]", *SMALL]
    result = printed(capsys, "flexrl-video-heavy", *words)
    assert [row["name"] for row in result["strategies"]] == ["all", "loader-only"]
    assert [point["settings"] for point in result["sweep"]] == [{"max_degree": "1"}, {"max_degree": "8"}]


def test_the_scenario_may_stand_behind_the_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    result = printed(capsys, "--sweep", "max_degree=1,8", "flexrl-video-heavy", *SMALL, "strategies=[all]")
    assert result["scenario"] == "flexrl-video-heavy"
    assert len(result["sweep"]) == 2


def test_a_sweep_in_one_word_with_a_trace_behind_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["flexrl-video-heavy", *SMALL, "strategies=[all]", "--sweep=max_degree=1,8", "--timeline"]
    result = printed(capsys, *words, str(tmp_path / "trace.json"))
    assert len(result["sweep"]) == 2
    assert (tmp_path / "trace.json").exists()


def test_the_trace_is_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "trace.json"
    printed(capsys, "flexrl-video-heavy", *SMALL, "strategies=[all]", "--timeline", str(target))
    events = json.loads(target.read_text())["traceEvents"]
    busy = [event for event in events if event["ph"] == "X"]
    assert {"vision", "language", "rollout"} <= {event["name"] for event in busy}
    assert all({"pid", "tid", "ts", "dur", "cat"} <= event.keys() for event in busy)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nothing"], "scenario 'nothing': neither a file nor bundled; there are: flexrl-image-heavy"),
        (["flexrl-image-heavy", "rank=8"], "unknown setting rank; did you mean ranks?"),
        (["flexrl-image-heavy", "strategies=[best]"], "strategy 'best' is unknown; choose of as-is"),
        (["flexrl-image-heavy", "ranks=-1"], "ranks=-1 must be at least 1"),
        (["flexrl-image-heavy", "ranks=many"], "ranks"),
        (["flexrl-image-heavy", "rollout.mean_tokens=nan"], "rollout.mean_tokens"),
        (["flexrl-image-heavy", "rollout.mean_tokens=inf"], "rollout.mean_tokens"),
        (["flexrl-image-heavy", "rollout.mean_tokens=1e17"], "tokens=1e+17 must be at most 1,048,576; lower it"),
        (["flexrl-image-heavy", "rollout.mean_tokens=2000"], "mean_tokens=2000.0 is above rollout.max_tokens=1024"),
        (["flexrl-image-heavy", "rollout.spread=50"], "rollout.spread=50.0 must be at most 2; lower it"),
        (["flexrl-image-heavy", "ranks=1000000000"], "ranks=1,000,000,000 must be at most 65,536; lower it"),
        (["flexrl-image-heavy", "loading.prefetch=1000000"], "loading.prefetch=1,000,000 must be at most 256"),
        (["flexrl-image-heavy", "batch_size=1000000000"], "5,000,000,000 sequences a step, more than the 262,144"),
        (["flexrl-image-heavy", "rollout.replies=100000"], "rollout.replies=100,000 makes 25,600,000 sequences a step"),
        (["flexrl-image-heavy", "steps=1000000000"], "more than the 4,194,304 that are simulated; set steps=2975 or"),
        (["flexrl-image-heavy", "task=sft", "pack_length=1000000000"], "packs of pack_length=1,000,000,000 makes"),
        (["omnibal-6b-20b", "pipeline.batch=100000"], "batch_size=256 x pipeline.batch=100,000 makes 25,600,000"),
        (["flexrl-image-heavy", "media.long_seconds_most=1e9"], "media.long_seconds_most=1,000,000,000.0 must be at"),
        (["flexrl-image-heavy", "loading.ship_bandwidth=0"], "loading.ship_bandwidth=0.0 must be at least 1"),
        (["flexrl-image-heavy", "reserve=1.5"], "reserve=1.5 must lie in [0, 1)"),
        (["flexrl-image-heavy", "shards=7"], "ranks=128 is not a multiple of shards=7"),
        (["flexrl-image-heavy", "rollout.tensor_parallel=3"], "not a multiple of rollout.tensor_parallel=3"),
        (["flexrl-image-heavy", "task=dpo"], "task"),
        (["flexrl-image-heavy", "data=mmlu"], "'mmlu' is no data set; name a metadata table's file, or of image-heavy"),
        (["flexrl-image-heavy", "data=missing.parquet"], "missing.parquet"),
        (["flexrl-image-heavy", "model=gpt"], "model 'gpt' is not bundled"),
        (["flexrl-image-heavy", "cluster=tpu"], "cluster 'tpu'"),
        (["flexrl-image-heavy", "media.long_seconds_most=5"], "is below long_seconds_least"),
        (["mine.parquet", "ranks=8"], "mine.parquet is a metadata table: say what is trained on it, model=NAME"),
        (["flexrl-image-heavy", "--sweep", "max_degree"], "--sweep max_degree: write setting=value,value"),
        (["flexrl-image-heavy", "--sweep", "max_degree=1,,2"], "write setting=value,value"),
        (["flexrl-image-heavy", "--sweep", "strategies=all,as-is"], "write strategies=[a,b] as a setting"),
        (["flexrl-image-heavy", "--sweep", "name=a,b"], "it only names the report"),
        (["flexrl-image-heavy", "--sweep", "max_degree=0,2"], "max_degree=0 must be at least 1"),
        (["flexrl-image-heavy", "--sweep", "degrees=1,2"], "unknown setting degrees"),
        (["flexrl-image-heavy", "--sweep", "p_max=1,2", "max_degree=2,4"], "swept twice"),
        (["flexrl-image-heavy", "strategies=[uniform-3]", "steps=1"], "heads do not split into 3"),
        (["flexrl-image-heavy", "--timeline", "/proc/no/trace.json"], "cannot be written"),
        ([], "SCENARIO"),
    ],
)
def test_bad_input_ends_in_one_line(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", *arguments]) == 2
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("- a\n- b\n", "holds list, not settings by name"),
        ("", "names no data and no model; write (data: a metadata table or a named data set; model: what is"),
        ("# nothing yet\n", "names no data and no model"),
        ("model: mimo-vl-7b\n", "names no data; write (data: a metadata table or a named data set)"),
        ("data:\nmodel: mimo-vl-7b\n", "names no data; write"),
        ("data: video-heavy\nranks: 8\n", "names no model; write (model: what is trained on it)"),
        (f"{NEEDED}ranks: 8\nseed: 1\nranks: 16\n", "ranks stands in line 3 and again in line 5; leave one"),
        (f"{NEEDED}rollout:\n  replies: 2\n  replies: 3\n", "replies stands in line 4 and again in line 5; leave one"),
        (f"{NEEDED}rollout.replies: 2\nrollout:\n  replies: 3\n", "rollout.replies is set 2 times, with dots and"),
    ],
)
def test_a_scenario_file_that_says_too_little_or_too_much(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    assert main(["simulate", str(file)]) == 2
    captured = capsys.readouterr()
    assert told in captured.err
    assert "bad.yaml" in captured.err
    assert captured.out == ""


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


def test_an_output_in_no_folder_is_refused_before_the_work_and_makes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "none" / "out.json"
    (tmp_path / "d.jsonl").write_text("")
    for arguments in (
        ["simulate", "flexrl-video-heavy", "--timeline", str(target)],
        ["scan", str(tmp_path / "d.jsonl"), "--model", "qwen2_vl", "--out", str(target)],
        ["fit", str(tmp_path / "d.jsonl"), "--out", str(target)],
        ["report", str(tmp_path / "d.jsonl"), "--out", str(target)],
    ):
        assert main(arguments) == 2
        assert f"{target}: cannot be written (there is no folder {target.parent}); make it first" in (
            capsys.readouterr().err
        )
        assert not target.parent.exists()


def test_what_a_command_reads_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, printed_before = flat_table(tmp_path / "t.parquet"), tmp_path / "printed.json"
    printed_before.write_text("{}")
    run = tmp_path / "run"
    run.mkdir()
    (run / "steps.jsonl").write_text("{}")
    for target, arguments in (
        (table, ["simulate", table, "model=qwen2.5-vl-7b", "--timeline", table]),
        (printed_before, ["report", str(printed_before), "--out", str(printed_before)]),
        (run / "steps.jsonl", ["report", str(run), "--out", str(run / "steps.jsonl")]),
        (run / "steps.jsonl", ["fit", str(run / "steps.jsonl"), "--out", str(run / "steps.jsonl")]),
    ):
        before = Path(target).read_bytes()
        assert main(arguments) == 2
        assert f"{target}: the command reads this file and would write over it" in capsys.readouterr().err
        assert Path(target).read_bytes() == before


def test_the_command_needs_no_torch() -> None:
    program = (
        "import sys\nfrom trimtab.cli.main import main\n"
        "code = main(['simulate', 'flexrl-video-heavy', 'steps=1', 'strategies=[all]', '--json'])\n"
        "assert code == 0\nassert not {'torch', 'ray', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
