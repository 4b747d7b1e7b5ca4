"""Order codes: an operation of an order as one integer, of kind, chunk and microbatch.

::

    bit   56             52       32            0
     unordered │  kind   │  chunk │ microbatch  │
"""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import Ints
from bubbleviz.model.phases import Phase
from bubbleviz.model.sorting import sorted_rows

#: Kinds of operations. B and BW are one kind: they differ in whether a W follows.
FORWARD, BACKWARD, WEIGHTS = 0, 1, 2
#: Kinds while orders are read: all remaining weight gradients, and a fused backward.
CLEARED, FUSED = 3, 4
_CHUNK, _KIND, _UNORDERED = 32, 52, 56
#: Largest chunk and largest microbatch that a code holds.
MOST_CHUNKS = (1 << (_KIND - _CHUNK)) - 1
MOST_MICROBATCHES = (1 << _CHUNK) - 1
_KINDS_MASK = (1 << (_UNORDERED - _KIND)) - 1

#: Kinds of the phases that orders hold.
KINDS = {
    Phase.F: FORWARD,
    Phase.FB: FORWARD,
    Phase.B: BACKWARD,
    Phase.BW: FUSED,
    Phase.W: WEIGHTS,
}
#: The same for every phase.
KIND_OF_PHASE = np.array([KINDS.get(phase, FORWARD) for phase in Phase], np.int64)


def kind_of(code: Ints) -> Ints:
    """Return the kinds of codes."""
    return code >> _KIND & _KINDS_MASK


def chunk_of(code: Ints) -> Ints:
    """Return the chunks of codes."""
    return code >> _CHUNK & MOST_CHUNKS


def microbatch_of(code: Ints) -> Ints:
    """Return the microbatches of codes."""
    return code & MOST_MICROBATCHES


def coded(kind: Ints, chunk: Ints, microbatch: Ints) -> Ints:
    """Return the codes of operations."""
    return kind << _KIND | chunk << _CHUNK | microbatch


def in_planned_order(order: Ints, planned: Ints) -> Ints:
    """Return an order with unordered weight gradients in the sequence of a plan.

    The sequence within one range was not recorded, nor which weight gradients remained for it:
    those that are not planned are left out.
    """
    unordered = order >> _UNORDERED > 0
    if not unordered.any():
        return order
    code = in_microbatch_order(order)
    block = np.cumsum(np.diff(unordered, prepend=False))
    by_code = np.argsort(planned)
    at = np.searchsorted(planned[by_code], code)
    known = at < len(planned)
    known[known] = planned[by_code][at[known]] == code[known]
    place = np.arange(len(code))
    place[unordered & known] = by_code[at[unordered & known]]
    sequence = sorted_rows(block, place)
    return code[sequence[(known | ~unordered)[sequence]]]


def in_microbatch_order(order: Ints) -> Ints:
    """Return an order with unordered weight gradients in the sequence of the microbatches."""
    return order & ((1 << _UNORDERED) - 1)


def with_remaining_weights(code: Ints) -> Ints:
    """Return an order in which ranges that clear weight gradients are all that remain, unordered.

    See :func:`in_planned_order`.
    """
    clears = np.flatnonzero(kind_of(code) == CLEARED).tolist()
    pieces, at = [], 0
    done = code[kind_of(code) == WEIGHTS]
    for clear in clears:
        before = code[:clear]
        backwards = before[kind_of(before) == BACKWARD]
        backwards = backwards[chunk_of(backwards) == chunk_of(code[clear])]
        remaining = coded(
            np.full(len(backwards), WEIGHTS), chunk_of(backwards), microbatch_of(backwards)
        )
        remaining = remaining[~np.isin(remaining, done)]
        pieces += [code[at:clear], remaining + (1 << _UNORDERED)]
        done = np.concatenate((done, remaining))
        at = clear + 1
    return without_fusion(np.concatenate([*pieces, code[at:]]))


def without_fusion(code: Ints) -> Ints:
    """Return the codes with every backward as one kind."""
    kind = kind_of(code)
    return np.asarray(code - ((kind - BACKWARD) * (kind == FUSED) << _KIND), np.int64)


def without_eager_weights(order: Ints) -> Ints:
    """Return the order without each W that follows its own backward at once."""
    following = np.zeros(len(order), bool)
    same = (kind_of(order[:-1]) == BACKWARD) & (kind_of(order[1:]) == WEIGHTS)
    same &= (chunk_of(order[:-1]) == chunk_of(order[1:])) & (
        microbatch_of(order[:-1]) == microbatch_of(order[1:])
    )
    following[1:] = same
    return order[~following]
