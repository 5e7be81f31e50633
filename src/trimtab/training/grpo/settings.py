"""Settings of a GRPO run: those of supervised training, and what reinforcement adds."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from trimtab.errors import SettingsError
from trimtab.schema.setting_checks import check_least
from trimtab.training.settings import SFTSettings

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]

_SPACE = re.compile(r"\s")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """An inference server that speaks the OpenAI chat protocol (vLLM, SGLang).

    Attributes:
        url: up to and including the version, e.g. ``http://127.0.0.1:8000/v1``.
        model: name the server knows the model by.
        api_key: sent as a bearer token where the server asks for one.
        weights: folder, seen by trainer and server alike, that new weights are written to before each rollout; none
            leaves the server's weights as they are.
        reload_path: path on the server that makes it read them; posted ``{"model_path": <weights>}``, as SGLang's.
        timeout_s: longest time one prompt's replies, or the reload, may take.
        retries: further attempts after a refused or broken connection.
        requests_at_once: requests each rank keeps in flight.
    """

    url: str = "http://127.0.0.1:8000/v1"
    model: str = "default"
    api_key: str | None = None
    weights: str | None = None
    reload_path: str = "/update_weights_from_disk"
    timeout_s: float = 120.0
    retries: int = 2
    requests_at_once: int = 8

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: the address is none, or a number is out of range.
        """
        if not _is_address(self.url):
            raise SettingsError(f"rollout.server.url={self.url!r} must be an address as http://127.0.0.1:8000/v1")
        check_least("rollout.server.timeout_s", self.timeout_s, 0.001)
        for name, least in (("retries", 0), ("requests_at_once", 1)):
            check_least(f"rollout.server.{name}", getattr(self, name), least)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not _SPACE.search(url)
    except ValueError:  # the port is no number
        return False


@dataclass(frozen=True, kw_only=True)
class RolloutSettings:
    """How replies are sampled.

    Attributes:
        engine: "transformers" generates on the training ranks; "server" asks an inference server.
        replies: replies to each prompt, the group whose rewards are compared.
        max_reply_tokens: longer replies are cut.
        max_prompt_tokens: longer prompts are bad samples, see ``loader.on_bad_sample``; None takes any.
        temperature: logits are divided by it, in rollout and training alike; 0 takes the likeliest token.
        prompts_at_once: prompts a rank generates for in one batch.
        shared_share: share of a rank's predicted work whose prompts wait for whichever rank is idle; their visuals'
            embeddings go to every rank. Only with balance on.
        record: write every reply with its reward to ``replies.jsonl`` in the run's folder.
        server: see there.
    """

    engine: Literal["transformers", "server"] = "transformers"
    replies: int = 8
    max_reply_tokens: int = 256
    max_prompt_tokens: int | None = None
    temperature: float = 1.0
    prompts_at_once: int = 8
    shared_share: float = 0.25
    record: bool = False
    server: ServerSettings = field(default_factory=ServerSettings)

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: a number is out of range.
        """
        for name in ("max_reply_tokens", "prompts_at_once"):
            check_least(f"rollout.{name}", getattr(self, name), 1)
        if self.max_prompt_tokens is not None:
            check_least("rollout.max_prompt_tokens", self.max_prompt_tokens, 1)
        if self.replies < 2:
            raise SettingsError(f"rollout.replies={self.replies} must be at least 2: rewards are compared in the group")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise SettingsError(f"rollout.temperature={self.temperature} must be at least 0")
        if not 0 <= self.shared_share <= 1:
            raise SettingsError(f"rollout.shared_share={self.shared_share} must lie in [0, 1]")


@dataclass(frozen=True, kw_only=True)
class RewardSettings:
    """The function that scores replies.

    Attributes:
        function: ``file.py:function``.
        batch: it takes the list of all replies of a step and returns their rewards; otherwise one reply, one reward.
        timeout_s: longest time it may take for a step's replies.
    """

    function: str = ""
    batch: bool = False
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: the time limit is not positive.
        """
        if not self.timeout_s > 0:
            raise SettingsError(f"reward.timeout_s={self.timeout_s:g} must be positive")

    @property
    def file(self) -> Path:
        """The Python file."""
        return Path(self.function.rpartition(":")[0])

    def check_file(self) -> None:
        """Look for the file.

        Raises:
            SettingsError: it is missing.
        """
        if not self.file.is_file():
            raise SettingsError(f"reward.function={self.function}: no such file as {self.file}")


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    """What the update minimises.

    Attributes:
        aggregation: how token losses become one: "token-mean" over all tokens of a mini-batch (verl; TRL's "dapo"),
            "seq-mean-token-mean" the mean of each reply's mean (TRL's "grpo"), "seq-mean-token-sum" the mean of each
            reply's sum.
        clip_low, clip_high: the probability ratio is clipped to [1 - clip_low, 1 + clip_high].
        kl_coefficient: weight of the divergence from the model the run started from; 0 needs no such model.
        scale_advantages: divide by the group's standard deviation; false only subtracts its mean.
        mini_batches: optimizer steps the replies are dealt to, whole groups at a time.
        epochs: times they are gone through.
    """

    aggregation: Aggregation = "token-mean"
    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_coefficient: float = 0.0
    scale_advantages: bool = True
    mini_batches: int = 1
    epochs: int = 1

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: a number is out of range.
        """
        for name in ("mini_batches", "epochs"):
            check_least(f"objective.{name}", getattr(self, name), 1)
        for name in ("clip_low", "clip_high", "kl_coefficient"):
            check_least(f"objective.{name}", getattr(self, name), 0)


@dataclass(frozen=True, kw_only=True)
class GRPOSettings(SFTSettings):
    """One GRPO run. ``samples_per_step`` counts prompts; whatever follows the last user turn is the reference answer.

    Attributes:
        name: results go to ``<runs>/<name>/<balanced|baseline|observed>/``.
        rollout, reward, objective: see there.
    """

    name: str = "grpo"
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    reward: RewardSettings = field(default_factory=RewardSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: a number is out of range, or no reward function is named.
        """
        super().__post_init__()
        if not all(self.reward.function.rpartition(":")):
            raise SettingsError(
                f"reward.function={self.reward.function!r} must name a Python file and a function in it, "
                "as in reward.function=reward.py:score"
            )
        if self.packing.method != "off":
            raise SettingsError(
                f"packing.method={self.packing.method}: replies are not packed beforehand; set it to off"
            )
        if self.objective.mini_batches > self.samples_per_step:
            raise SettingsError(
                f"objective.mini_batches={self.objective.mini_batches} exceeds samples_per_step="
                f"{self.samples_per_step}: a prompt's replies stay together"
            )

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps of one GRPO step."""
        return self.objective.mini_batches * self.objective.epochs
