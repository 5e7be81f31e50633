"""One forward, one backward by turns, with micro-batches that differ: when every stage of every replica is done."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.pipeline_schedule import Action, rank_actions
from trimtab.simulate.timeline import Timeline

Floats = NDArray[np.float64]


def run_1f1b(forward: Floats, backward: Floats, send: Floats, start: float, timeline: Timeline | None = None) -> Floats:
    """When each replica's last backward ends.

    Every stage runs its forwards and backwards in the schedule's order, each as soon as its input has arrived.

    Args:
        forward: float64 [M, K, D], seconds of micro-batch, stage and replica.
        backward: float64 [M, K, D], recomputation included.
        send: float64 [K - 1], seconds from each stage to the next, and of the gradient back.
        start: seconds on the simulation's clock.
        timeline: receives spans, or None; lane ``replica * K + stage``.

    Returns:
        float64 [D].
    """
    micro_batches, stages, replicas = forward.shape
    waiting = rank_actions("1f1b", stages, 1, micro_batches)
    clock = np.full((stages, replicas), start)
    ends: dict[Action, Floats] = {}
    position, left = [0] * stages, 2 * stages * micro_batches
    while left:
        for stage, actions in enumerate(waiting):
            while position[stage] < len(actions):
                action = actions[position[stage]]
                arrived = _arrival(action, ends, stages, send, start)
                if arrived is None:
                    break
                began = np.maximum(clock[stage], arrived)
                took = (backward if action.backward else forward)[action.micro_batch, stage]
                clock[stage] = ends[action] = began + took
                if timeline is not None:
                    name = f"{'backward' if action.backward else 'forward'} {action.micro_batch}"
                    for replica in range(replicas):
                        lane = replica * stages + stage
                        timeline.add("stages", lane, name, float(began[replica]), float(took[replica]))
                position[stage] += 1
                left -= 1
    return np.asarray(clock.max(axis=0))


def _arrival(
    action: Action, ends: dict[Action, Floats], stages: int, send: Floats, start: float
) -> Floats | float | None:
    """When an action's input is there: at ``start``, or None where what makes it has not run yet."""
    stage, number = action.stage, action.micro_batch
    if not action.backward and stage == 0:
        return start
    if not action.backward:
        needed, delay = Action(stage - 1, False, number), float(send[stage - 1])
    elif stage == stages - 1:
        needed, delay = Action(stage, False, number), 0.0
    else:
        needed, delay = Action(stage + 1, True, number), float(send[stage])
    found = ends.get(needed)
    return None if found is None else found + delay
