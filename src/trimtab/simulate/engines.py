"""What one inference engine takes: prefill of its prompts, then replies token by token until each ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.cost.architecture import LanguageArchitecture
from trimtab.cost.cluster import Cluster
from trimtab.cost.communication import all_reduce_seconds
from trimtab.cost.flops import language_params
from trimtab.errors import SettingsError
from trimtab.simulate.scenario import RolloutSettings

_BF16 = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A model shared by some devices for generation.

    Attributes:
        devices: that share it (tensor parallelism).
        weight_bytes: read for every token step, all devices together.
        cache_bytes: keys and values of one token, all devices together.
        memory: bytes the engine may fill, all devices together.
        cache_room: of them for keys and values; not positive where not even the weights fit.
        bandwidth: bytes a second all devices read together.
        step_seconds: of a token step beside reading: two all-reduces a layer.
    """

    devices: int
    weight_bytes: float
    cache_bytes: float
    memory: float
    cache_room: float
    bandwidth: float
    step_seconds: float

    @staticmethod
    def of(language: LanguageArchitecture, parameters: int, cluster: Cluster, rollout: RolloutSettings) -> Engine:
        """The engine of a model on ``rollout.tensor_parallel`` devices of a cluster.

        Every token step reads the weights once (all experts of a mixture, as batches visit most of them) and the keys
        and values of every running reply.

        Raises:
            SettingsError: the cluster does not say how fast its memory is.
        """
        if cluster.memory_bandwidth is None:
            raise SettingsError(f"cluster {cluster.name!r}: memory_bandwidth is needed to predict rollout; add it")
        devices = rollout.tensor_parallel
        reduced = all_reduce_seconds(cluster, devices, language.hidden * _BF16)
        weights = (language_params(language, active=False) + language.hidden * language.vocab) * float(_BF16)
        memory = devices * cluster.device_memory * rollout.memory_share
        return Engine(
            devices=devices,
            weight_bytes=weights,
            cache_bytes=2.0 * language.kv_heads * language.head_dim * _BF16 * language.layers,
            memory=memory,
            cache_room=memory - parameters * float(_BF16),
            bandwidth=devices * cluster.memory_bandwidth * rollout.bandwidth_share,
            step_seconds=2 * language.layers * reduced,
        )

    def generation_seconds(self, prompt_tokens: NDArray[np.int64], replies: NDArray[np.int64]) -> float:
        """Time to generate all replies.

        A prompt's keys and values are kept once for all its replies, and read for each. Replies run together as far as
        the cache has room, then the next wave; the last wave's longest reply ends it.

        Args:
            prompt_tokens: int64 [P].
            replies: int64 [P, n], their lengths.
        """
        seconds, start = 0.0, 0
        held = np.cumsum((prompt_tokens + replies.sum(axis=1)) * self.cache_bytes)
        while start < len(prompt_tokens):
            before = held[start - 1] if start else 0.0
            stop = max(start + 1, int(np.searchsorted(held, before + max(0.0, self.cache_room), side="right")))
            seconds += self._wave_seconds(prompt_tokens[start:stop], replies[start:stop])
            start = stop
        return seconds

    def _wave_seconds(self, prompt_tokens: NDArray[np.int64], replies: NDArray[np.int64]) -> float:
        """Time until the last reply ends, all starting together."""
        length = replies.reshape(-1).astype(np.float64)
        prompt = np.repeat(prompt_tokens, replies.shape[1]).astype(np.float64)
        cached = float((prompt * length + length * (length + 1) / 2).sum()) * self.cache_bytes
        longest = float(length.max(initial=0))
        return longest * self.step_seconds + (longest * self.weight_bytes + cached) / self.bandwidth

    def largest_cache(self, prompt_tokens: NDArray[np.int64], replies: NDArray[np.int64]) -> float:
        """Bytes of the keys and values of the prompt that needs most; more than the room means it cannot run."""
        return float(((prompt_tokens + replies.sum(axis=1)) * self.cache_bytes).max(initial=0))

    def reply_ns(self, prompt_tokens: NDArray[np.int64], replies: int, mean_tokens: float) -> NDArray[np.int64]:
        """int64 [P], what the replies to a prompt are expected to add to its engine's time."""
        reads = replies * mean_tokens * (prompt_tokens + mean_tokens / 2) * self.cache_bytes
        return np.asarray(np.rint(reads / self.bandwidth * 1e9), dtype=np.int64)
