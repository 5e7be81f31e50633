"""``trimtab simulate --sweep``: what is tried of each setting, and what is recommended."""

import json
import re
import shlex
from pathlib import Path

import pytest
from simulate_command_cases import SMALL, flat_table, printed

from trimtab.cli import simulate
from trimtab.cli.main import main
from trimtab.errors import SettingsError
from trimtab.report.build import build_report


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
    assert recommended["remedy"].startswith("the model's state alone takes ")
    assert recommended["remedy"] in said
    assert not any(point["standing"] == "recommended" for point in result["sweep"])


@pytest.mark.slow
def test_no_gain_over_itself_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["flexrl-video-heavy", *SMALL, "strategies=[all]", "--sweep"]
    assert simulate.run([*words, "seed=0,1"]) == 0
    said = capsys.readouterr().out
    assert "recommended (simulated): strategy all, the settings as given" in said
    assert "times the throughput" not in said


@pytest.mark.slow
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


@pytest.mark.slow
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
    assert "acts as" not in captured.err  # beside progress, where it takes long
    (line,) = [line for line in captured.out.splitlines() if line.startswith("no effect on all: ")]
    assert "pack_tokens (4096, 16384, 65536)" in line
    assert "few or none are shared here" in line


@pytest.mark.slow
def test_degrees_that_heads_do_not_allow_are_told_as_what_they_act_as(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["flexrl-video-heavy", *SMALL, "strategies=[all]", "--json", "--sweep", "max_degree=0,8,3,2,1000"]
    assert simulate.run(words) == 0
    captured = capsys.readouterr()
    degrees = [point["settings"]["max_degree"] for point in json.loads(captured.out)["sweep"]]
    assert degrees == ["0", "8", "2"]
    told = "max_degree=3 acts as 2, max_degree=1000 acts as 8: the next lower that these heads and ranks allow\n"
    assert told in captured.err  # beside progress, where it takes long


@pytest.mark.slow
def test_a_setting_behind_the_sweep_is_a_setting(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--sweep", "max_degree=1,8", "strategies=[all,loader-only]", *SMALL]
    result = printed(capsys, "flexrl-video-heavy", *words)
    assert [row["name"] for row in result["strategies"]] == ["all", "loader-only"]
    assert [point["settings"] for point in result["sweep"]] == [{"max_degree": "1"}, {"max_degree": "8"}]


@pytest.mark.slow
def test_the_scenario_may_stand_behind_the_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    result = printed(capsys, "--sweep", "max_degree=1,8", "flexrl-video-heavy", *SMALL, "strategies=[all]")
    assert result["scenario"] == "flexrl-video-heavy"
    assert len(result["sweep"]) == 2


@pytest.mark.slow
def test_a_sweep_in_one_word_with_a_trace_behind_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["flexrl-video-heavy", *SMALL, "strategies=[all]", "--sweep=max_degree=1,8", "--timeline"]
    result = printed(capsys, *words, str(tmp_path / "trace.json"))
    assert len(result["sweep"]) == 2
    assert (tmp_path / "trace.json").exists()


def test_values_that_cannot_be_are_told_and_the_others_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "flexrl-video-heavy",
        *SMALL,
        "strategies=[all]",
        "--sweep",
        "tensor_parallel=3,2",
        "pack_length=4096,8192",
    ]
    result = printed(capsys, *words)
    assert [(point["settings"], point["standing"], point.get("error")) for point in result["sweep"]] == [
        ({"tensor_parallel": "3"}, "", "ranks=8 is not a multiple of tensor_parallel=3"),
        ({"tensor_parallel": "2"}, "", None),
        ({"pack_length": "4096"}, "", "pack_length=4096 needs task=sft: replies are not packed beforehand"),
        ({"pack_length": "8192"}, "", "pack_length=8192 needs task=sft: replies are not packed beforehand"),
    ]
    assert result["without_effect"] == []
    assert result["recommended"]["fits"] is True
    document = tmp_path / "sweep.json"
    document.write_text(json.dumps(result))
    section = build_report([document]).document_groups[0].sections[1]
    assert section.table is not None
    reason = "cannot be: ranks=8 is not a multiple of tensor_parallel=3"
    assert section.table.rows[1] == ["tensor_parallel=3", "–", "–", reason]
    assert not any("tensor_parallel=3" in chart.figure for chart in section.charts)
    assert simulate.run(words) == 0
    assert reason in " ".join(capsys.readouterr().out.split())


def test_packs_below_the_longest_sample_end_no_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [flat_table(tmp_path / "t.parquet"), "model=internvl-6b-20b", "ranks=8", "batch_size=8", "steps=1"]
    words += ["pipeline.stages=4", "pipeline.pack_tokens=8192", "strategies=[isf]", "--sweep"]
    short, long = printed(capsys, *words, "pipeline.pack_tokens=1024,8192")["sweep"]
    assert short["error"].startswith("pipeline.pack_tokens=1024 is less than the ")
    assert "set pipeline.pack_tokens" not in short["error"]
    assert long["step_ms"] > 0


def test_a_command_that_would_not_fit_in_memory_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "long.csv"
    table.write_text("\n".join(["text_tokens,vision_tiles", "200000,0", *["1000,0"] * 63]))
    words = [str(table), "model=mimo-vl-7b", "ranks=8", "batch_size=8", "steps=1", "strategies=[loongforge]"]
    best = printed(capsys, *words, "tensor_parallel=4", "--sweep", "recompute=true,false")["recommended"]
    assert best["fits"] is True
    assert "trimtab's nearest (which, simulated, does not fit in memory: device " in best["run_remark"]
    assert best["run_remark"].endswith("; with balance.max_degree=8 it does)")


def test_where_the_command_runs_something_else_its_own_step_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [flat_table(tmp_path / "t.parquet"), "model=mimo-vl-7b", "ranks=8", "batch_size=8", "steps=1"]
    words += ["strategies=[all]", "--sweep", "recompute=true,false"]
    plain = printed(capsys, *words)["recommended"]
    assert (plain["run_remark"], "run_step_ms" in plain) == ("run", False)
    split = printed(capsys, *words, "tensor_parallel=8")["recommended"]
    assert split["run_step_ms"] == plain["step_ms"]
    assert split["run"] == plain["run"]
    assert split["run_remark"].endswith("; the command is the faster)")
    assert simulate.run([*words, "tensor_parallel=8"]) == 0
    assert split["run_remark"] in capsys.readouterr().out


def test_a_single_value_behind_the_sweep_is_told_to_be_a_setting(capsys: pytest.CaptureFixture[str]) -> None:
    said = "recompute=true has one value: taken as a setting, and the default settings are swept\n"
    for behind, told in (([], said), (["--seed", "1"], said), (["max_degree=1,8"], "")):
        with pytest.raises(SettingsError, match="'nowhere'"):
            simulate.run(["nowhere", "--sweep", "recompute=true", *behind])
        assert capsys.readouterr().err == told
