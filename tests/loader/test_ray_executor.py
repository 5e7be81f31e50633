"""Decoding on Ray: the plain pipeline's tensors, whole and sliced, whatever dies; nothing left in the user's home."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from trimtab.errors import LoaderError

pytest.importorskip("ray", reason="make test-slow installs Ray")

FAST_DEATHS = {
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}


def run_scenario(name: str, folder: Path, **environment: str) -> None:
    home = folder / "home"
    home.mkdir()
    media = folder / "media"
    media.mkdir()
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.loader.ray_scenarios", name, str(media)],
        capture_output=True,
        text=True,
        timeout=420,
        check=False,
        env={**kept, "HOME": str(home), **environment},
    )
    assert done.stdout.endswith("done\n"), done.stderr[-4000:]
    assert list(home.iterdir()) == []
    assert not [pid for pid in Path("/proc").glob("[0-9]*") if _home_of(pid) == str(home)], "processes are left behind"


def _home_of(process: Path) -> str | None:
    try:
        variables = (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((value[5:].decode() for value in variables if value.startswith(b"HOME=")), None)


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_patches_equal_the_plain_pipelines_and_home_stays_clean(tmp_path: Path) -> None:
    run_scenario("equal", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_nobody_without_the_token_comes_in(tmp_path: Path) -> None:
    run_scenario("guarded", tmp_path)


@pytest.mark.slow  # quick, but Ray is only there with the slow tests
@pytest.mark.parametrize(("failures", "starts"), [(0, True), (2, True), (3, False)])
def test_a_start_that_fails_is_tried_three_times(failures: int, starts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from trimtab.loader.executors import ray_cluster

    ends = [RuntimeError("some of the raylet failed to startup")] * failures + [None]
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "")  # so that what the start sets is undone
    with (
        mock.patch.object(ray_cluster, "ray") as ray,
        mock.patch.object(ray_cluster, "_raylet"),
        mock.patch.object(ray_cluster.time, "sleep") as sleep,
    ):
        ray.is_initialized.return_value = False
        ray.init.side_effect = ends
        if starts:
            assert ray_cluster.start_embedded(workers=1, budget_bytes=0).token
        else:
            with pytest.raises(LoaderError, match="Ray on this machine: some of the raylet failed"):
                ray_cluster.start_embedded(workers=1, budget_bytes=0)
        assert ray.shutdown.call_count == sleep.call_count == min(failures, 2)


@pytest.mark.slow
@pytest.mark.timeout(450)
@pytest.mark.parametrize("name", ["own_loop", "killed", "stopped", "full"])
def test_every_request_is_answered_when(tmp_path: Path, name: str) -> None:
    run_scenario(name, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_every_request_is_answered_when_a_node_is_lost(tmp_path: Path) -> None:
    run_scenario("node_lost", tmp_path, **FAST_DEATHS)
