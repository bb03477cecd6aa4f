"""Steer the marks by what was measured: as much margin as survives training, for no more than it may cost.

After each round the server knows by how much the answers still lead in the returned models. What their worst tenth has
lost is what the next marks need, and a little more. The margin goes up fast and down slowly; it is bounded a round, so
that no client can drive it. A mark that would cost too much gets less margin. While neither the labels of returned
models nor their scores would name a client, it may cost more, up to a second limit; if that does not help either, it is
not paid for. All these constants were set on the open federations of the zoo (`tramark.lab.studies.zoo`).
"""

import math
from dataclasses import replace

from tramark.evidence.premise import FAINT
from tramark.marks.injection import Made, Plan
from tramark.marks.survival import Survived

FREE = 0.01
"""A cost (KL divergence of the answers on data) that accuracy does not feel."""

CHEAP = 0.004
"""A cost at which more margin than is needed is asked for: it is harder to remove."""

BRAKE = 0.6
"""The strain (`Draft.strain`) that goes with a cost of `FREE`: more of it, and the noise in the gradients of the layers
before would build up round by round."""

STRAINED = 1.25
"""Updates of the other layers that are so much larger than before the marks show that marks disturb training."""

DEAR = 0.03
"""The largest cost, while too little survives."""

PATIENCE = 2
"""Rounds at the largest cost in which still too few answers survive (less than `FAINT`, the share that a trace takes
for granted where nothing was measured), after which marks cost no more than `FREE` again."""

RESERVE = 1.5
"""The margin asked for, relative to what the worst tenth of the answers lost. Also the evidence from scores at which
marks need not cost more, relative to what names a client."""

PLENTY = 2.5
"""The same where margin is cheap."""

RISE, FALL = 2.5, 0.95
"""The largest factors by which the margin changes in a round."""

LEAST, MOST = 2.0, 100.0
"""The margins between which the control stays, in logits."""


def within(cost: float, strain: float, limit: float) -> float:
    """The factor by which a margin must shrink for its cost and its strain to come down to their limits.

    It is 1 if they are low enough. Both limits move together, the cost's being `limit`.

    >>> within(0.04, 0.1, 0.01), within(0.001, 0.1, 0.01), within(0.001, 1.2, 0.01)
    (0.5, 1.0, 0.5)
    """
    if math.isinf(limit):
        return 1.0
    return min(1.0, math.sqrt(limit / max(cost, 1e-9)), BRAKE * math.sqrt(limit / FREE) / max(strain, 1e-9))


def steer(plan: Plan, made: Made, survived: Survived) -> Plan:
    """The plan for the next marks, from what was made and what was left of it."""
    lost = made.margin - survived.low
    free = made.margin * math.sqrt(CHEAP / max(made.cost, 1e-9))
    wanted = min(max(RESERVE * lost, free), PLENTY * lost)
    factor = min(RISE, max(FALL, wanted / max(made.margin, LEAST)))
    enough = survived.low > 0 or survived.told >= RESERVE
    if plan.calm and survived.moved > STRAINED * plan.calm:
        # Marks disturb training, whatever was foreseen.
        return replace(plan, margin=min(made.margin, factor * made.margin), limit=max(FREE / 4, 0.6 * plan.limit))
    vain = 0 if enough or survived.mean >= FAINT else plan.vain + (plan.limit >= DEAR)
    if enough or vain >= PATIENCE:
        limit = max(min(FREE, 1.2 * plan.limit), (0.9 if enough else 0.0) * plan.limit)
    else:
        limit = min(DEAR, 1.5 * plan.limit)
    limit = math.inf if math.isinf(plan.limit) else limit
    return replace(plan, margin=min(MOST, max(LEAST, factor * made.margin)), limit=limit, vain=vain)
