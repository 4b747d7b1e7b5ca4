"""Encode the operations of an order as integers that contain kind, chunk and microbatch.

::

    bit   56             52       32            0
     unordered │  kind   │  chunk │ microbatch  │

The bit ``unordered`` marks weight gradients that were computed together in one range, so their
sequence was not recorded.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.model import grouping
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.phases import Phase

#: Kinds of operations. B and BW are the same kind. They differ only in whether a W follows.
FORWARD, BACKWARD, WEIGHTS = 0, 1, 2
#: Kinds that are used only while orders are being read. ``CLEARED`` stands for all remaining weight
#: gradients, and ``FUSED`` for a fused backward.
CLEARED, FUSED = 3, 4
_CHUNK, _KIND, _UNORDERED = 32, 52, 56
#: Maximum chunk number and maximum microbatch number in a code.
MAX_CHUNK, _MAX_MICROBATCH = (1 << (_KIND - _CHUNK)) - 1, (1 << _CHUNK) - 1
#: Kind of each phase that orders contain.
KINDS = {
    Phase.F: FORWARD,
    Phase.FB: FORWARD,
    Phase.B: BACKWARD,
    Phase.BW: FUSED,
    Phase.W: WEIGHTS,
}
#: Kind of every phase, indexed by phase. Phases that orders do not contain have an arbitrary kind.
KIND_OF_PHASE = np.array([KINDS.get(phase, FORWARD) for phase in Phase], np.int64)


def get_kind(code: Ints) -> Ints:
    """Extract the kind of operation from each code."""
    return code >> _KIND & ((1 << (_UNORDERED - _KIND)) - 1)


def get_chunk(code: Ints) -> Ints:
    """Extract the chunk from each code."""
    return code >> _CHUNK & MAX_CHUNK


def get_microbatch(code: Ints) -> Ints:
    """Extract the microbatch from each code."""
    return code & _MAX_MICROBATCH


def encode(kind: Ints, chunk: Ints, microbatch: Ints) -> Ints:
    """Encode the kind, chunk and microbatch of each operation as one integer."""
    return kind << _KIND | chunk << _CHUNK | microbatch


def find_first_backward(order: Ints) -> int:
    """Return the position of the first backward of an order, or 0 if there is none."""
    return int((get_kind(order) == BACKWARD).argmax()) if len(order) else 0


def order_by_microbatch(order: Ints) -> Ints:
    """Return codes without their ``unordered`` bits. The codes stay in the same order."""
    return order & ((1 << _UNORDERED) - 1)


def order_as_planned(order: Ints, planned: Ints) -> Ints:
    """Sort an order's unordered weight gradients to match a plan.

    Weight gradients are unordered if one range computed several of them, because the recording does
    not show which ones it computed, or in which sequence. Each run of consecutive unordered weight
    gradients is sorted separately, and those that are not planned are dropped. The positions of all
    other operations do not change. The returned codes have no ``unordered`` bits.

    Args:
        order: Order in which the operations of a device actually ran.
        planned: Planned order of the same device.
    """
    is_unordered = order >> _UNORDERED > 0
    if not is_unordered.any():
        return order
    code = order_by_microbatch(order)
    run_id = np.cumsum(np.diff(is_unordered, prepend=False))
    by_code = np.argsort(planned)
    in_sorted_plan = grouping.find_positions(planned[by_code], code)
    is_planned = in_sorted_plan != NONE
    measured_position = np.arange(len(code))
    position = np.where(is_unordered & is_planned, by_code[in_sorted_plan], measured_position)
    sequence = grouping.sort_rows(run_id, position)
    remains = is_planned | ~is_unordered
    reordered: Ints = code[sequence[remains[sequence]]]
    return reordered


def expand_cleared_weights(code: Ints) -> Ints:
    """Replace each ``CLEARED`` code with unordered codes for the weight gradients it represents.

    A ``CLEARED`` operation computes all weight gradients that remain in its chunk. It represents
    one for each earlier ``BACKWARD`` of the chunk, except those that are computed elsewhere:

    - By a ``WEIGHTS`` operation anywhere in the order.
    - By an earlier ``CLEARED`` operation.

    Finally, fused backwards get the kind of other backwards (:func:`unite_backwards`).
    """
    pieces, start = [], 0
    computed_weights = code[get_kind(code) == WEIGHTS]
    for clear in np.flatnonzero(get_kind(code) == CLEARED).tolist():
        preceding_codes = code[:clear]
        backwards = preceding_codes[get_kind(preceding_codes) == BACKWARD]
        chunk_backwards = backwards[get_chunk(backwards) == get_chunk(code[clear])]
        weights = chunk_backwards + (WEIGHTS - BACKWARD << _KIND)
        remaining = weights[~np.isin(weights, computed_weights)]
        pieces += [code[start:clear], remaining + (1 << _UNORDERED)]
        computed_weights = np.concatenate((computed_weights, remaining))
        start = clear + 1
    return unite_backwards(np.concatenate([*pieces, code[start:]]))


def unite_backwards(code: Ints) -> Ints:
    """Return codes in which the kind ``FUSED`` is replaced with ``BACKWARD``."""
    return np.where(get_kind(code) == FUSED, code - (FUSED - BACKWARD << _KIND), code)


def drop_eager_weights(order: Ints) -> Ints:
    """Remove each W that directly follows the backward of the same microbatch and chunk."""
    previous, following = order[:-1], order[1:]
    is_weight_of_previous = order_by_microbatch(following - previous) == WEIGHTS - BACKWARD << _KIND
    is_eager = is_weight_of_previous & (get_kind(previous) == BACKWARD)
    rest: Ints = order[~np.append(False, is_eager)[: len(order)]]
    return rest


def add_eager_weights(order: Ints) -> Ints:
    """Insert a W directly after each backward."""
    backward = np.flatnonzero(get_kind(order) == BACKWARD)
    weights = order[backward] + (WEIGHTS - BACKWARD << _KIND)
    return np.insert(order, backward + 1, weights)
