"""Micro-batches as a host's collator gives them, and what one process makes of the same samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tests.runtime.step_cases import MERGE, Samples

from trimtab.demo.tiny_models import tiny_model

LOSS_TOKENS = 2
PAD = 0


class HostData:
    """Samples of a tiny model, and collators for them."""

    def __init__(self, family: str, cases: Any, *, dtype: torch.dtype = torch.float64, frozen: bool = False) -> None:
        self.model = tiny_model(family, seed=0, dtype=dtype)  # type: ignore[arg-type]
        self.model.config.text_config.pad_token_id = PAD
        self.samples = Samples(self.model, cases, loss_tokens=LOSS_TOKENS)
        self.cases = cases
        self.family = family
        if frozen:
            self.model.model.visual.requires_grad_(False)

    def padded(self, rows: Any, *, side: str = "right", with_positions: bool = False) -> dict[str, Any]:
        """[B, L] with attention_mask, as processors give it."""
        length = max(len(self.samples.tokens[row]) for row in rows)
        columns: dict[str, list[torch.Tensor]] = {
            key: [] for key in ("input_ids", "labels", "attention_mask", "mm_token_type_ids", "position_ids")
        }
        for row in rows:
            ids = self.samples.tokens[row]
            pad = (length - len(ids), 0) if side == "left" else (0, length - len(ids))
            columns["input_ids"].append(F.pad(ids, pad, value=PAD))
            columns["labels"].append(F.pad(self.labels(row), pad, value=-100))
            columns["attention_mask"].append(F.pad(torch.ones_like(ids), pad))
            columns["mm_token_type_ids"].append(F.pad(self.samples.types[row], pad))
            columns["position_ids"].append(F.pad(self.samples._positions(row), pad))
        batch = {key: torch.stack(value) for key, value in columns.items() if key != "position_ids"}
        if with_positions:
            batch["position_ids"] = torch.stack(columns["position_ids"], dim=1)
        return batch | self.visuals(rows)

    def packed(self, rows: Any) -> dict[str, Any]:
        """[1, L] with cu_seqlens and restarting positions."""
        tokens = [self.samples.tokens[row] for row in rows]
        bounds = np.cumsum([0, *map(len, tokens)])
        return {
            "input_ids": torch.cat(tokens)[None],
            "labels": torch.cat([self.labels(row) for row in rows])[None],
            "position_ids": torch.cat([self.samples._positions(row) for row in rows], dim=1)[:, None],
            "cu_seqlens": torch.from_numpy(bounds).int(),
            "max_seqlen": max(map(len, tokens)),
            **self.visuals(rows),
        }

    def labels(self, row: int) -> torch.Tensor:
        labels = torch.full_like(self.samples.tokens[row], -100)
        labels[-LOSS_TOKENS:] = self.samples.tokens[row][-LOSS_TOKENS:]
        return labels

    def visuals(self, rows: Any) -> dict[str, Any]:
        batch: dict[str, Any] = {}
        for kind, pixels, grid in (
            ("image", "pixel_values", "image_grid_thw"),
            ("video", "pixel_values_videos", "video_grid_thw"),
        ):
            chosen = [(row, i) for row in rows for i, v in enumerate(self.cases[row][1]) if v.kind == kind]
            if chosen:
                batch[pixels] = torch.cat([self.samples.pixels[row][i] for row, i in chosen])
                visuals = [self.cases[row][1][i] for row, i in chosen]
                batch[grid] = torch.tensor([(v.grid_t, v.grid_h, v.grid_w) for v in visuals])
                if kind == "video" and self.family == "qwen2_5_vl":
                    batch["second_per_grid_ts"] = [1.0] * len(visuals)
        return batch


def reference(family: str, cases: Any, *, frozen: bool = False) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and gradients of the unmodified model in one process, one sample at a time, over the global token count."""
    data = HostData(family, cases, frozen=frozen)
    total, loss_sum = LOSS_TOKENS * len(cases), 0.0
    for row in range(len(cases)):
        inputs = data.samples.stock_inputs(row)
        logits = data.model(**inputs).logits[0, -LOSS_TOKENS - 1 : -1]
        loss = F.cross_entropy(logits, inputs["input_ids"][0, -LOSS_TOKENS:], reduction="sum") / total
        loss.backward()
        loss_sum += float(loss.detach())
    return loss_sum, {n: p.grad.numpy() for n, p in data.model.named_parameters() if p.grad is not None}


def assert_same(found: Any, expected: Any) -> None:
    """Every rank's loss and gradients are the reference's; a gradient the reference lacks is zero."""
    loss, grads = expected
    for rank_loss, rank_grads in found:
        np.testing.assert_allclose(rank_loss, loss, rtol=1e-11)
        assert set(grads) <= set(rank_grads)
        for name, grad in rank_grads.items():
            wanted = grads.get(name, np.zeros_like(grad))
            scale = max(np.abs(wanted).max(), 1e-3)
            np.testing.assert_allclose(grad, wanted, atol=1e-10 * scale, err_msg=name)


__all__ = ["MERGE", "HostData", "assert_same", "reference"]
