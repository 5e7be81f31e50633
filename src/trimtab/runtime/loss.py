"""Where the loss is normalised: local sums over global denominators (contract: the plan never changes the loss).

With t_i loss tokens in sample i and s_i the weighted sum of their losses, the token mean over a step is
sum(s_i) / sum(t_i) whatever the placement, if and only if each micro-batch backpropagates its local sum over the
*global* denominator and gradients are summed over ranks.
"""

from __future__ import annotations

from torch import Tensor


def step_loss(token_loss: Tensor, weights: Tensor, denominator: float) -> Tensor:
    """One micro-batch's share of the step's loss.

    Shares add up to the token mean over all ranks and micro-batches of the step.

    Args:
        token_loss: [K], loss of each token.
        weights: [K].
        denominator: global sum of weights over ranks and micro-batches; 0 gives zero loss and zero gradient.
    """
    share = (token_loss * weights.to(token_loss.dtype)).sum()
    return share / denominator if denominator else share * 0.0


def gradient_scale(ranks: int) -> float:
    """Factor on the loss that turns FSDP's and DDP's mean over ranks into the sum the denominators call for."""
    return float(ranks)
