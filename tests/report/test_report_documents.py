"""Output of other commands as a page: the commands' real output where they are quick, their documented form else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trimtab.cli.main import main
from trimtab.errors import MetadataError
from trimtab.report.build import build_report
from trimtab.report.sections import Command, Group, Section


def shown(tmp_path: Path, document: dict[str, Any]) -> Group:
    path = tmp_path / "printed.json"
    path.write_text(json.dumps(document))
    (group,) = build_report([path]).groups
    return group


def rows_of(section: Section) -> list[list[str]]:
    assert section.table is not None
    return [list(cells) for cells in section.table.rows]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = printed(
        capsys, "plan", "--demo", "--ranks", "4", "--batch-size", "16", "--strategy", "as-is", "adaptive"
    )
    document["strategies"].append({"name": "uniform-64", "infeasible": "64 does not divide 28 heads"})
    section, *_ = shown(tmp_path, document).sections
    as_is, adaptive = rows_of(section)
    assert as_is[:2] == ["as-is", f"{document['strategies'][0]['step_ratio']['mean']:.3f}"]
    assert adaptive[0] == "adaptive"
    assert "uniform-64 cannot be: 64 does not divide 28 heads" in section.text


def test_pack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "flat.csv"
    table.write_text("text_tokens,vision_tiles\n" + "".join(f"{10 * n},{n % 5}\n" for n in range(1, 41)))
    document = printed(capsys, "pack", str(table), "--tiles", "4", "--tokens", "900", "--dp", "2")
    packs, *others = shown(tmp_path, document).sections
    assert f"{document['packs']:,} packs of at most 4 tiles, 900 tokens from 40 samples" in packs.text[0]
    assert [cells[0] for cells in rows_of(packs)] == ["2 ranks, random batches of 4", "2 ranks, packs"]
    assert [section.title for section in others] == ["What a device runs at once", "Other figures"] or document[
        "oversized"
    ]


def test_scan(tmp_path: Path) -> None:
    document = {
        "out": "t.parquet", "samples": 3, "bad_samples": [{"where": "a.jsonl:2", "reason": "cut off"}],
        "samples_without_loss": 0, "images": 2, "videos": 1, "text_tokens": 12345, "visual_tokens": 9, "loss_tokens": 4,
        "longest_sample_tokens": 99, "seconds": 0.5, "geometry": {"patch": 14},
    }  # fmt: skip
    sizes, bad, rest = shown(tmp_path, document).sections
    assert ["text tokens", "12,345"] in rows_of(sizes)
    assert rows_of(bad) == [["a.jsonl:2", "cut off"]]
    assert rows_of(rest) == [["geometry.patch", "14"]]


def test_fit(tmp_path: Path) -> None:
    document = {
        "a": 0.5, "b": 2.0, "c": 0.0, "intercept_ms": 1.0, "terms": ["a", "b", "intercept"], "r_squared": 0.99,
        "standard_errors": {"a": 0.1, "b": 0.2, "intercept": 0.3}, "median_error": 0.02, "steps": 40, "skipped": 2,
        "observations": 80,
    }  # fmt: skip
    coefficients, _ = shown(tmp_path, document).sections
    assert rows_of(coefficients)[2] == ["c", "0", "held at zero", "ns per sequence"]
    assert coefficients.text == ["Median error 2.0%, R squared 0.990, 80 observations."]


SUMMARY = {
    "steps": 38,
    "balanced": {"step_ms": 600.0, "rank_error": None, "phases": {"vision": 450.0}},
    "baseline": {"step_ms": 660.0, "rank_error": 0.05, "phases": {"vision": 440.0}},
    "speedup": 1.1,
}


def test_the_demos_summary(tmp_path: Path) -> None:
    document = {**SUMMARY, "supervised": {**SUMMARY, "accuracy": {"with_pixels": 0.7}}, "reward": {"first10": 0.4}}
    pair, supervised, *rest = shown(tmp_path, document).sections
    assert pair.text == ["Medians over 38 steps; balanced is 1.10x as fast, paired by step."]
    assert rows_of(pair)[0] == ["step_ms", "660", "600"]
    assert ["vision, slowest rank, ms", "440", "450"] in rows_of(supervised)
    assert [cells[0] for section in rest for cells in rows_of(section)] == [
        "supervised.accuracy.with_pixels",
        "reward.first10",
    ]


def test_simulate(tmp_path: Path) -> None:
    strategy = {"step_ms": 900.0, "phases": {"data": 300.0, "update": 600.0}, "tokens_per_gpu_s": 1000.0}
    document: dict[str, Any] = {
        "simulated": True,
        "scenario": "flexrl-image-heavy",
        "strategies": [
            {
                "name": "verl-bucketing",
                **strategy,
                "attention_ratio": 6.7,
                "out_of_memory": [
                    {"where": "host", "index": 3, "phase": "data", "needed_gb": 9.2, "limit_gb": 8, "count": 2}
                ],
            },
            {
                "name": "all",
                **strategy,
                "step_ms": 450.0,
                "tokens_per_gpu_s": 2000.0,
                "attention_ratio": 1.0,
                "out_of_memory": [],
            },
        ],
    }
    (section,) = shown(tmp_path, document).sections
    bucketing, everything = rows_of(section)
    assert bucketing[1:3] == ["900", "2.00x"]
    assert (bucketing[-1], everything[-1]) == ("does not fit", "fits")
    assert "verl-bucketing does not fit: host 3 in data needs 9 GB of 8 (2 such)" in section.text
    assert all("simulated" in chart.title for chart in section.charts)


def test_steps_that_hold_different_tokens_are_shown_by_time_a_token(tmp_path: Path) -> None:
    def row(name: str, update: float, tokens: float) -> dict[str, Any]:
        figures = {"step_ms": update, "phases": {"update": update}, "tokens_per_step": tokens, "tokens_per_gpu_s": 1.0}
        return {"name": name, **figures, "attention_ratio": 1.0, "out_of_memory": []}

    def bars(rows: list[dict[str, Any]]) -> tuple[str, list[float]]:
        (section,) = shown(tmp_path, {"simulated": True, "scenario": "mine", "strategies": rows}).sections
        (chart,) = section.charts
        return chart.title, json.loads(chart.figure)["data"][0]["x"]

    assert bars([row("random", 900.0, 1000.0), row("isf", 1200.0, 2000.0)]) == (
        "simulated time of 1,000 tokens by phase",
        [900.0, 600.0],
    )
    assert bars([row("as-is", 900.0, 1000.0), row("all", 600.0, 1000.0)]) == (
        "simulated time of a step by phase",
        [900.0, 600.0],
    )


@pytest.mark.parametrize(
    "document",
    [
        {"simulated": True, "scenario": "mine", "strategies": []},
        {"ranks": 8, "batch_size": 16, "batches": 1, "strategies": []},
        {"name": "mine", "machine": "", "date": "", "cases": [], "checks": []},
    ],
)
def test_nothing_to_show_is_refused(document: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(MetadataError, match=r"printed no \w+, so there is nothing to show; run it again"):
        shown(tmp_path, document)


def test_a_sweep(tmp_path: Path) -> None:
    def outcome(step_ms: float, tokens: float, **settings: str) -> dict[str, Any]:
        figures = {"step_ms": step_ms, "tokens_per_gpu_s": tokens, "out_of_memory": []}
        phases = {"phases": {"update": step_ms}, "attention_ratio": 1.0}
        return {"name": "all", **figures, **phases, **({"settings": settings} if settings else {})}

    points = [outcome(900.0, 1000.0, max_degree="2"), outcome(800.0, 1100.0, max_degree="4")]
    points += [outcome(890.0, 1010.0, recompute="true"), outcome(700.0, 1300.0, recompute="false")]
    standings = ("as given", "recommended", "as given", "recommended")
    points = [{**point, "standing": standing} for point, standing in zip(points, standings, strict=True)]
    points.append(outcome(890.0, 1010.0, pack_tokens="1"))
    best = outcome(600.0, 1500.0, max_degree="4", recompute="false")
    document: dict[str, Any] = {
        "simulated": True,
        "scenario": "mine",
        "settings": {"max_degree": 2, "recompute": True, "loading": {"prefetch": 2}},
        "strategies": [outcome(890.0, 1010.0)],
        "sweep": points,
        "without_effect": ["pack_tokens"],
        "not_recommended": [],
        "recommended": {**best, "strategy": "all", "fits": True},
    }
    _, sweep, _ = shown(tmp_path, document).sections
    assert sweep.text[0] == (
        "Recommended: all with max_degree=4, recompute=false; 600 ms a step, 1,500 tokens / GPU s, fits in memory."
    )
    assert rows_of(sweep) == [
        ["as given", "890", "1,010", "fits"],
        ["max_degree=2 (as given)", "900", "1,000", "fits"],
        ["max_degree=4 (recommended)", "800", "1,100", "fits"],
        ["recompute=true (as given)", "890", "1,010", "fits"],
        ["recompute=false (recommended)", "700", "1,300", "fits"],
        ["these together (recommended)", "600", "1,500", "fits"],
    ]
    assert sweep.text[-1] == "No effect: pack_tokens."
    assert sweep.table is not None
    assert sweep.table.marked == {2, 4, 5}
    assert [chart.title for chart in sweep.charts] == ["simulated throughput", "simulated step time"]
    document["recommended"] = {**outcome(890.0, 1010.0), "settings": {}, "strategy": "all", "fits": True}
    document["sweep"] = [{**point, "standing": ""} for point in points] + [outcome(1.0, 2.0, seed="1")]
    document["not_recommended"] = ["seed"]
    document["recommended"] |= {"run": "trimtab train sft ...", "run_remark": "all is another's way; the nearest"}
    document["recommended"]["run_needs"] = "put in MODEL"
    document["recommended"]["doubts"] = ["One step does not tell."]
    _, sweep, _ = shown(tmp_path, document).sections
    assert [cells[0] for cells in rows_of(sweep) if cells[0].endswith("(recommended)")] == [
        "as given (recommended)",
    ]
    assert sweep.text[-1] == "Not recommended, as it is the job itself or assumed: seed."
    assert sweep.text[1:5] == [
        "One step does not tell.",
        "all is another's way; the nearest:",
        "trimtab train sft ...",
        "Before that: put in MODEL.",
    ]
    assert isinstance(sweep.text[3], Command)


def test_a_sweep_in_which_nothing_fits_recommends_nothing(tmp_path: Path) -> None:
    over = [{"where": "device", "index": 3, "phase": "update", "needed_gb": 160.0, "limit_gb": 72.0}]

    def outcome(standing: str, **settings: str) -> dict[str, Any]:
        figures = {"step_ms": 900.0, "tokens_per_gpu_s": 1000.0, "out_of_memory": over, "phases": {"update": 900.0}}
        return {"name": "all", **figures, "attention_ratio": 1.0, "settings": settings, "standing": standing}

    document = {
        "simulated": True,
        "scenario": "mine",
        "strategies": [outcome("")],
        "sweep": [outcome("as given", max_degree="2"), outcome("recommended", max_degree="4")],
        "recommended": {**outcome(""), "strategy": "all", "fits": False, "remedy": "take more ranks", "run": "trimtab"},
    }
    for settings in ({}, {"max_degree": "4"}, {"max_degree": "4", "recompute": "true"}):
        document["recommended"] = {**document["recommended"], "settings": settings}  # type: ignore[dict-item]
        strategies, sweep = shown(tmp_path, document).sections
        named = ", ".join(f"{name}={value}" for name, value in settings.items()) or "the settings given"
        assert sweep.text[:2] == [
            f"Nothing fits in memory; the nearest is all with {named}: device 3 in update needs 160 GB of 72.",
            "Take more ranks.",
        ]
        assert sweep.table is not None
        assert not sweep.table.marked
        assert not any("recommended" in str(each).lower() for each in (*sweep.text, *rows_of(sweep), *sweep.charts))
        assert not any(isinstance(text, Command) for text in sweep.text)
    (chart,) = strategies.charts
    bars = json.loads(chart.figure)["data"][0]
    assert bars["y"] == ["all<br>does not fit"]
    assert bars["marker"]["pattern"]["shape"] == ["/"]


def test_strategies_that_lack_the_same_memory_are_told_in_one_line(tmp_path: Path) -> None:
    def lacking(name: str, needed_gb: float, count: int, *others: dict[str, Any]) -> dict[str, Any]:
        device = {"where": "device", "index": 0, "phase": "update", "needed_gb": needed_gb, "limit_gb": 72.0}
        device |= {"count": count, "longest": name, "longest_tokens": int(needed_gb)}
        figures = {"step_ms": 9.0, "phases": {"update": 9.0}, "tokens_per_gpu_s": 1.0, "attention_ratio": 1.0}
        return {"name": name, **figures, "out_of_memory": [device, *others]}

    host = {"where": "host", "index": 3, "phase": "data", "needed_gb": 9.2, "limit_gb": 8, "count": 1}
    rows = [lacking("as-is", 90.0, 8), lacking("uniform-2", 80.0, 8, host), lacking("loongforge", 90.0, 8)]
    document = {"simulated": True, "scenario": "mine", "strategies": rows}
    (section,) = shown(tmp_path, document).sections
    assert section.text[1:3] == [
        "3 strategies do not fit the 72 GB of a device in update, on 8 devices each: as-is, loongforge 90 GB; "
        "uniform-2 80 GB. Longest there: sample 'as-is', 90 tokens.",
        "uniform-2 does not fit: host 3 in data needs 9 GB of 8",
    ]
    (chart,) = section.charts
    assert chart.title.endswith("by phase; none fits in memory")
    assert json.loads(chart.figure)["data"][0]["y"] == ["as-is", "uniform-2", "loongforge"]
    document["strategies"] = [*rows[:2], {**rows[2], "out_of_memory": []}, lacking("all", 75.0, 1)]
    (section,) = shown(tmp_path, document).sections
    assert "as-is 90 GB on 8 devices; uniform-2 80 GB on 8 devices; all 75 GB on 1 device." in section.text[1]
    (chart,) = section.charts
    assert json.loads(chart.figure)["data"][0]["y"][2:] == ["loongforge", "all<br>does not fit"]


def test_stages(tmp_path: Path) -> None:
    document = {
        "stages": 2, "bounds": [0, 24, 48], "recompute": [[0, 1, 5], []], "predicted_step_ms": 100.0, "bubble": 0.1,
        "peak_memory_gb": [70.0, 60.0],
        "baselines": {"uniform-layers": {"predicted_step_ms": 130.0, "peak_memory_gb": [79.0, 81.0], "fits": False}},
    }  # fmt: skip
    plans, stages = shown(tmp_path, document).sections
    assert rows_of(plans) == [["this plan", "100", "70.0", "yes"], ["uniform-layers", "130", "81.0", "no"]]
    assert rows_of(stages) == [["0", "0", "0 to 23", "3", "70.0"], ["1", "1", "24 to 47", "0", "60.0"]]


def test_a_benchmark(tmp_path: Path) -> None:
    document = {
        "name": "packing", "machine": "2 cores", "date": "2026-11-29", "commit": "abc", "quick": True,
        "cases": [{"case": "a", "variant": "isf", "unit": "ms", "median": 1.0, "min": 0.5, "max": 2.0, "n": 7}],
        "checks": [{"what": "fast", "limit": 1.0, "value": 2.0, "ok": False}],
    }  # fmt: skip
    cases, checks, rest = shown(tmp_path, document).sections
    assert rows_of(cases) == [["a", "isf", "1", "ms", "0.5", "2", "7"]]
    assert checks.text == ["1 of 1 failed."]
    assert ["quick", "yes"] in rows_of(rest)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"step_ms": None}, r"\(step_ms of strategy 'all' must be a number, found nothing \(null\)\); print it again"),
        ({"tokens_per_gpu_s": "fast"}, "tokens_per_gpu_s of strategy 'all' must be a number, found text"),
        ({"attention_ratio": True}, "attention_ratio of strategy 'all' must be a number, found true or false"),
    ],
)
def test_a_strategys_figure_that_is_no_number_is_named(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    row = {"name": "all", "step_ms": 9.0, "phases": {"update": 9.0}, "tokens_per_gpu_s": 1.0, "attention_ratio": 1.0}
    document = {"simulated": True, "scenario": "mine", "strategies": [{**row, "out_of_memory": [], **changed}]}
    with pytest.raises(MetadataError, match=told):
        shown(tmp_path, document)
    del row["attention_ratio"]
    document["strategies"] = [{**row, "out_of_memory": []}]
    with pytest.raises(MetadataError, match=r"\(strategy 'all' has no attention_ratio\)"):
        shown(tmp_path, document)


def test_a_swept_figure_that_is_no_number_is_named(tmp_path: Path) -> None:
    row = {"step_ms": 9.0, "phases": {"update": 9.0}, "tokens_per_gpu_s": 1.0, "attention_ratio": 1.0}
    row |= {"out_of_memory": []}
    best = {"strategy": "all", "settings": {}, "fits": True, **row}
    swept = [{"settings": {"max_degree": "4"}, "standing": "", **row, "step_ms": None}]
    document = {"simulated": True, "scenario": "mine", "strategies": [{"name": "all", **row}]}
    document |= {"sweep": swept, "recommended": best}
    with pytest.raises(MetadataError, match="step_ms of max_degree=4 must be a number, found nothing"):
        shown(tmp_path, document)
    document |= {"sweep": [{**swept[0], "step_ms": 9.0}], "recommended": {**best, "step_ms": None}}
    with pytest.raises(MetadataError, match="step_ms of what is recommended must be a number, found nothing"):
        shown(tmp_path, document)


def test_a_planned_figure_that_is_no_number_is_named(tmp_path: Path) -> None:
    document = {"ranks": 1, "batch_size": 1, "batches": 1, "model": "m", "sync": "step"}
    rows = [{"name": "as-is", "step_ratio": {"mean": None, "max": 1.0}}, {"name": "as-is", "step_ratio": None}]
    for row, told in zip(rows, ("mean of step_ratio of strategy 'as-is' must be", "must be an object"), strict=True):
        with pytest.raises(MetadataError, match=told):
            shown(tmp_path, {**document, "strategies": [row]})
