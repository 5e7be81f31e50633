"""``trimtab stages``: its figures, and bad input in one clear line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trimtab.cli.main import main

MODEL = ("--model", "internvl-6b-20b")
JOB = (*MODEL, "--stages", "4", "--microbatches", "32", "--memory-gb", "80")


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["stages", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_holds_the_plan_and_its_baselines(capsys: pytest.CaptureFixture[str]) -> None:
    result = planned(capsys, *JOB)
    assert result.keys() == {
        "stages",
        "bounds",
        "recompute",
        "predicted_step_ms",
        "bubble",
        "peak_memory_gb",
        "baselines",
    }
    assert result["stages"] == 4
    bounds = result["bounds"]
    assert bounds[0] == 0
    assert bounds == sorted(set(bounds))
    assert len(bounds) == 5
    for rows, start, stop in zip(result["recompute"], bounds, bounds[1:], strict=False):
        assert all(start <= row < stop for row in rows)
    assert 0 < result["bubble"] < 0.2
    assert max(result["peak_memory_gb"]) <= 80
    assert result["baselines"].keys() == {"uniform-layers", "uniform-parameters", "published-search"}
    for baseline in result["baselines"].values():
        assert baseline.keys() == {"predicted_step_ms", "peak_memory_gb", "fits"}
        assert baseline["fits"] == (max(baseline["peak_memory_gb"]) <= 80)
        assert result["predicted_step_ms"] <= baseline["predicted_step_ms"]


def test_defaults_are_the_documented_ones(capsys: pytest.CaptureFixture[str]) -> None:
    spelled = (
        "--tiles",
        "18",
        "--tokens",
        "6016",
        "--optimizer-shards",
        "8",
        "--cluster",
        "a100",
        "--schedule",
        "1f1b",
    )
    assert planned(capsys, *JOB) == planned(capsys, *JOB, *spelled)


def test_more_memory_and_more_shards_never_slow_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    tight, loose, sharded = (
        planned(capsys, *JOB[:-1], gigabytes, "--optimizer-shards", shards)["predicted_step_ms"]
        for gigabytes, shards in (("60", "8"), ("80", "8"), ("60", "64"))
    )
    assert loose <= tight
    assert sharded <= tight


def test_the_table_explains_every_method(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stages", *MODEL, "--stages", "2", "--microbatches", "8", "--memory-gb", "80"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("computes longest") == 4
    assert "proven least" in printed
    assert "does not fit" in printed


def test_interleaved(capsys: pytest.CaptureFixture[str]) -> None:
    model = ("--model", "qwen2.5-vl-7b", "--tiles", "4", "--tokens", "2048")
    result = planned(
        capsys, *model, "--stages", "2", "--microbatches", "4", "--memory-gb", "80", "--schedule", "interleaved"
    )
    assert len(result["bounds"]) == 5
    assert len(result["recompute"]) == 4
    assert len(result["peak_memory_gb"]) == 2


def test_a_text_model_needs_no_tiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    sizes = {"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 128}
    config.write_text(json.dumps({"model_type": "qwen2", "vocab_size": 100, **sizes}))
    job = ("--model", str(config), "--stages", "2", "--microbatches", "4", "--memory-gb", "1", "--tokens", "128")
    assert len(planned(capsys, *job)["bounds"]) == 3
    assert main(["stages", *job, "--tiles", "1"]) == 2
    assert "has no vision encoder, but the micro-batch has images; leave them out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"--stages": "98"}, "98 stages need at least 98 layers, the model has 97; use at most 97 stages"),
        ({"--stages": "0"}, "--stages 0 must be at least 1"),
        ({"--stages": "1000000"}, "--stages 1000000 must be at most 1024"),
        ({"--stages": "two"}, "invalid int value: 'two'"),
        ({"--microbatches": "0"}, "--microbatches 0 must be at least 1"),
        ({"--microbatches": "999999999"}, "--microbatches 999999999 must be at most 4096"),
        ({"--memory-gb": "-1"}, "--memory-gb -1 must be a positive number of gigabytes"),
        ({"--memory-gb": "nan"}, "--memory-gb nan must be a positive number of gigabytes"),
        ({"--memory-gb": "inf"}, "--memory-gb inf must be a positive number of gigabytes"),
        ({"--memory-gb": "20"}, "no partition into 4 stages fits 20 GB"),
        ({"--memory-gb": "1"}, "fits no rank: alone, and recomputed, it takes"),
        ({"--memory-gb": "1e-6"}, "it takes 3.49 GB, 2.15 GB of them state, and the cap is 1e-06 GB"),
        ({"--tiles": "-1"}, "--tiles -1 must be at least 0"),
        ({"--tokens": "100"}, "18 images are 4608 tokens of the language model, more than its 100 tokens"),
        ({"--optimizer-shards": "0"}, "--optimizer-shards 0 must be at least 1"),
        ({"--cluster": "z9"}, "cluster 'z9': neither a file nor a bundled cluster"),
        ({"--model": "gpt-9"}, "model 'gpt-9' is not bundled"),
        ({"--chunks": "2"}, "--chunks is for --schedule interleaved"),
        ({"--schedule": "interleaved", "--chunks": "1"}, "at least 2 chunks"),
        ({"--schedule": "interleaved", "--microbatches": "31"}, "found 31; use 28"),
        ({"--schedule": "gpipe"}, "invalid choice: 'gpipe'"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    changed: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**dict(zip(JOB[::2], JOB[1::2], strict=True)), **changed}
    assert main(["stages", *(word for pair in options.items() for word in pair)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.strip().count("\n") == 0
    assert message in printed.err


def test_the_smallest_cap_it_names_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stages", *JOB[:-1], "20"]) == 2
    needed = float(capsys.readouterr().err.split("the smallest cap that fits is ")[1].split(" GB")[0])
    assert max(planned(capsys, *JOB[:-1], str(needed))["peak_memory_gb"]) <= needed
    assert main(["stages", *JOB[:-1], str(needed - 0.01)]) == 2
