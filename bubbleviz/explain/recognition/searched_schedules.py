"""Recognize searched schedules by the structure of their orders rather than single operations.

A searched schedule is computed from measured times and a memory limit, so its order differs from
run to run. But its structure is always the same: W is split from the backward and delayed, and a
device has one chunk, or two chunks in a V-shaped layout. Each searched schedule also has a known
peak: the maximum number of microbatches in flight on a device. A microbatch is in flight from its F
to its backward. With p devices, the peaks are:

- ``zb-1p`` and ``zb-2p`` have one chunk and the peaks p and 2p (Qi et al., Zero Bubble Pipeline
  Parallelism, arXiv 2401.10241, section 4). In that paper's memory limit, a microbatch between
  backward and W takes up only a part M_W of M_B. So the limit bounds only the number of
  microbatches in flight.
- ``zb-v``, ``v-half`` and ``v-min`` have two chunks in a V. Each chunk is counted as half a
  microbatch. The orders that the authors' scheduler builds have the peaks p, (p + 2) / 2 and (p +
  4) / 3 (Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, section 3).
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

#: Names of schedules in order of preference. Schedules that are not listed come last.
#: The preferred name is reported if several schedules have the same order.
#: For example, many schedules have the same order if there is only one microbatch.
_PREFERENCE = (
    *("1f1b", "gpipe", "interleaved-1f1b", "looped-bfs"),
    *("zb-h1", "zb-h2", "zb-1p", "zb-2p", "interleaved-zb"),
    *("zb-v", "v-half", "v-min", "hanayo", "dualpipev", "dualpipe", "chimera", "combined-1f1b"),
)
_PRIORITY = {name: priority for priority, name in enumerate(_PREFERENCE)}
#: Minimum number of W per backward in a searched order. It is below 1 because some schedulers fuse
#: the last backwards.
_MIN_SPLIT = 0.9


def sort_by_preference(names: Iterable[str]) -> tuple[str, ...]:
    """Sort the names of schedules by preference, then alphabetically.

    Names that are not in ``_PREFERENCE`` come last.
    """
    return tuple(sorted(names, key=lambda name: (_PRIORITY.get(name, len(_PRIORITY)), name)))


def find_searched_schedules(ran: PipelineOrders, *, eager: bool = False) -> tuple[str, ...]:
    """Return the names of the searched schedules that the orders of a pipeline may follow.

    The result is empty if the orders do not have the structure of searched orders. Otherwise, the
    peak (the maximum number of microbatches in flight on a device) decides. Of the schedules whose
    peak is at least the measured peak, those with the lowest peak are returned. Several schedules
    can have the same peak if there are few devices or microbatches.

    Args:
        ran: Orders of the pipeline. The result is empty if their devices are unknown or missing.
        eager: Whether to accept orders in which every W directly follows its own backward. A search
            returns such an order if transfers are slow, but other schedules have such orders as
            well.
    """
    if not ran.is_placed or len(set(ran.places)) < ran.devices:
        return ()
    by_place = dict(zip(ran.places, map(codes.order_by_microbatch, ran.orders), strict=True))
    orders = [by_place[place] for place in sorted(by_place)]
    chunk_counts = {len(find_distinct(codes.get_chunk(order))) for order in orders}
    if len(chunk_counts) != 1 or not all(map(_has_split_backwards, orders)):
        return ()
    if not eager and not any(map(_has_delayed_weights, orders)):
        return ()
    chunks = chunk_counts.pop()
    if not (_is_v_shaped(orders) if chunks > 1 else _has_stepwise_warm_up(orders)):
        return ()
    peak = max(map(_find_peak, orders)) / chunks
    rules = {rule.name: rule for rule in schedules() if rule.chunks == chunks}
    limits = []
    for name in sort_by_preference(rules):
        search = rules[name].searched
        if search is not None:
            limits.append((min(search.peak(len(orders)), ran.microbatches), name))
    # An order can stay below its schedule's limit.
    lowest = min((limit for limit, _ in limits if limit >= peak), default=None)
    return tuple(name for limit, name in limits if limit == lowest)


def _has_split_backwards(order: Ints) -> bool:
    """Return whether backwards are split into B and W, and microbatches of each chunk run in order.

    There must be at least one backward and at least 0.9 W per backward. In each chunk, the forwards
    must be in strictly ascending order of microbatches, and so must the backwards.
    """
    kind, chunk = codes.get_kind(order), codes.get_chunk(order)
    for passes in (codes.FORWARD, codes.BACKWARD):
        for number in find_distinct(chunk).tolist():
            if (np.diff(order[(kind == passes) & (chunk == number)]) <= 0).any():
                return False
    n_backwards, n_weights = int((kind == codes.BACKWARD).sum()), int((kind == codes.WEIGHTS).sum())
    return n_backwards > 0 and n_weights >= _MIN_SPLIT * n_backwards


def _has_delayed_weights(order: Ints) -> bool:
    """Return whether any W does not directly follow the backward of its microbatch and chunk."""
    return bool((codes.get_kind(codes.drop_eager_weights(order)) == codes.WEIGHTS).any())


def _is_v_shaped(orders: Sequence[Ints]) -> bool:
    """Return whether the last device runs both Fs of the first microbatch back to back.

    The F of chunk 0 must come first. This shows that the two chunks form a V.

    Args:
        orders: Orders of the devices, with two chunks each.
    """
    first = min(int(codes.get_microbatch(order).min()) for order in orders)
    kind = np.full(2, codes.FORWARD)
    down, up = codes.encode(kind, np.arange(2), np.full(2, first)).tolist()
    down_rows, up_rows = np.flatnonzero(orders[-1] == down), np.flatnonzero(orders[-1] == up)
    return len(down_rows) > 0 and len(up_rows) > 0 and up_rows[-1] - down_rows[-1] == 1


def _has_stepwise_warm_up(orders: Sequence[Ints]) -> bool:
    """Return whether warm-ups never increase from device to device, and end with one operation.

    The warm-up of a device is its number of operations before the first backward. The warm-up of
    the last device must be exactly one operation. This rule excludes GPipe with a split backward,
    where every device runs all forwards first.

    Args:
        orders: Orders of the devices, with one chunk each.
    """
    warm_ups = list(map(codes.find_first_backward, orders))
    return warm_ups[-1] == 1 and all(first >= second for first, second in pairwise(warm_ups))


def _find_peak(order: Ints) -> int:
    """Return the maximum number of (microbatch, chunk) pairs in flight, from F to backward."""
    kind = codes.get_kind(order)
    change = (kind == codes.FORWARD).astype(np.int64) - (kind == codes.BACKWARD)
    return int(np.cumsum(change).max())
