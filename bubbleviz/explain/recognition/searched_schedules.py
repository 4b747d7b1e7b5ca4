"""Searched schedules: recognised by how their orders are built, not operation by operation.

A scheduler that is given times and a memory limit returns another order for other times. Its orders
keep a structure: W is split from the backward and delayed, devices have one chunk or two in a V,
and each searched schedule states its peak, the maximum number of microbatches that a device holds
from F to their backward. By source:

- ``zb-1p``, ``zb-2p``: one chunk, p and 2p (Qi et al., Zero Bubble Pipeline Parallelism, arXiv
  2401.10241, section 4; a microbatch whose W remains counts M_W of M_B there, so that only those
  before their backward are bounded in number).
- ``zb-v``, ``v-half``, ``v-min``: two chunks in a V, of half a microbatch each; p, (p + 2) / 2 and
  (p + 4) / 3 (Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, section
  3; these are the peaks of the orders that its own scheduler builds).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from bubbleviz.explain.recognition import order_codes as codes
from bubbleviz.explain.recognition.pipeline_orders import PipelineOrders
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import find_distinct
from bubbleviz.schedules.known import schedules

#: Preference among schedules with equal orders, as with one device or one microbatch. Other
#: schedules come last.
_PREFERENCE = (
    *("1f1b", "gpipe", "interleaved-1f1b", "looped-bfs"),
    *("zb-h1", "zb-h2", "zb-1p", "zb-2p", "interleaved-zb"),
    *("zb-v", "v-half", "v-min", "dualpipev", "dualpipe", "chimera", "combined-1f1b"),
)
_PRIORITY = {name: priority for priority, name in enumerate(_PREFERENCE)}
#: Minimum fraction of backwards with a W of their own; some schedulers fuse the last ones.
_MIN_SPLIT = 0.9


def sort_by_preference(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of schedules, preferred ones first, others in alphabetical order."""
    return tuple(sorted(names, key=lambda name: (_PRIORITY.get(name, len(_PRIORITY)), name)))


def find_searched_schedules(ran: PipelineOrders, *, eager: bool = False) -> tuple[str, ...]:
    """Return the names of the searched schedules with the structure of a pipeline's orders.

    There are several names if the numbers of devices and microbatches do not distinguish them.

    Args:
        ran: Orders of the pipeline.
        eager: Whether every W may directly follow its own backward. A search finds such orders if
            transfers take long, and so does every schedule whose backward is split in place.
    """
    if not ran.is_placed or len(set(ran.places)) < ran.devices:
        return ()
    by_place = dict(zip(ran.places, map(codes.order_by_microbatch, ran.orders), strict=True))
    orders = [by_place[place] for place in sorted(by_place)]
    chunk_counts = {len(find_distinct(codes.get_chunk(order))) for order in orders}
    if len(chunk_counts) != 1 or not all(map(_is_split, orders)):
        return ()
    if not eager and not any(map(_has_delayed_weights, orders)):
        return ()
    chunks = chunk_counts.pop()
    if not (_is_v_shaped(orders) if chunks > 1 else _has_stepwise_warm_up(orders)):
        return ()
    peak = max(map(_count_held, orders)) / chunks
    rules = {rule.name: rule for rule in schedules() if rule.chunks == chunks}
    limits = []
    for name in sort_by_preference(rules):
        search = rules[name].searched
        if search is not None:
            limits.append((min(search.peak(len(orders)), ran.microbatches), name))
    # An order can stay below its limit by a chunk at least.
    lowest = min((limit for limit, _ in limits if limit >= peak), default=None)
    return tuple(name for limit, name in limits if limit == lowest)


def _is_split(order: Ints) -> bool:
    """Return whether nearly every backward has a W, and forwards and backwards are in order."""
    kind, chunk = codes.get_kind(order), codes.get_chunk(order)
    for passes in (codes.FORWARD, codes.BACKWARD):
        for number in find_distinct(chunk).tolist():
            if (np.diff(order[(kind == passes) & (chunk == number)]) <= 0).any():
                return False
    n_backwards, n_weights = int((kind == codes.BACKWARD).sum()), int((kind == codes.WEIGHTS).sum())
    return n_backwards > 0 and n_weights >= _MIN_SPLIT * n_backwards


def _has_delayed_weights(order: Ints) -> bool:
    """Return whether a W does not directly follow its own backward."""
    return bool((codes.get_kind(codes.drop_eager_weights(order)) == codes.WEIGHTS).any())


def _is_v_shaped(orders: Sequence[Ints]) -> bool:
    """Return whether the last device runs both F of the first microbatch one after the other.

    Args:
        orders: Orders of the devices, which have two chunks in a V.
    """
    first = min(int(codes.get_microbatch(order).min()) for order in orders)
    kind = np.full(2, codes.FORWARD)
    down, up = codes.encode(kind, np.arange(2), np.full(2, first)).tolist()
    down_rows, up_rows = np.flatnonzero(orders[-1] == down), np.flatnonzero(orders[-1] == up)
    return len(down_rows) > 0 and len(up_rows) > 0 and up_rows[-1] - down_rows[-1] == 1


def _has_stepwise_warm_up(orders: Sequence[Ints]) -> bool:
    """Return whether the last device alternates F and B, and none warms up less than the next.

    GPipe with a split backward warms up with all forwards on every device.

    Args:
        orders: Orders of the devices, which have one chunk each.
    """
    warm_ups = list(map(codes.find_first_backward, orders))
    return warm_ups[-1] == 1 and all(first >= second for first, second in pairwise(warm_ups))


def _count_held(order: Ints) -> int:
    """Return the maximum number of chunks whose F has run and whose backward has not."""
    kind = codes.get_kind(order)
    change = (kind == codes.FORWARD).astype(np.int64) - (kind == codes.BACKWARD)
    return int(np.cumsum(change).max())
