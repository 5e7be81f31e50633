"""``trimtab simulate`` of bad input: one clear line, before long work."""

from pathlib import Path

import pytest
from simulate_command_cases import NEEDED, flat_table

from trimtab.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nothing"], "scenario 'nothing': neither a file nor bundled; there are: flexrl-image-heavy"),
        (
            ["flexrl-vidio-heavy"],
            "neither a file nor bundled; did you mean flexrl-video-heavy? there are: flexrl-image",
        ),
        (["flexrl-image-heavy", "--timelin=trace.json"], "unknown option --timelin; did you mean --timeline?"),
        (["flexrl-image-heavy", "strategies=[unform-2]"], "'unform-2' is unknown; did you mean uniform-2? choose of"),
        (["flexrl-image-heavy", "seed=1:5"], "seed=1:5 must be a whole number"),
        (["flexrl-image-heavy", "shards=1:5"], "shards=1:5 must be a whole number, or null"),
        (["flexrl-image-heavy", "--sweep", "seed=1:5"], "--sweep seed=1:5: write every value, seed=1,2,3,4,5"),
        (["flexrl-image-heavy", "--sweep", "seed=1..9:4"], "write every value, seed=1,5,9"),
        (["flexrl-image-heavy", "--sweep", "seed=[1-100]"], "write every value, seed=1,2,3,4,5,6,7,8,…"),
        (["flexrl-image-heavy", "--sweep", "seed=[1,2]"], "write every value without brackets, seed=1,2"),
        (["flexrl-image-heavy", "--sweep", "seed=range(1,5)"], "write every value without brackets, seed=1,2,4"),
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
        (["flexrl-video-heavy", "strategies=[all]", "steps=1", "--sweep", "max_degree=0,-1"], "0 must be at least 1"),
        (["flexrl-image-heavy", "--sweep", "max_degree=2,many"], "max_degree=many must be a whole number"),
        (["flexrl-image-heavy", "--sweep", "task=sft,dpo"], "task=dpo must be one of sft, grpo"),
        (["flexrl-image-heavy", "--sweep", "model=mimo-vl-7b,gpt"], "model 'gpt' is not bundled"),
        (["flexrl-image-heavy", "--sweep", "cluster=h800,tpu"], "cluster 'tpu'"),
        (["flexrl-image-heavy", "--sweep", "data=geo3k,mmlu"], "'mmlu' is no data set"),
        (["flexrl-image-heavy", "--sweep", "data=geo3k,missing.csv"], "missing.csv"),
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
