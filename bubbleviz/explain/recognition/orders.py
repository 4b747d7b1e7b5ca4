"""Orders: in which sequence each rank ran the operations of an iteration, as codes.

An order is what a host issued, so that it is that of the ranges on the host, as iterations are
(overlapped operations start on the device in any sequence). It holds F, backward and W, without
communication; a recompute belongs to its backward. Numbers are made comparable with a plan's:
chunks count from 0 as a rank comes to them, microbatches from 0 in each iteration, an overlapped
pair is a forward and a backward, and a range that clears the weight gradients left is all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.model.columns import Bools, Ints, Table
from bubbleviz.model.grouping import groups_of, places_in
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import Plan

#: Kinds of operations. B and BW are one kind: what tells them apart is whether a W follows.
FORWARD, BACKWARD, WEIGHTS = 0, 1, 2
#: While orders are read: all weight gradients that are left, and a backward that leaves none.
_CLEARED, _FUSED = 3, 4
_CHUNK, _KIND, _LOOSE = 32, 52, 56
_MASK = (1 << (_KIND - _CHUNK)) - 1
_NUMBER = (1 << _CHUNK) - 1
_KINDS_MASK = (1 << (_LOOSE - _KIND)) - 1

#: Numbers of microbatches of which one in so many or more lack are no numbers in a row.
_GAPS = 3

_KINDS = {
    Phase.F: FORWARD,
    Phase.FB: FORWARD,
    Phase.B: BACKWARD,
    Phase.BW: _FUSED,
    Phase.W: WEIGHTS,
}
#: The same for every phase.
_KIND_OF = np.array([_KINDS.get(phase, FORWARD) for phase in Phase], np.int64)


def kind_of(code: Ints) -> Ints:
    """Return the kinds of codes."""
    return code >> _KIND & _KINDS_MASK


def chunk_of(code: Ints) -> Ints:
    """Return the chunks of codes."""
    return code >> _CHUNK & _MASK


def microbatch_of(code: Ints) -> Ints:
    """Return the microbatches of codes."""
    return code & _NUMBER


def coded(kind: Ints, chunk: Ints, microbatch: Ints) -> Ints:
    """Return the codes of operations."""
    return kind << _KIND | chunk << _CHUNK | microbatch


@dataclass(frozen=True)
class Ran(Table):
    """The operations in order of (iteration, rank, host); an overlapped pair takes two rows.

    Attributes:
        cell: number of the row's (iteration, rank) in :class:`Orders`.
        code: the operation, in numbers that count from 0.
        microbatch: as the report numbers it.
        chunk: likewise.
        phase: code of :class:`bubbleviz.model.phases.Phase`, of the report's row.
    """

    cell: Ints
    code: Ints
    microbatch: Ints
    chunk: Ints
    phase: Ints


@dataclass(frozen=True)
class Orders:
    """What ranks ran; equal orders are one pattern.

    Attributes:
        iteration: of each cell.
        rank: of each cell.
        pattern: of each cell, a row of ``patterns``; -1 where microbatches are not told.
        first: of each cell, its first row in ``ran``.
        patterns: distinct sequences of codes.
        ran: the operations.
    """

    iteration: Ints
    rank: Ints
    pattern: Ints
    first: Ints
    patterns: tuple[Ints, ...]
    ran: Ran

    def rows(self, cell: int) -> slice:
        """Return the rows of a cell."""
        end = self.first[cell + 1] if cell + 1 < len(self.first) else len(self.ran)
        return slice(int(self.first[cell]), int(end))


def orders_of(operations: Operations, iterations: Sequence[int]) -> Orders:
    """Return the order of each rank in each of these iterations.

    Args:
        operations: of the report.
        iterations: indices of those to look at.
    """
    # A range that clears what is left and launches nothing found nothing left.
    idle = (operations.phase == Phase.W) & (operations.microbatch < 0) & (operations.has_span == 0)
    rows = np.flatnonzero(
        np.isin(operations.phase, tuple(_KINDS)) & np.isin(operations.iteration, iterations) & ~idle
    )
    keys = (operations.host_start_ns[rows], operations.rank[rows], operations.iteration[rows])
    rows = rows[np.lexsort(keys)]
    paired = operations.phase[rows] == Phase.FB
    rows = np.repeat(rows, np.where(paired, 2, 1))
    second = np.zeros(len(rows), bool)
    second[1:] = (rows[1:] == rows[:-1]) & (operations.phase[rows[1:]] == Phase.FB)
    phase, microbatch, chunk, split = (
        getattr(operations, name)[rows] for name in ("phase", "microbatch", "chunk", "sequence")
    )
    microbatch = np.where(second, operations.second_microbatch[rows], microbatch)
    chunk = np.where(second, operations.second_chunk[rows], chunk)
    iteration, rank = operations.iteration[rows], operations.rank[rows]
    new = np.ones(len(rows), bool)
    new[1:] = (iteration[1:] != iteration[:-1]) | (rank[1:] != rank[:-1])
    first = np.flatnonzero(new)
    cell = np.cumsum(new) - 1
    kind = np.where(second, _FUSED, _KIND_OF[phase])
    number = _split(microbatch, split)
    known = number >= 0
    kind = np.where(~known & (kind == WEIGHTS), _CLEARED, kind)
    whole = np.where(kind == _FUSED, BACKWARD, kind)
    own_chunk = np.minimum(_in_turn(cell, chunk), _MASK)
    numbered = _from_zero(iteration, cell, own_chunk, whole, number, known)
    untold = np.zeros(len(first), bool)
    untold[cell[~known & (kind != _CLEARED)]] = True
    pattern, patterns = _distinct(coded(kind, own_chunk, numbered), first, untold)
    code = coded(whole, own_chunk, numbered)
    ran = Ran(cell, code, microbatch, chunk, np.where(second, int(Phase.BW), phase))
    return Orders(iteration[first], rank[first], pattern, first, patterns, ran)


def planned_orders(plan: Plan) -> tuple[Ints, ...]:
    """Return the order of each device of a plan, coded as measured ones are."""
    coded_orders = []
    for order in plan.orders:
        flat = [(op.virtual_stage, op.phase, op.microbatch) for op in order]
        stage, phase, number = np.array(flat, np.int64).reshape(-1, 3).T
        chunk = _in_turn(np.zeros(len(stage), np.int64), stage)
        coded_orders.append(_without_fusion(coded(_KIND_OF[phase], chunk, number)))
    return tuple(coded_orders)


def settled(order: Ints, planned: Ints) -> Ints:
    """Return an order with what one range did in the sequence of a plan, for none was recorded.

    Nor was it recorded which weight gradients were left: those that are not planned were not.
    """
    loose = order >> _LOOSE > 0
    if not loose.any():
        return order
    code = order & ((1 << _LOOSE) - 1)
    block = np.cumsum(np.diff(loose, prepend=False))
    by_code = np.argsort(planned)
    at = np.searchsorted(planned[by_code], code)
    known = at < len(planned)
    known[known] = planned[by_code][at[known]] == code[known]
    place = np.arange(len(code))
    place[loose & known] = by_code[at[loose & known]]
    order = np.lexsort((place, block))
    return code[order[(known | ~loose)[order]]]


def alone(order: Ints) -> Ints:
    """Return an order with what one range did in the sequence of the microbatches."""
    return order & ((1 << _LOOSE) - 1)


def _split(microbatch: Ints, split: Ints) -> Ints:
    """Return one number for each (microbatch, sequence split); -1 where it is not told."""
    parts = int(split.max(initial=0)) + 1
    return np.where(microbatch >= 0, microbatch * parts + np.maximum(split, 0), -1)


def _in_turn(cell: Ints, chunk: Ints) -> Ints:
    """Return chunks numbered in the order in which each cell comes to them."""
    if not len(chunk) or (chunk == chunk[0]).all():
        return np.zeros(len(chunk), np.int64)
    groups = groups_of(cell, chunk)
    order = np.argsort(groups.first)
    first_of_cell = np.flatnonzero(np.diff(cell[groups.first[order]], prepend=-1))
    turn = places_in(order)
    base = np.zeros(len(groups), np.int64)
    base[first_of_cell] = first_of_cell
    return (turn - np.maximum.accumulate(base)[turn])[groups.of_row]


def _from_zero(
    iteration: Ints, cell: Ints, chunk: Ints, kind: Ints, number: Ints, known: Bools
) -> Ints:
    """Return microbatches that count from 0 in each iteration; 0 where they are not told.

    The last rank of PyTorch's single-stage 1F1B numbers its forwards 1 to m and its backwards
    0 to m-1: forwards as many as the backwards that begin elsewhere are moved there.
    """
    if not known.any():
        return np.zeros(len(number), np.int64)
    chunks = int(chunk.max()) + 1
    group, count = cell * chunks + chunk, (int(cell[-1]) + 1) * chunks
    if count > 4 * len(number):
        groups = groups_of(cell, chunk)
        group, count = groups.of_row, len(groups)
    ahead = np.zeros(count, np.int64)
    bounds = []
    for of_kind in (FORWARD, BACKWARD):
        chosen = known & (kind == of_kind)
        low, high = np.full(count, _NUMBER, np.int64), np.full(count, -1, np.int64)
        np.minimum.at(low, group[chosen], number[chosen])
        np.maximum.at(high, group[chosen], number[chosen])
        bounds.append((low, high))
    (low_f, high_f), (low_b, high_b) = bounds
    slipped = (high_f >= 0) & (high_b >= 0) & (high_f - low_f == high_b - low_b)
    ahead[slipped] = (low_f - low_b)[slipped]
    number = np.where(known & (kind == FORWARD), number - ahead[group], number)
    worked = (high_f >= 0) & (high_b >= 0)
    forwards = np.bincount(group[known & (kind == FORWARD)], minlength=count)[worked]
    low, high = low_b[worked], high_b[worked]
    plain = (
        len(low) > 0
        and bool((low == low[0]).all() and (high == high[0]).all())
        and bool((forwards == high - low + 1).all())
        and bool((number[known] >= low[0]).all() and (number[known] <= high[0]).all())
    )
    if plain:
        return np.where(known, number - low[0], 0)
    return _counted(iteration, group, number, known)


def _counted(iteration: Ints, group: Ints, number: Ints, known: Bools) -> Ints:
    """Return each number's place among those of its iteration; a few that are absent have places.

    Where the chunks of an iteration do not share their numbers (the two directions of a
    pipeline that is fed from both ends), it is the place among those of its rank's chunk.
    """
    result = np.zeros(len(number), np.int64)
    rows = np.flatnonzero(known)
    of_iteration = groups_of(iteration[rows], number[rows])
    of_group = groups_of(group[rows], number[rows])
    shared = _places(iteration[rows], of_iteration.first)[of_iteration.of_row]
    own = _places(group[rows], of_group.first)[of_group.of_row]
    sizes = np.bincount(groups_of(iteration[rows]).of_row[of_iteration.first])
    # As many as each chunk usually has: then one numbering holds for all.
    chunk_iteration = groups_of(iteration[rows]).of_row[of_group.first]
    per_chunk = np.unique(group[rows][of_group.first], return_inverse=True)[1]
    counts = np.bincount(per_chunk)
    at = np.zeros(len(counts), np.int64)
    at[per_chunk] = chunk_iteration
    usual = np.array([int(np.median(counts[at == n])) for n in range(len(sizes))])
    alike = (sizes == usual)[groups_of(iteration[rows]).of_row]
    of_row = groups_of(iteration[rows]).of_row
    low, high = group_extents(of_row, len(sizes), number[rows], number[rows])
    whole = _GAPS * (high - low + 1 - sizes) <= sizes
    shared = np.where(whole[of_row], number[rows] - low[of_row], shared)
    result[rows] = np.where(alike, shared, own)
    return result


def _places(column: Ints, first: Ints) -> Ints:
    """Return the place of each group among those that share a value of its leading column."""
    leading = column[first]
    start = np.flatnonzero(np.diff(leading, prepend=leading[:1] - 1))
    base = np.zeros(len(leading), np.int64)
    base[start] = start
    return np.arange(len(leading)) - np.maximum.accumulate(base)


def _distinct(code: Ints, first: Ints, untold: Bools) -> tuple[Ints, tuple[Ints, ...]]:
    """Return the pattern of each cell, and the patterns."""
    seen: dict[bytes, int] = {}
    patterns: list[Ints] = []
    pattern = np.full(len(first), -1, np.int64)
    for number, own in enumerate(np.split(code, first[1:]) if len(first) else []):
        if untold[number]:
            continue
        key = own.tobytes()
        if key not in seen:
            seen[key] = len(patterns)
            patterns.append(_cleared(own))
        pattern[number] = seen[key]
    return pattern, tuple(patterns)


def _cleared(code: Ints) -> Ints:
    """Return the order with a range that clears weight gradients as those that are left.

    In which sequence it ran them is not told; see :func:`settled`.
    """
    clears = np.flatnonzero(kind_of(code) == _CLEARED).tolist()
    pieces, at = [], 0
    done = code[kind_of(code) == WEIGHTS]
    for clear in clears:
        before = code[:clear]
        began = before[kind_of(before) == BACKWARD]
        began = began[chunk_of(began) == chunk_of(code[clear])]
        left = coded(np.full(len(began), WEIGHTS), chunk_of(began), microbatch_of(began))
        left = left[~np.isin(left, done)]
        pieces += [code[at:clear], left + (1 << _LOOSE)]
        done = np.concatenate((done, left))
        at = clear + 1
    return _without_fusion(np.concatenate([*pieces, code[at:]]))


def _without_fusion(code: Ints) -> Ints:
    """Return the codes with every backward as one kind."""
    kind = kind_of(code)
    return np.asarray(code - ((kind - BACKWARD) * (kind == _FUSED) << _KIND), np.int64)
