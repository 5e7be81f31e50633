"""Rollout by an inference server that speaks the OpenAI chat protocol (vLLM, SGLang).

Before a rollout the policy's weights are written to a folder the server sees, and the server is told to read them. Each
rank asks for its own prompts' replies. What the trainer needs is token ids: they come as vLLM's ``token_ids`` where the
server sends them, else the reply's text is encoded anew.
"""

from __future__ import annotations

import base64
import math
import mimetypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from trimtab.errors import TrainingError
from trimtab.loader.sources import Conversation
from trimtab.media.source import open_source
from trimtab.training.grpo.prompts import Prompt
from trimtab.training.grpo.rollout import Reply, RolloutRequest
from trimtab.training.grpo.sampling import reply_key
from trimtab.training.grpo.server_post import post
from trimtab.training.grpo.settings import RolloutSettings, ServerSettings
from trimtab.training.together import together

_SEEDS = 1 << 31


class ServerEngine:
    """See ``rollout.RolloutEngine``. Replies depend on the server's own sampling, seeded by sample and reply."""

    def __init__(
        self,
        settings: RolloutSettings,
        group: dist.ProcessGroup,
        *,
        seed: int,
        tokenizer: Any,
        end_token: int,
        suppressed: tuple[int, ...],
        conversation: Callable[[int], Conversation],
        write_weights: Callable[[Path], None],
    ) -> None:
        """Ask ``settings.server``.

        Args:
            settings: lengths, temperature, the server.
            group: gloo group of all ranks.
            seed: of the run.
            tokenizer: of the model.
            end_token: ends a reply that the server says stopped by itself.
            suppressed: tokens the server is asked never to draw.
            conversation: of a row of the table, up to the turn to be generated.
            write_weights: writes the policy as a Transformers folder; a collective of all ranks.
        """
        self._settings, self._server, self._group, self._seed = settings, settings.server, group, seed
        self._tokenizer, self._end, self._suppressed = tokenizer, end_token, suppressed
        self._conversation, self._write_weights = conversation, write_weights

    def generate(self, request: RolloutRequest) -> dict[int, list[Reply]]:
        """Replies to this rank's prompts.

        Raises:
            TrainingError: the server refused, took too long, or answered something else; raised on every rank.
        """
        what = f"step {request.step}, rollout"
        if self._server.weights is not None:
            folder = Path(self._server.weights)
            self._write_weights(folder)
            together(self._group, what, lambda: self._reload(folder) if self._group.rank() == 0 else None)
        own = request.plan.own[self._group.rank()]
        return together(self._group, what, lambda: self._ask_all(request, own))

    def _ask_all(self, request: RolloutRequest, own: Sequence[int]) -> dict[int, list[Reply]]:
        with ThreadPoolExecutor(max_workers=self._server.requests_at_once) as threads:
            answers = threads.map(lambda index: self._ask(request.step, request.prompts[index]), own)
            return dict(zip(own, answers, strict=True))

    def _ask(self, step: int, prompt: Prompt) -> list[Reply]:
        """One request a reply, since a seed belongs to a request."""
        messages = chat_messages(self._conversation(prompt.row))
        return [self._ask_once(step, prompt, reply, messages) for reply in range(self._settings.replies)]

    def _ask_once(self, step: int, prompt: Prompt, reply: int, messages: list[dict[str, Any]]) -> Reply:
        answer = post(
            self._server,
            "/chat/completions",
            {
                "model": self._server.model,
                "messages": messages,
                "max_tokens": self._settings.max_reply_tokens,
                "temperature": self._settings.temperature,
                "seed": reply_key(self._seed, step, prompt.sample_id, reply) % _SEEDS,
                "logprobs": True,
                "logit_bias": {str(token): -100 for token in self._suppressed},
                "return_token_ids": True,
            },
            f"sample {prompt.sample_id}",
        )
        try:
            return self._reply(answer["choices"][0])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise TrainingError(
                f"{self._server.url}: sample {prompt.sample_id}: the answer is no chat completion "
                f"({type(error).__name__}: {error}); check rollout.server.url"
            ) from error

    def _reply(self, choice: dict[str, Any]) -> Reply:
        finished = choice.get("finish_reason") == "stop"
        tokens = choice.get("token_ids")
        if tokens is None:
            tokens = self._tokenizer(choice["message"]["content"] or "", add_special_tokens=False)["input_ids"]
        tokens = [int(token) for token in tokens][: self._settings.max_reply_tokens]
        if set(tokens) & set(self._suppressed):
            raise ValueError("it holds a placeholder of an image or video, which logit_bias forbade")
        if finished and tokens[-1:] != [self._end]:
            tokens.append(self._end)
        told = [entry["logprob"] for entry in (choice.get("logprobs") or {}).get("content") or []]
        logprobs = told if len(told) == len(tokens) else [math.nan] * len(tokens)
        return Reply(
            tokens=np.array(tokens, dtype=np.int64), logprobs=np.array(logprobs, dtype=np.float64), finished=finished
        )

    def _reload(self, folder: Path) -> None:
        root = self._server.url.rstrip("/").removesuffix("/v1")
        server = ServerSettings(**{**vars(self._server), "url": root})
        post(server, self._server.reload_path, {"model_path": str(folder)}, "new weights")


def chat_messages(conversation: Conversation) -> list[dict[str, Any]]:
    """The conversation with its media inline, as data URLs."""
    visuals = iter(conversation.visuals)
    messages = []
    for message in conversation.messages:
        parts: list[dict[str, Any]] = []
        for part in message.parts:
            if part.kind == "text":
                parts.append({"type": "text", "text": part.text})
            else:
                kind = f"{part.kind}_url"
                parts.append({"type": kind, kind: {"url": _data_url(next(visuals))}})
        messages.append({"role": message.role, "content": parts})
    return messages


def _data_url(visual: Any) -> str:
    with open_source(visual.uri, visual.data) as source:
        data = Path(source).read_bytes() if isinstance(source, str) else source.read()
    default = "image/png" if visual.kind == "image" else "video/mp4"
    kind = mimetypes.guess_type(visual.uri)[0] or default
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
