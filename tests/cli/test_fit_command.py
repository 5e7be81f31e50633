"""``trimtab fit``: coefficients from recorded steps, or one clear line."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.cli import fit
from trimtab.cost.rank_work import RankWork
from trimtab.errors import MetadataError, SettingsError, TrimtabError


def recorded_run(folder: Path, steps: int = 80, *, fixed: bool = False) -> Path:
    """Two ranks whose language phase takes 2 ns l^2 + 30 us l + 5 ms a sequence + 40 ms; the first steps are cold."""
    rng = np.random.default_rng(0)
    lines = []
    for step in range(steps):
        count = int(rng.integers(2, 20))
        tokens = np.full(count, 500) if fixed else np.exp(rng.normal(rng.uniform(5, 9), 0.7, count)).astype(np.int64)
        rank = np.arange(count) % 2
        work = RankWork.of(tokens, rank, 2)
        each = (2 * work.squared_tokens + 30_000 * work.tokens + 5e6 * work.samples) / 1e6 + 40
        slowest = float(each.max()) * (20 if step < 2 else 1)
        lines.append(
            {
                "step": step,
                "rank_work": work.to_json(),
                "phases_ms": {"language": [slowest, slowest]},
                "rank_ms": each.tolist(),
                "predicted_rank_ms": (each * 7).tolist(),
            }
        )
    folder.mkdir(exist_ok=True)
    (folder / "steps.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return folder


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    fit.add_arguments(parser)
    return fit.run(parser.parse_args([str(argument) for argument in arguments]))


def test_recorded_steps_give_their_coefficients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(recorded_run(tmp_path), "--out", tmp_path / "cost.json", "--json") == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert printed["a"] == pytest.approx(2, rel=0.01)
    assert printed["b"] == pytest.approx(30_000, rel=0.02)
    assert printed["c"] == pytest.approx(5e6, rel=0.02)
    assert printed["intercept_ms"] == pytest.approx(40, rel=0.02)
    assert (printed["steps"], printed["skipped"]) == (78, 2)
    assert printed["rank_error"] == pytest.approx(0, abs=1e-9)
    assert json.loads((tmp_path / "cost.json").read_text()) == printed


def test_a_folder_of_variants_means_all_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded_run(tmp_path / "balanced", 40)
    recorded_run(tmp_path / "baseline", 50)
    assert run(tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 86


def test_several_runs_are_fitted_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(recorded_run(tmp_path / "one", 40), recorded_run(tmp_path / "two", 50) / "steps.jsonl", "--json") == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 86


def test_computing_time_of_every_rank_is_preferred(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wall times of these steps are nonsense; computing times are what was planted, one observation a rank."""
    recorded_run(tmp_path, 30)
    rows = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    for row in rows:
        row |= {"compute_ms": {"language": row["rank_ms"]}, "phases_ms": {"language": [1.0, 1.0]}}
    (tmp_path / "steps.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    assert run(tmp_path, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["b"] == pytest.approx(30_000, rel=0.02)
    assert (printed["steps"], printed["observations"]) == (28, 56)


def test_a_sweep_fits_packs_timed_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model runs; its times are replaced, since those of a busy machine tell nothing."""
    from tests.training.small_run import write_model

    from trimtab.training import sweep

    measure, ran = sweep._forward_backward_ms, []

    def planted(model: Any, lengths: Any, device: Any, dtype: str) -> float:
        if not ran:
            ran.append(measure(model, lengths, device, dtype))
        return float(sum(2e-6 * length**2 + 0.03 * length + 5 for length in lengths) + 40)

    monkeypatch.setattr(sweep, "_forward_backward_ms", planted)
    write_model(tmp_path / "model", "qwen2_5_vl")
    assert (
        run("--sweep", "--model", tmp_path / "model", "--max-tokens", "512", "--terms", "b,c,intercept", "--json") == 0
    )
    printed = json.loads(capsys.readouterr().out)
    assert printed["b"] == pytest.approx(30_000, rel=0.05)
    assert printed["c"] == pytest.approx(5e6, rel=0.05)
    assert printed["steps"] == 32
    assert ran[0] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "either recorded STEPS or --sweep"),
        (("run", "--sweep"), "either recorded STEPS or --sweep"),
        (("--sweep",), "--sweep needs --model"),
        (("run", "--model", "m"), "--model is for --sweep"),
        (("--sweep", "--model", "nowhere"), "nowhere: no such folder"),
        (("--sweep", "--model", ".", "--max-tokens", "10"), "needs at least 128 tokens, found 10"),
    ],
)
def test_a_sweep_with_bad_arguments_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(TrimtabError, match=message):
        run(*arguments)


def test_text_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(recorded_run(tmp_path), "--terms", "a,b,intercept") == 0
    shown = capsys.readouterr().out
    assert "ns per squared token" in shown
    assert "held at zero" in shown


def test_lengths_that_never_vary_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot identify term"):
        run(recorded_run(tmp_path, fixed=True))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"steps.jsonl, line 1: not JSON"),
        ("[]", r"line 1: holds no JSON object"),
        ("{}", r"line 1: holds no rank_work"),
        ('{"rank_work": {}, "phases_ms": {}}', r"phases_ms.language must list a time"),
        ('{"rank_work": {"tokens": [1]}, "phases_ms": {"language": [1.0]}}', r"line 1: rank work: squared_tokens"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "steps.jsonl").write_text(line + "\n")
    with pytest.raises(MetadataError, match=message):
        run(tmp_path, "--skip-first", "0")


def test_a_missing_file_and_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(MetadataError, match="no such file"):
        run(tmp_path)
    with pytest.raises(SettingsError, match="--skip-first -1"):
        run(recorded_run(tmp_path), "--skip-first", "-1")
    with pytest.raises(SettingsError, match="a, b, c, intercept"):
        run(recorded_run(tmp_path), "--terms", "quadratic")
