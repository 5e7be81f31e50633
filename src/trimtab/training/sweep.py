"""Times a model's language part on packs of made-up sequences, on this machine alone, without a dataset."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import torch
from rich.progress import Progress
from torch import nn

from trimtab.cost.fit import MeasuredStep
from trimtab.cost.sweep import measure_sweep, sweep_batches
from trimtab.errors import SettingsError, UnknownModelError
from trimtab.runtime.attention import use_packed_attention
from trimtab.runtime.vlm import check_hooks
from trimtab.training.model import load_model

_BATCHES = 32
_REPEATS = 3
_WARM_UP = 2


def sweep_model(
    folder: Path, *, max_tokens: int, dtype: Literal["float32", "bfloat16"], progress: Progress
) -> list[MeasuredStep]:
    """Run forward and backward of packs from one long sequence to many short ones; the least of three times each.

    On one thread of a CPU the time is the processor's, so that other programs count little; else wall time.

    Args:
        folder: a Transformers vision-language model; without weight files it gets random ones.
        max_tokens: tokens of the fullest pack.
        dtype: computed in, weights stay in float32.
        progress: shown while it runs.

    Raises:
        SettingsError: too few tokens to vary lengths, or the device's memory does not hold the packs.
        UnknownModelError: the folder is no vision-language model this library runs.
    """
    batches = sweep_batches(max_tokens, _BATCHES)
    if not folder.is_dir():
        raise UnknownModelError(f"--model {folder}: no such folder; give that of a Transformers vision-language model")
    task = progress.add_task("building the model", total=len(batches) + _WARM_UP)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model = load_model(folder, torch.float32, seed=0)
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        raise UnknownModelError(f"--model {folder}: cannot be built ({error}); check its config.json") from error
    check_hooks(model)
    use_packed_attention(model)
    model.to(device)
    progress.update(task, description=f"timing packs of up to {max_tokens:,} tokens on {device.type}")

    def step_ms(lengths: Sequence[int]) -> float:
        took = min(_forward_backward_ms(model, lengths, device, dtype) for _ in range(_REPEATS))
        progress.advance(task)
        return took

    return _measure(batches, step_ms)


def _measure(batches: Sequence[Sequence[int]], step_ms: Callable[[Sequence[int]], float]) -> list[MeasuredStep]:
    try:
        return measure_sweep(batches, step_ms, warm_up=_WARM_UP)
    except torch.OutOfMemoryError as error:
        largest = max(sum(lengths) for lengths in batches)
        raise SettingsError(
            f"the device's memory does not hold packs of {largest:,} tokens; lower --max-tokens"
        ) from error


def _forward_backward_ms(model: nn.Module, lengths: Sequence[int], device: torch.device, dtype: str) -> float:
    positions = torch.cat([torch.arange(length, device=device) for length in lengths])
    tokens = torch.zeros(1, len(positions), dtype=torch.int64, device=device)
    clock = time.thread_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    _wait(device)
    began = clock()
    with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
        logits = model(
            input_ids=tokens,
            position_ids=positions.expand(3, 1, -1),
            packed_lengths=tuple(lengths),
            use_cache=False,
        ).logits
    logits.float().logsumexp(dim=-1).mean().backward()
    _wait(device)
    took = (clock() - began) * 1e3
    model.zero_grad(set_to_none=True)
    return took


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
