"""Ranks on a CPU: what a run gives, and that no failure outlasts its time limit."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from trimtab.errors import SettingsError
from trimtab.testing import RankLostError, RankPool, run_threads


def place(group: dist.ProcessGroup) -> tuple[int, int, int, int]:
    return group.rank(), group.size(), dist.get_rank(), dist.get_world_size()


def process_id(group: dist.ProcessGroup) -> int:
    return os.getpid()


def ragged_exchange(group: dist.ProcessGroup) -> list[int]:
    """Rank r sends r copies of its number to every rank."""
    size, rank = group.size(), group.rank()
    received = torch.empty(sum(range(size)), dtype=torch.int64)
    sent = torch.full((size * rank,), rank, dtype=torch.int64)
    dist.all_to_all_single(received, sent, list(range(size)), [rank] * size, group=group)
    return received.tolist()


def fsdp_loss(group: dist.ProcessGroup) -> float:
    mesh = init_device_mesh("cpu", (group.size(),))
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    return model(torch.ones(2, 8)).sum().item()


def sum_over_rows(group: dist.ProcessGroup) -> float:
    mesh = init_device_mesh("cpu", (2, group.size() // 2), mesh_dim_names=("row", "column"))
    value = torch.tensor(float(group.rank()))
    dist.all_reduce(value, group=mesh["column"].get_group())
    return value.item()


def fail_on(group: dist.ProcessGroup, rank: int) -> None:
    if group.rank() == rank:
        raise FileNotFoundError(f"no pixels on rank {rank}")
    dist.barrier(group)


def fail_together(group: dist.ProcessGroup) -> None:
    dist.barrier(group)
    raise KeyError(group.rank())


def sleep_on(group: dist.ProcessGroup, rank: int) -> None:
    if group.rank() == rank:
        time.sleep(1000)


def exit_on(group: dist.ProcessGroup, rank: int, code: int) -> None:
    if group.rank() == rank:
        os._exit(code)


def leave_a_mess(group: dist.ProcessGroup) -> None:
    torch.set_default_dtype(torch.float64)
    random.seed(group.rank())
    torch.manual_seed(group.rank())


def draw(group: dist.ProcessGroup) -> tuple[float, float, torch.dtype]:
    return random.random(), torch.rand(1).item(), torch.get_default_dtype()


def clock(group: dist.ProcessGroup) -> float:
    return time.monotonic()


def start_a_child(group: dist.ProcessGroup) -> int:
    return subprocess.run([sys.executable, "-c", "raise SystemExit(7)"], check=False).returncode


class UnpicklableError(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__("two arguments, one message")


def fail_oddly(group: dist.ProcessGroup) -> None:
    raise UnpicklableError(1, 2)


def exit_politely(group: dist.ProcessGroup) -> None:
    sys.exit(3)


def test_results_come_in_rank_order_from_a_world_of_the_asked_size(rank_pool: RankPool) -> None:
    for world_size in (2, 4, 1, 3):
        assert rank_pool.run(world_size, place) == [(rank, world_size) * 2 for rank in range(world_size)]


def test_processes_are_kept_between_runs_and_added_on_demand(rank_pool: RankPool) -> None:
    two = rank_pool.run(2, process_id)
    four = rank_pool.run(4, process_id)
    assert four[:2] == two
    assert len({*four, os.getpid()}) == 5


def test_tensors_move_between_ranks(rank_pool: RankPool) -> None:
    assert rank_pool.run(3, ragged_exchange) == [[1, 2, 2]] * 3


def test_fsdp_gives_the_same_loss_on_any_number_of_ranks_in_the_same_processes(rank_pool: RankPool) -> None:
    losses = [loss for world_size in (2, 1, 4, 2) for loss in rank_pool.run(world_size, fsdp_loss)]
    assert losses == pytest.approx([losses[0]] * len(losses))


def test_device_meshes_of_every_run_are_new(rank_pool: RankPool) -> None:
    assert rank_pool.run(4, sum_over_rows) == [1.0, 1.0, 5.0, 5.0]
    assert rank_pool.run(2, sum_over_rows) == [0.0, 1.0]
    assert rank_pool.run(4, sum_over_rows) == [1.0, 1.0, 5.0, 5.0]


def test_every_run_starts_from_the_same_random_state_and_dtype(rank_pool: RankPool) -> None:
    before = rank_pool.run(2, draw)
    rank_pool.run(2, leave_a_mess)
    assert rank_pool.run(2, draw) == before
    assert before[0] == before[1]
    assert rank_pool.run(2, draw, seed=1) != before


def test_a_rank_may_start_processes(rank_pool: RankPool) -> None:
    assert rank_pool.run(2, start_a_child) == [7, 7]


def test_delays_hold_one_rank_back(rank_pool: RankPool) -> None:
    on_time, late = rank_pool.run(2, clock, delays={1: 0.3})
    assert late - on_time >= 0.25


def test_an_exception_comes_back_with_its_rank_and_traceback(rank_pool: RankPool) -> None:
    with pytest.raises(FileNotFoundError, match="no pixels on rank 1") as caught:
        rank_pool.run(2, fail_on, 1)
    assert "on rank 1 of 2" in caught.value.__notes__[0]
    assert "in fail_on" in caught.value.__notes__[0]


def test_ranks_that_wait_for_a_failed_one_are_freed(rank_pool: RankPool) -> None:
    processes = rank_pool.run(3, process_id)
    start = time.monotonic()
    with pytest.raises(FileNotFoundError) as caught:
        rank_pool.run(3, fail_on, 0)
    assert time.monotonic() - start < 10
    assert {note.partition(":")[0] for note in caught.value.__notes__} == {f"on rank {rank} of 3" for rank in range(3)}
    assert rank_pool.run(3, process_id) == processes


def test_every_ranks_exception_is_returned_on_request(rank_pool: RankPool) -> None:
    errors = rank_pool.run(4, fail_together, return_exceptions=True)
    assert [type(error) for error in errors] == [KeyError] * 4
    assert [error.args for error in errors if isinstance(error, KeyError)] == [(0,), (1,), (2,), (3,)]


def test_a_hung_rank_ends_the_run_in_time_and_is_named_with_its_stack(rank_pool: RankPool) -> None:
    start = time.monotonic()
    with pytest.raises(RankLostError, match="of 2 ranks, rank 1 did not answer within") as caught:
        rank_pool.run(2, sleep_on, 1, timeout_s=1.0)
    assert time.monotonic() - start < 5
    assert caught.value.ranks == (1,)
    assert "in sleep_on" in "".join(caught.value.__notes__)
    assert rank_pool.run(2, place) == [(0, 2, 0, 2), (1, 2, 1, 2)]


def test_a_hung_rank_does_not_hide_the_error_of_another(rank_pool: RankPool) -> None:
    outcomes = rank_pool.run(2, sleep_on, 0, timeout_s=0.5, return_exceptions=True)
    assert isinstance(outcomes[0], RankLostError)
    assert outcomes[1] is None


def test_a_killed_rank_is_named_and_replaced(rank_pool: RankPool) -> None:
    first = rank_pool.run(2, process_id)
    with pytest.raises(RankLostError, match="rank 1 died of SIGKILL") as caught:
        rank_pool.run(2, sleep_on, 1, kills={1: 0.1})
    assert caught.value.ranks == (1,)
    second = rank_pool.run(2, process_id)
    assert second[0] == first[0]
    assert second[1] != first[1]


def test_a_rank_that_exits_is_named_with_its_exit_code(rank_pool: RankPool) -> None:
    with pytest.raises(RankLostError, match="rank 0 exited with code 5"):
        rank_pool.run(2, exit_on, 0, 5)


@pytest.mark.parametrize("fn", [fail_oddly, exit_politely])
def test_an_exception_that_cannot_travel_arrives_as_its_name_and_message(rank_pool: RankPool, fn: object) -> None:
    with pytest.raises(RuntimeError, match=r"UnpicklableError: two arguments, one message|SystemExit: 3"):
        rank_pool.run(1, fn)  # type: ignore[arg-type]


def test_bad_requests_are_refused_before_anything_runs(rank_pool: RankPool) -> None:
    with pytest.raises(SettingsError, match="top of a module"):
        rank_pool.run(2, lambda group: 1)
    with pytest.raises(SettingsError, match="kills names rank 2, but the world has ranks 0 to 1"):
        rank_pool.run(2, place, kills={2: 0.1})
    with pytest.raises(SettingsError, match="world_size=0"):
        rank_pool.run(0, place)


@pytest.mark.slow
def test_a_program_that_forgets_its_pool_still_ends() -> None:
    program = (
        "from trimtab.testing import RankPool\n"
        "import operator\n"
        "if __name__ == '__main__':\n"
        "    pool = RankPool(preload=())\n"
        "    print(pool.run(1, operator.methodcaller('size')))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[1]"


def test_threads_exchange_tensors() -> None:
    assert run_threads(8, ragged_exchange) == [[rank for rank in range(8) for _ in range(rank)]] * 8


def test_threads_raise_the_first_error_without_waiting_for_the_time_limit() -> None:
    start = time.monotonic()
    with pytest.raises(FileNotFoundError, match="no pixels on rank 2") as caught:
        run_threads(4, lambda group: fail_on(group, 2), timeout_s=30.0)
    assert time.monotonic() - start < 10
    assert caught.value.__notes__ == ["on rank 2 of 4"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rank-")]


def test_hung_threads_are_named_with_their_stacks() -> None:
    go_on = threading.Event()

    def wait_on_rank_1(group: dist.ProcessGroup) -> None:
        if group.rank() == 1:
            go_on.wait(60)

    with pytest.raises(RankLostError, match=r"of 3 ranks, rank 1 did not answer within 0\.5 s") as caught:
        run_threads(3, wait_on_rank_1, timeout_s=0.5)
    go_on.set()
    assert "in wait_on_rank_1" in caught.value.__notes__[0]
