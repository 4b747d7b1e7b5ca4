"""Structure: names of searched orders by how they are built, not operation by operation.

A scheduler that is given times and a memory limit returns another order for other times. Its orders
keep a structure: W split from the backward and delayed, one chunk a device or two in a V, and the
most microbatches that a device holds from F to its backward: the peak that each searched schedule
states. By source:

- ``zb-1p``, ``zb-2p``: one chunk, p and 2p (Qi et al., Zero Bubble Pipeline Parallelism, arXiv
  2401.10241, section 4; a microbatch whose W remains counts M_W of M_B there, so that only those
  before their backward are bounded in number).
- ``zb-v``, ``v-half``, ``v-min``: two chunks in a V, of half a microbatch each; p, (p + 2) / 2 and
  (p + 4) / 3 (Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362,
  section 3; these are the peaks of the orders that its own scheduler builds).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

import numpy as np

from bubbleviz.explain.recognition.order_codes import (
    BACKWARD,
    FORWARD,
    WEIGHTS,
    chunk_of,
    coded,
    kind_of,
    without_eager_weights,
)
from bubbleviz.explain.recognition.preference import in_preference
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import distinct
from bubbleviz.model.values import frozen
from bubbleviz.schedules.known import schedules

#: Share of backwards that must have a W of their own. Some schedulers fuse the last ones.
_SPLIT = 0.9


@frozen
class Family:
    """Orders of one kind.

    Attributes:
        name: of the schedule.
        chunks: model chunks per device; two are placed in a V.
        peak: microbatches that a device holds at most, by p.
    """

    name: str
    chunks: int
    peak: Callable[[int], float]


@cache
def families() -> tuple[Family, ...]:
    """Return a family for each searched schedule.

    Of those with the same peak (in small pipelines) the first is named.
    """
    searched = {
        schedule.name: Family(schedule.name, schedule.chunks, schedule.searched.peak)
        for schedule in schedules()
        if schedule.searched is not None
    }
    return tuple(searched[name] for name in in_preference(tuple(searched)))


def families_of(
    orders: Sequence[Ints], microbatches: int, *, eager: bool = False
) -> tuple[str, ...]:
    """Return the schedules with this structure; several where m or p does not distinguish them.

    Args:
        orders: of the devices from the first to the last stage, coded as in
            :mod:`bubbleviz.explain.recognition.order_codes`.
        microbatches: of the iteration.
        eager: whether every W may follow its own backward at once. A search finds such orders
            where transfers take long, and so runs every schedule whose backward is split in place.
    """
    chunks = {len(distinct(chunk_of(order))) for order in orders}
    if len(chunks) != 1 or not all(_is_split(order) for order in orders):
        return ()
    if _is_eager(orders) and not eager:
        return ()
    count = chunks.pop()
    if not (_turns(orders[-1]) if count > 1 else _warms_up(orders)):
        return ()
    # A limit can be missed by a chunk at least.
    peak = max(peak_held(order) for order in orders) / count
    allowed = [
        (min(family.peak(len(orders)), microbatches), family.name)
        for family in families()
        if family.chunks == count
    ]
    limit = min((limit for limit, _ in allowed if limit >= peak), default=None)
    return tuple(name for family_limit, name in allowed if family_limit == limit)


def peak_held(order: Ints) -> int:
    """Return the most chunks of microbatches whose F has run and whose backward has not."""
    kind = kind_of(order)
    steps = (kind == FORWARD).astype(np.int64) - (kind == BACKWARD)
    return int(np.cumsum(steps).max(initial=0))


def _is_split(order: Ints) -> bool:
    """Return whether nearly every backward has a W, and each kind runs in order."""
    kind = kind_of(order)
    backward, weights = order[kind == BACKWARD], order[kind == WEIGHTS]
    rising = all(
        bool((np.diff(order[(kind == passed) & (chunk_of(order) == chunk)]) > 0).all())
        for passed in (FORWARD, BACKWARD)
        for chunk in distinct(chunk_of(order)).tolist()
    )
    return rising and len(backward) > 0 and len(weights) >= _SPLIT * len(backward)


def _is_eager(orders: Sequence[Ints]) -> bool:
    """Return whether every W follows its own backward at once, as if they were one."""
    return all(len(without_eager_weights(order)) < len(order) for order in orders) and all(
        not (kind_of(without_eager_weights(order)) == WEIGHTS).any() for order in orders
    )


def _warms_up(orders: Sequence[Ints]) -> bool:
    """Return whether the last device alternates F and B, and no device warms up less than the next.

    GPipe with its backward split warms up with all forwards on every device.
    """
    ahead = [int((kind_of(order) == BACKWARD).argmax()) for order in orders]
    return ahead[-1] == 1 and all(upper >= lower for upper, lower in pairwise(ahead))


def _turns(last: Ints) -> bool:
    """Return whether two chunks are placed in a V: the last device runs both F of microbatch 0."""
    kinds, nothing = np.array([FORWARD, FORWARD]), np.array([0, 0])
    down, up = coded(kinds, np.array([0, 1]), nothing).tolist()
    at = {code: place for place, code in enumerate(last.tolist()) if code in (down, up)}
    return len(at) == 2 and at[up] - at[down] == 1
