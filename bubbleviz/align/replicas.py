"""Replicas: which ranks share a stage, and which form one pipeline, by when microbatches pass.

Nothing that one rank does with a microbatch starts before the other has passed it on. Each rank has
a clock of its own, but all through an iteration the two differ by one and the same offset::

    upper rank   F0├──┤ F1├──┤ ................ B0├──┤ B1├──┤
    lower rank         F0├───┤ F1├───┤ B0├───┤ B1├───┤

    the latest of (upper F ends - lower F starts) <= offset,
    the earliest of (upper B starts - lower B ends) >= offset, over all microbatches

On one machine the offset is 0. Ranks of two unequally fast pipelines fall behind each other from
microbatch to microbatch, so no offset suits them, though each wait by itself may hold another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bubbleviz.align.offsets import DRIFT, GRAIN_NS
from bubbleviz.align.pipelines import VirtualStages
from bubbleviz.align.stage_order import (
    Orders,
    lack_many,
    orders_of,
    transfers_or_orders_differ,
    usual_orders,
)
from bubbleviz.align.waits import Arrivals, Waits, waits
from bubbleviz.model.columns import NONE, Bools, Ints, marked, scattered
from bubbleviz.model.grouping import distinct, distinct_rows, groups_of, places_in, sorted_rows
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COUNTED, TRANSFERS

#: Less than any time, and as far below what a sum of two of them can hold.
_LONG_AGO = -(1 << 61)
#: So many microbatches are looked at first, and so many pairs of ranks at once.
_LOOKS, _PAIRS = 16, 4096
#: With more replicas than this, the user has to give the sizes of the run: each is compared with
#: each.
MOST_REPLICAS = 4096
#: A span may begin before its input arrives: with so much of its work.
_GIVE = 0.25
#: Which ranks of one stage can form a pipeline with which ones of another.
Fits = Callable[[Ints, Ints], Bools]


@dataclass(frozen=True)
class Timetable:
    """Waits as arrays of shape (ranks, chunks, keys); a key is a microbatch of an iteration.

    Attributes:
        chunks: numbers of the chunks, ascending.
        first: key at which each iteration begins.
        held: whether the rank has the microbatch there and back.
        waited_ns: from the end of F to the start of B.
        entered_ns: when F starts, at the earliest.
        left_ns: when F ends.
        returned_ns: when B starts.
        done_ns: when B ends, at the earliest.
        give_ns: how much earlier than entered, or later than done, a neighbour may still be.
        machine: a number for the clock of each rank.
    """

    chunks: Ints
    first: Ints
    held: Bools
    waited_ns: Ints
    entered_ns: Ints
    left_ns: Ints
    returned_ns: Ints
    done_ns: Ints
    give_ns: Ints
    machine: Ints


def timetable(every: Waits, machine: Ints, *, give: float = 0.0) -> Timetable:
    """Return waits as a timetable.

    Args:
        every: at least one; iterations are the same on all ranks.
        machine: a number for the clock of each rank.
        give: spans may begin before their input arrives: with so much of their work.
    """
    keys = groups_of(every.iteration, every.microbatch, every.sequence)
    chunks = distinct(every.chunk)
    shape = len(machine), len(chunks), len(keys)
    at = every.rank, np.searchsorted(chunks, every.chunk), keys.of_row
    iteration = every.iteration[keys.first]

    def filled(column: Ints) -> Ints:
        table = np.zeros(shape, np.int64)
        table[at] = column
        return table

    held = marked(shape, at)
    # Half of the give is for each way.
    give_ns = give * every.worked_ns / 2
    return Timetable(
        chunks=chunks,
        first=np.flatnonzero(np.append(True, iteration[1:] != iteration[:-1])),
        held=held,
        waited_ns=filled(every.waited_ns),
        entered_ns=filled(every.left_ns - every.forward_ns),
        left_ns=filled(every.left_ns),
        returned_ns=filled(every.left_ns + every.waited_ns),
        done_ns=filled(every.left_ns + every.waited_ns + every.worked_ns - every.forward_ns),
        give_ns=filled(give_ns.astype(np.int64)),
        machine=machine,
    )


def follows(
    table: Timetable, upper: Ints, lower: Ints, chunks: tuple[int, int]
) -> tuple[Bools, Bools]:
    """Return which lower ranks can follow which upper ones, and which surely cannot.

    Neither is true of a pair that has no microbatch in common.

    Args:
        table: the timetable.
        upper: ranks, the rows of the answers.
        lower: ranks, their columns.
        chunks: places of the chunks that they hold of neighbouring virtual stages.
    """
    can = _may_fit(table, upper, lower, chunks)
    # What shows that the others do not fit is a microbatch that they have in common.
    cannot = ~can
    rows, columns = np.nonzero(can)
    for block in range(0, len(rows), _PAIRS):
        row, column = rows[block : block + _PAIRS], columns[block : block + _PAIRS]
        fits, common = _fits(table, upper[row], lower[column], chunks)
        can[row, column] = fits & common
        cannot[row, column] = ~fits & common
    return can, cannot


def _may_fit(table: Timetable, upper: Ints, lower: Ints, chunks: tuple[int, int]) -> Bools:
    """Return the pairs of ranks that some microbatches leave, which are few of those that differ.

    No offset suits a pair of which the lower rank takes longer from its F to the end of its B than
    the upper one waits, for any microbatch.
    """
    above, below = chunks
    fits = np.ones((len(upper), len(lower)), bool)
    give_ns = table.give_ns[lower, below]
    took_ns = table.done_ns[lower, below] - table.entered_ns[lower, below] - 2 * give_ns
    held = table.held[upper, above]
    waited_ns = np.where(held, table.waited_ns[upper, above], 0)
    # At least what counts as grain of any iteration.
    most_ns = waited_ns + (GRAIN_NS + DRIFT * waited_ns.max(axis=1, initial=0))[:, None]
    for key in distinct(np.linspace(0, held.shape[1] - 1, _LOOKS).astype(np.int64)).tolist():
        both = held[:, key, None] & table.held[lower, below, key]
        fits &= ~both | (took_ns[:, key] <= most_ns[:, key, None])
    return fits


def _fits(
    table: Timetable, upper: Ints, lower: Ints, chunks: tuple[int, int]
) -> tuple[Bools, Bools]:
    """Return which pairs of ranks an offset suits, and which have a microbatch in common."""
    above, below = chunks
    give_ns = table.give_ns[lower, below]
    both = table.held[lower, below] & table.held[upper, above]
    entered_ns = table.entered_ns[lower, below] + give_ns
    done_ns = table.done_ns[lower, below] - give_ns
    least = np.where(both, table.left_ns[upper, above] - entered_ns, _LONG_AGO)
    most = np.where(both, table.returned_ns[upper, above] - done_ns, -_LONG_AGO)
    grain = GRAIN_NS + DRIFT * np.where(both, table.waited_ns[upper, above], 0)
    grain = np.maximum.reduceat(grain, table.first, axis=1)
    least = np.maximum.reduceat(least, table.first, axis=1)
    most = np.minimum.reduceat(most, table.first, axis=1)
    fits = least - most <= grain
    one_clock = (table.machine[lower] == table.machine[upper])[:, None]
    fits &= ~one_clock | ((least <= grain) & (most >= -grain))
    return np.asarray(fits.all(axis=1), bool), np.asarray(both.any(axis=1), bool)


def neighbours(table: Timetable, ranks: Ints, others: Ints, held: Ints) -> Bools:
    """Return which ranks of one stage can form a pipeline with which ones of another.

    They are next to each other wherever the virtual stages of these follow each other, in either
    direction, as the second chunks of a V run back. Where ranks between them are missing, none do,
    and microbatches pass from each chunk to the same one of the other rank.

    Args:
        table: when microbatches pass.
        ranks: of one stage, the rows of the answer.
        others: of another one, its columns.
        held: the virtual stage of each chunk of each rank; -1 none.
    """
    fits = np.ones((len(ranks), len(others)), bool)
    pairs = [
        (i, j, stage, other)
        for i, stage in enumerate(held[ranks[0]].tolist())
        for j, other in enumerate(held[others[0]].tolist())
        if min(stage, other) >= 0
    ]
    near = [pair for pair in pairs if abs(pair[2] - pair[3]) == 1]
    for i, j, stage, other in near or [pair for pair in pairs if pair[0] == pair[1]]:
        if stage < other:
            fits &= follows(table, ranks, others, (i, j))[0]
        else:
            fits &= follows(table, others, ranks, (j, i))[0].T
    return fits


# Matching: which replicas of neighbouring stages pass microbatches to each other.


def matched(
    operations: Operations, inputs: Arrivals, stage: Ints, number: Ints, machine: Ints
) -> Ints:
    """Return the pipeline of each rank, or -1 for all ranks if several matchings are possible.

    Args:
        operations: Operations of all ranks with their virtual stages. Their iterations are the
            same on all ranks.
        inputs: Times at which the inputs of operations were available.
        stage: Stage of each rank, or -1 for a rank without forwards and backwards.
        number: Number of each rank, which gives the order of pipelines.
        machine: Machine of each rank. Ranks of one machine share its clock.
    """
    unknown = np.full(len(stage), NONE, np.int64)
    by_number = np.argsort(number)
    stages = [by_number[stage[by_number] == s] for s in distinct(stage[stage >= 0]).tolist()]
    every = _usable(waits(operations, inputs))
    most = max(map(len, stages), default=0)
    if most > MOST_REPLICAS or len(every) == 0 or lack_many([len(own) for own in stages]):
        return unknown
    table = timetable(every, machine)
    held = np.full((len(stage), len(table.chunks)), NONE, np.int64)
    rows = np.flatnonzero(
        among(operations.phase, COUNTED) & np.isin(operations.chunk, table.chunks)
    )
    chunk = np.searchsorted(table.chunks, operations.chunk[rows])
    held[operations.rank[rows], chunk] = operations.virtual_stage[rows]

    def fits(ranks: Ints, others: Ints) -> Bools:
        return neighbours(table, ranks, others, held)

    found = pipelines_of(stages, fits, len(stage))
    return unknown if found is None else found


def _usable(every: Waits) -> Waits:
    return every.take((every.iteration >= 0) & (every.chunk >= 0))


# Chains: the ranks of one pipeline, stage after stage, also where some of them are missing.
#
# From a stage all of whose replicas are there, each chain is continued by the rank of the next
# stage that alone fits. Over a missing rank many fit, since nothing shows how long it took; those
# that are left take the chains that are left, in the order of their numbers, if they fit::
#
#     stage 4   a ── b ── c ── d
#     stage 5   a ── b    .    .      two ranks without a profile
#     stage 6   a ── b ── c ── d      a and b follow theirs, c and d are left


def pipelines_of(stages: Sequence[Ints], fits: Fits, ranks: int) -> Ints | None:
    """Return the pipeline of each rank; -1 for ranks of no stage.

    None where several ranks of a stage can continue one chain, or none can.

    Args:
        stages: the ranks of each stage, in the order of their numbers.
        fits: see there; between stages far apart, the ranks between them are missing.
        ranks: how many there are.
    """
    pipeline = np.full(ranks, NONE, np.int64)
    sizes = [len(own) for own in stages]
    count = max(sizes)
    first = sizes.index(count)
    pipeline[stages[first]] = np.arange(count)
    for others in (stages[first + 1 :], stages[:first][::-1]):
        tips, number = stages[first], pipeline[stages[first]]
        away = np.zeros(len(tips), np.int64)
        for own in others:
            away += 1
            whole = len(own) == sizes[first]
            chain = _continued((tips, away), own, fits, whole=whole)
            if chain is None:
                return None
            # Nothing shows what these continue, so they are chains of their own.
            new = np.flatnonzero(chain < 0)
            chain[new] = len(tips) + np.arange(len(new))
            number = np.append(number, count + np.arange(len(new)))
            tips, away = np.append(tips, own[new]), np.append(away, np.zeros(len(new), np.int64))
            count += len(new)
            tips[chain], away[chain] = own, 0
            pipeline[own] = number[chain]
    return pipeline


def _continued(chains: tuple[Ints, Ints], own: Ints, fits: Fits, *, whole: bool) -> Ints | None:
    """Return the chain that each rank of the next stage continues; -1 none that is known.

    None where that of some rank is one of several.

    Args:
        chains: the last rank of each, and how many stages before this one.
        own: the ranks of the stage, by their numbers.
        fits: which ranks can follow which.
        whole: whether as many are there as of any stage.
    """
    tips, away = chains
    near, gaps = np.flatnonzero(away == 1), np.flatnonzero(away > 1)
    can = fits(tips[near], own) if len(near) else np.zeros((0, len(own)), bool)
    # Over a missing rank, what fits may belong to a chain that ended before.
    row = _near_ones(can, whole=whole, unbroken=len(gaps) == 0)
    if row is None:
        return None
    left = np.flatnonzero(row < 0)
    chain = np.append(near, NONE)[row]
    if len(left) == len(gaps) and _fit_in_order(tips[gaps], away[gaps], own[left], fits):
        chain[left] = gaps
    return chain


def _near_ones(can: Bools, *, whole: bool, unbroken: bool) -> Ints | None:
    """Return the chain near each rank that it continues, -1 none; None where it is one of several.

    Args:
        can: which chains (rows) that reach the stage before, ranks can continue.
        whole: whether each of these goes on.
        unbroken: whether each rank continues one of these.
    """
    row = forced(can, rows_have_one=whole, columns_have_one=unbroken)
    rest = can.copy()
    rest[row[row >= 0]] = False
    if rest[:, row < 0].any() or (whole and np.count_nonzero(row >= 0) < len(can)):
        return None
    return row


def _fit_in_order(tips: Ints, away: Ints, own: Ints, fits: Fits) -> bool:
    """Return whether each rank can follow the tip of its own place, over ranks that are missing."""
    return all(
        bool(fits(tips[away == stages], own[away == stages]).diagonal().all())
        for stages in distinct(away).tolist()
    )


def forced(fits: Bools, *, rows_have_one: bool, columns_have_one: bool) -> Ints:
    """Return the row of each column where no other choice is left; -1 where one is, or no row.

    Args:
        fits: which rows and columns can belong together, each with one at most.
        rows_have_one: whether each row belongs to a column.
        columns_have_one: whether each column belongs to a row. Where neither is known, those
            belong together that fit each other alone.
    """
    of_column: Ints = np.full(fits.shape[1], NONE, np.int64)
    if rows_have_one and not columns_have_one:
        of_row = forced(fits.T, rows_have_one=False, columns_have_one=True)
        rows = np.flatnonzero(of_row >= 0)
        of_column[of_row[rows]] = rows
        return of_column
    fits, choices = fits.copy(), fits.sum(axis=0)
    if not columns_have_one:
        rows, columns = np.nonzero(fits & (fits.sum(axis=1) == 1)[:, None] & (choices == 1))
        of_column[columns] = rows
        return of_column
    # Of columns that have a row each in one way alone, some one has a single choice left.
    while len(single := np.flatnonzero(choices == 1)):
        row = int(fits[:, single[0]].argmax())
        of_column[single[0]] = row
        choices -= fits[row]
        fits[row] = False
    return of_column


# Splits: which ranks share a stage where replicas are unequally fast.
#
# A slow rank makes its whole pipeline wait, so one sort of all waits mixes the pipelines. But:
#
# - replicas of a stage run the same operations in the same order, and the same transfers;
# - where no two of such ranks can follow each other in a pipeline, they are one stage, and as many
#   as there are pipelines;
# - over all replicas together, waits shrink from each stage to the next;
# - ranks of a stage can be paired with those of the next one so that each follows its partner.
#
# Where ranks of several stages run alike (all forwards, then all backwards), they are split by
# their numbers, if that fits in one way only.


def split(
    operations: Operations, inputs: Arrivals, number: Ints, machine: Ints
) -> tuple[VirtualStages, bool] | None:
    """Return the only split into stages and replicas that fits, and whether by ranks' numbers.

    These decide between ranks that run alike. None where there is no such split, where several
    fit, and for a single pipeline.

    Args:
        operations: of all ranks, with iterations that are the same on all of them.
        inputs: when their inputs were there.
        number: of each rank in the run.
        machine: a number for the clock of each rank.
    """
    work = among(operations.phase, COUNTED)
    several = distinct(operations.microbatch[work & (operations.microbatch >= 0)])
    if len(several) < 2:
        return None
    orders = orders_of(operations)
    if not transfers_or_orders_differ(operations, orders):
        return None
    kinds = _kinds(operations, orders, len(machine))
    needed = distinct_rows(operations.rank[work], operations.chunk[work])
    every = _usable(waits(operations, inputs))
    held = distinct_rows(every.rank, every.chunk)
    if not np.array_equal(needed, held) or not needed.shape[1]:
        return None
    return _split(timetable(every, machine, give=_GIVE), kinds, number)


def _kinds(operations: Operations, orders: Orders, ranks: int) -> Ints:
    """Return a number that ranks share which run alike; -1 for those that do not train.

    Alike are the order of operations, and which transfers they name for which chunks.
    """
    kind = np.full(ranks, NONE, np.int64)
    rows = np.flatnonzero(among(operations.phase, TRANSFERS))
    transfers: dict[int, set[tuple[int, int]]] = {}
    columns = distinct_rows(
        *(c[rows] for c in (operations.rank, operations.phase, operations.chunk))
    )
    for rank, phase, chunk in columns.T.tolist():
        transfers.setdefault(rank, set()).add((phase, chunk))
    numbers: dict[tuple[int, frozenset[tuple[int, int]]], int] = {}
    usual = usual_orders(orders, training=True)
    for rank, order in zip(*(column.tolist() for column in usual), strict=True):
        alike = order, frozenset(transfers.get(rank, ()))
        kind[rank] = numbers.setdefault(alike, len(numbers))
    return kind


def _split(table: Timetable, kinds: Ints, number: Ints) -> tuple[VirtualStages, bool] | None:
    """Return the split that a timetable gives; None unknown."""
    ranks = np.flatnonzero(table.held.any(axis=(1, 2)))
    sizes = np.bincount(kinds[ranks] + 1)
    if sizes[0] or len(sizes) < 3:
        return None
    replicas = _replicas(table, kinds)
    if replicas < 2 or (sizes[1:] % replicas).any():
        return None
    if (sizes[1:] == replicas).all():
        stages = _stages(table, ranks, kinds)
        return None if stages is None else (stages, False)
    numbered = _by_numbers(ranks, kinds, number, replicas)
    fitting = [_stages(table, ranks, sharing) for sharing in numbered]
    found = [stages for stages in fitting if stages is not None]
    return (found[0], True) if len(found) == 1 else None


def _replicas(table: Timetable, kinds: Ints) -> int:
    """Return how many pipelines there are; 0 unknown.

    Ranks that run alike hold as many of each stage as there are pipelines. Of a kind none of whose
    ranks can follow another one, there is just one stage.
    """
    found = set()
    for kind in distinct(kinds[kinds >= 0]).tolist():
        alike = np.flatnonzero(kinds == kind)
        if not 2 <= len(alike) <= MOST_REPLICAS:
            continue
        apart = ~np.eye(len(alike), dtype=bool)
        never = np.zeros_like(apart)
        for chunk in range(len(table.chunks)):
            never |= follows(table, alike, alike, (chunk, chunk))[1]
        # A pair of one pipeline follows in every chunk, one way or the other.
        if (never & never.T)[apart].all():
            found.add(len(alike))
    return found.pop() if len(found) == 1 else 0


def _stages(table: Timetable, ranks: Ints, sharing: Ints) -> VirtualStages | None:
    """Return the virtual stages of ranks that share a stage; None where they form no pipelines.

    Args:
        table: when microbatches pass.
        ranks: that take part.
        sharing: a number that ranks of one stage share, equally many each.
    """
    numbers, of_rank = np.unique(sharing[ranks], return_inverse=True)
    members = [ranks[of_rank == stage] for stage in range(len(numbers))]
    # Only what all ranks have of every chunk can be added up.
    common = table.held[ranks].all(axis=(0, 1))
    if not common.any():
        return None
    waited = np.stack([table.waited_ns[own][:, :, common].sum(axis=(0, 2)) for own in members])
    order = sorted_rows(-waited.reshape(-1))
    stage_of = places_in(order).reshape(waited.shape)
    p = len(members)
    blocks = stage_of // p
    if (blocks != blocks[0]).any():
        return None  # each chunk runs through all stages
    held = scattered((len(table.machine), len(table.chunks)), ranks, stage_of[of_rank])
    in_order = (order // len(table.chunks)).tolist()
    for upper, lower in pairwise(in_order):
        if upper == lower:
            continue
        if not _pair_up(neighbours(table, members[upper], members[lower], held)):
            return None
    chunk = np.tile(table.chunks, len(ranks))
    return VirtualStages(np.repeat(ranks, len(table.chunks)), chunk, held[ranks].reshape(-1))


def _by_numbers(ranks: Ints, kinds: Ints, number: Ints, replicas: int) -> list[Ints]:
    """Return the stages by the ranks' numbers, as far as ranks of a stage run alike.

    Frameworks number ranks ``tp + TP (pp + PP dp)``: with TP = 1 pipelines are blocks of ranks,
    with all replicas in TP stages are.
    """
    place = places_in(np.argsort(number[ranks]))
    stages = len(ranks) // replicas
    found = []
    for together in (n for n in range(1, replicas + 1) if replicas % n == 0):
        stage = scattered(len(number), ranks, place // together % stages)
        pairs = groups_of(stage[ranks], kinds[ranks])
        if len(pairs) == stages:
            found.append(stage)
    return found


def _pair_up(fits: Bools) -> bool:
    """Tell whether each row can have a column of its own, of as many, that fits it."""
    # Mostly those in the order of ranks do, and scipy takes 0.1 s to import.
    if fits.diagonal().all():
        return True
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    return bool((maximum_bipartite_matching(csr_array(fits)) >= 0).all())
