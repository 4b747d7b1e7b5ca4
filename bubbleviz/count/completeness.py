"""Completeness: training or forward only, whole or cut, and what each rank lacks for a ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.count.rank_slices import join_ranks
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import find_distinct_rows, find_run_starts, group_rows, sort_rows
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import BACKWARD, COUNTED, WORK, Phase
from bubbleviz.model.run_kinds import EVALUATION, INFERENCE, TRAINING, run_kind

FORWARDS = (Phase.F, Phase.FB)
BACKWARDS = (Phase.B, Phase.BW)
#: An odd number whose bits are half ones, which spreads numbers over 64 bits.
_MIX = 0x9E3779B97F4A7C15
_GRADIENT = (Phase.B, Phase.BW, Phase.FB)
#: What a rank may lack to have a ratio, by its code; 0 lacks nothing.
LACKS = (None, "no F with GPU work", "no backward with GPU work")


@dataclass(frozen=True)
class IterationStatuses:
    """Kind and completeness of iterations.

    Attributes:
        kind: ``"training"``; where it only goes forward ``"evaluation"``, or ``"inference"`` if no
            iteration of the run trains.
        complete: whether the capture holds all of it.
        stepped: whether every rank ran its Optimizer, of those that usually do.
        ranks_missing: whether ranks that train in other iterations are not in it.
        microbatches: how many; None where names do not give it.
        missing: what each rank lacks to have a ratio, a place in :data:`LACKS`; shape (iterations,
            ranks).
        unmatched: whether some F has no B though the rank went on, so that no capture cut it.
        is_uniform: whether all ranks ran the same microbatches, and every backward has its F.
        idle: Mask of the ranks that had no forward or backward to run in a complete iteration,
            shape (iterations, ranks).
    """

    kind: tuple[str, ...]
    complete: Bools
    stepped: Bools
    ranks_missing: Bools
    microbatches: tuple[int | None, ...]
    missing: Ints
    unmatched: Bools
    is_uniform: Bools
    idle: Bools


@dataclass(frozen=True)
class Evidence:
    """What ranks ran in iterations; shape (iterations, ranks), nothing where not ``present``.

    Attributes:
        present: whether the rank takes part in the iteration.
        microbatches: how many it ran forward; -1 where names do not give all of them.
        ran: a number of those that it ran, by which other ranks' are the same or not.
        begins: whether its first operation is the smallest microbatch's F, and each F comes before
            its backward.
        closed: whether it begins otherwise, and holds whole passes alone, then its Optimizer.
        settled: whether every F has its B, and every B its W where it owes one.
        cut: whether the end of the capture cut an F, B, W or BW.
        lacks: what it lacks to have a ratio, a place in :data:`LACKS`.
        backward: whether it ran any backward.
        optimizer: whether it ran an Optimizer.
        step_cut: whether the end of the capture cut that.
        without_forward: how many passes have a backward, or a W of a microbatch, and no F before
            it.
    """

    present: Bools
    microbatches: Ints
    ran: Ints
    begins: Bools
    closed: Bools
    settled: Bools
    cut: Bools
    lacks: Ints
    backward: Bools
    optimizer: Bools
    step_cut: Bools
    without_forward: Ints

    @property
    def has_beginning(self) -> Bools:
        """Whether the capture holds the beginning of the rank's part.

        An iteration that begins with another than the smallest microbatch holds whole passes up to
        its Optimizer, after another iteration's, or as many as others ran: no capture leaves the
        backward of a forward that it cuts. Without an Optimizer, where a repeated forward ends
        iterations, what is left of one may stand with the beginning of the next::

            cut  F2 B2 F3 B3 F0 B0 F1 B1  F2 B2 ...

        Up to a rank's first Optimizer no more passes lack their F than in another iteration: what
        names leave out they leave out of all, and a capture cuts the first alone.
        """
        as_many = self.microbatches == self.microbatches.max(initial=NONE)
        stepped = _mask_later(self.optimizer)
        begins = self.begins | (self.closed & (stepped | as_many))
        lacking = np.where(begins & self.backward, self.without_forward, 0)
        # What at least two iterations lack, the names leave out: the second largest number.
        usual = np.sort(lacking, axis=0)[-2] if len(lacking) > 1 else 0
        return np.asarray(begins & (stepped | (self.without_forward <= usual)), bool)

    @property
    def later(self) -> Bools:
        """Whether the rank takes part in a later iteration as well."""
        return _mask_later(self.present[::-1])[::-1]


def _mask_later(flags: Bools) -> Bools:
    """Return whether each rank has a flag in an iteration before; shape (iterations, ranks)."""
    so_far = np.logical_or.accumulate(flags, axis=0)
    return np.concatenate((np.zeros_like(so_far[:1]), so_far[:-1]))


def find_idle_ranks(present: Bools, is_whole: Bools, can_idle: Bools, is_recorded: Bools) -> Bools:
    """Return a mask of the iterations in which ranks had nothing to run.

    A vision encoder, for example, has no forward in a step with text samples only. It must be clear
    that the capture did not cut the work of the rank. This is proven if the recording of the rank
    covers the iteration, or if the rank works before and after the iteration and all iterations in
    between are complete::

        stage 0   F0 B0                Optimizer   F0 B0     idle in the second iteration
        stage 1   F0 B0   F0 B0        Optimizer   F0 B0

    Args:
        present: Mask of the ranks that work in an iteration, shape (iterations, ranks). All
            iterations are training iterations.
        is_whole: Mask of the iterations in which the capture cut no rank that works, shape
            (iterations,).
        can_idle: Mask of the ranks that may have had nothing to run, shape (iterations, ranks).
        is_recorded: Mask of the ranks whose recording starts before the iteration and contains its
            Optimizer, shape (iterations, ranks).

    Returns:
        Mask of the idle ranks, shape (iterations, ranks).
    """
    row, count = np.arange(len(present))[:, None], len(present)
    before = np.maximum.accumulate(np.where(present, row, NONE), axis=0)
    after = np.minimum.accumulate(np.where(present, row, count)[::-1], axis=0)[::-1]
    works_around = (before >= 0) & (after < count)
    first, last = np.maximum(before, 0), np.minimum(after, count - 1)
    lacks = ~present & present.any(axis=0)
    is_idle = lacks & can_idle & is_whole[:, None]
    # If a rank is not proven idle, its iteration is incomplete, which may invalidate the proof for
    # adjacent iterations. Every round but the last removes at least one mark.
    while True:
        is_complete = is_whole & ~(lacks & ~is_idle).any(axis=1)
        n_incomplete = np.cumsum(~is_complete)
        is_between = works_around & is_complete[first] & (n_incomplete[first] == n_incomplete[last])
        remaining = is_idle & (is_between | is_recorded)
        if np.array_equal(remaining, is_idle):
            return is_idle
        is_idle = remaining


def classify_iterations(
    ran: Evidence, phase: Ints, can_idle: Bools, is_recorded: Bools
) -> IterationStatuses:
    """Return the kind and completeness of each iteration.

    Args:
        ran: Evidence on what the ranks ran.
        phase: Phase of each operation.
        can_idle: See :func:`find_idle_ranks`.
        is_recorded: See :func:`find_idle_ranks`.
    """
    present, count = ran.present, len(ran.present)
    trains = np.asarray(ran.backward.any(axis=1))
    everyone = present[trains].any(axis=0)
    # Whether all ranks of an iteration ran the same microbatches.
    largest = np.where(present, ran.ran, np.iinfo(np.int64).min).max(axis=1, initial=NONE)
    ran_most = (ran.ran == largest[:, None]) | ~present
    same = ran_most.all(axis=1) & present.any(axis=1)
    # Whether the capture holds each rank's part of each training iteration. Where ranges never mark
    # the backward of a rank (DeepSpeed's inner stages), the start of its next iteration shows that
    # one ended.
    ended = ~ran.backward.any(axis=0) & (ran.optimizer | ran.later)
    whole = (ran.has_beginning & ~ran.cut & (ran.settled | ended)) | ~present
    idle = np.zeros_like(present)
    if (present[trains] != everyone).any():
        is_whole = np.asarray(whole[trains].all(axis=1), bool)
        idle[trains] = find_idle_ranks(
            present[trains], is_whole, can_idle[trains], is_recorded[trains]
        )
    all_present = np.asarray(((present | idle) == everyone).all(axis=1)) | ~trains.any()
    # Whether every rank ran its Optimizer, of those that do in most training iterations.
    steps = (ran.optimizer & present)[trains].sum(axis=0)
    stepping = 2 * steps > present[trains].sum(axis=0)
    stepped = (~ran.step_cut & (ran.optimizer | ~stepping)) | ~present
    # Whether some rank that went on has a B, and an F without one.
    went_on = present & (ran.optimizer | ran.later)
    unmatched = went_on & ran.backward & ~(ran.settled | ran.cut | ran.step_cut)
    if run_kind(phase) == INFERENCE:
        # A single iteration is the window of the whole recording, wherever that began and ended.
        all_there = (present == present.any(axis=0)).all(axis=1) & same
        kind = np.full(count, INFERENCE)
        complete = (all_there & ~ran.cut.any(axis=1)) | (count == 1)
        trains = np.zeros(count, bool)
    else:
        # Forwards alone at the end of a capture may be the start of a training iteration.
        alike = all_present & same
        settled = alike | (np.arange(count) < count - 1) | ~trains.any()
        kind = np.where(trains | ~settled, TRAINING, EVALUATION)
        # Of forwards alone a capture may lack the first ones of a rank.
        forward = (~ran.cut & (ran.begins | _mask_later(present))) | ~present
        complete = np.where(trains, all_present & whole.all(axis=1), alike & forward.all(axis=1))
    return IterationStatuses(
        kind=tuple(kind.tolist()),
        complete=complete,
        stepped=~trains | stepped.all(axis=1),
        ranks_missing=trains & ~all_present,
        microbatches=tuple(
            n if n > 0 else None for n in ran.microbatches.max(1, initial=0).tolist()
        ),
        missing=np.where((kind == TRAINING)[:, None] & ~idle, ran.lacks, 0),
        unmatched=trains & unmatched.any(axis=1),
        is_uniform=same & ((present & (ran.without_forward == 0)) | idle).all(axis=1),
        idle=idle,
    )


def collect_evidence(operations: Operations, present: Bools) -> Evidence:
    """Return what ranks ran in iterations.

    Args:
        operations: of the ranks.
        present: which ranks take part, shape (iterations, ranks).
    """
    cell = operations.rank * len(present) + operations.iteration
    if operations.iteration.min(initial=0) < 0 or not present.all():
        rows = np.flatnonzero(operations.iteration >= 0)
        rows = rows[present.T.reshape(-1)[cell[rows]]]
        operations, cell = operations.take(rows), cell[rows]
    # Operations come in order of their rank and start: mostly in that of the host as well.
    host_ns = operations.host_start_ns
    is_same_cell = cell[1:] == cell[:-1]
    is_later_on_host = host_ns[1:] >= host_ns[:-1]
    later = (cell[1:] > cell[:-1]) | (is_same_cell & is_later_on_host)
    if not later.all():
        order = sort_rows(cell, host_ns)
        operations, cell = operations.take(order), cell[order]
    shape, first = present.shape[::-1], find_run_starts(cell)

    def any_of(which: Bools) -> Bools:
        found = np.zeros(present.size, bool)
        if which.any():
            found[cell[first]] = np.logical_or.reduceat(which, first)
        return found.reshape(shape).T

    phase, cut, spanned = operations.phase, operations.cut > 0, operations.has_span == 1
    forward, gradient = mask_phases(phase, FORWARDS), mask_phases(phase, _GRADIENT)
    optimizer = phase == Phase.OPTIMIZER
    rows = np.flatnonzero(forward)
    microbatches, ran = _count_microbatches(operations.microbatch[rows], cell[rows], present.size)
    # A stage whose input needs no gradient runs its whole backward in W.
    backward = any_of(spanned & (gradient | (phase == Phase.W)))
    unsettled, without_forward, late = _find_unpaired(operations, cell, forward)
    without_forward = np.bincount(without_forward, minlength=present.size)
    lacks = np.where(backward, 0, 2)
    begins = _find_regular_starts(operations, cell, present.size)
    begins[late] = False
    closed = ~begins & (without_forward == 0)
    if closed.any():
        step = np.flatnonzero(optimizer)
        first_step, _ = intervals.group_extents(cell[step], present.size, step, step)
        _, last_forward = intervals.group_extents(cell[rows], present.size, rows, rows)
        closed &= first_step > np.maximum(last_forward, 0)
    return Evidence(
        present=present,
        microbatches=microbatches.reshape(shape).T,
        ran=ran.reshape(shape).T,
        begins=begins.reshape(shape).T,
        closed=closed.reshape(shape).T,
        settled=~any_of(unsettled),
        cut=any_of(cut & mask_phases(phase, WORK)),
        lacks=np.where(any_of(spanned & forward), lacks, 1),
        backward=any_of(mask_phases(phase, (*BACKWARD, Phase.FB))),
        optimizer=any_of(optimizer),
        step_cut=any_of(cut & optimizer),
        without_forward=without_forward.reshape(shape).T,
    )


def _count_microbatches(microbatch: Ints, cell: Ints, cells: int) -> tuple[Ints, Ints]:
    """Return how many microbatches each cell ran, -1 unknown, and a number of which these are.

    Args:
        microbatch: of forwards; -1 unknown.
        cell: of each.
        cells: how many there are.
    """
    cell, microbatch = find_distinct_rows(cell, microbatch)
    count = np.bincount(cell, minlength=cells)
    # Numbers of several add up; mixed, equal sums are of equal sets.
    # One of 0 would add nothing.
    mixed = (microbatch + 1).astype(np.uint64) * np.uint64(_MIX)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(_MIX)
    ran = intervals.group_sum(cell, cells, (mixed >> np.uint64(16)).astype(np.int64))
    count[cell[microbatch == NONE]] = NONE
    return count, ran


def join_evidence(parts: Sequence[Evidence]) -> Evidence:
    """Return the evidence of all slices of a run, in their order, as one."""
    return Evidence(*join_ranks([vars(part) for part in parts]))


def _find_regular_starts(operations: Operations, cell: Ints, cells: int) -> Bools:
    """Return for each cell whether its first operation is the smallest microbatch's F."""
    counted = np.flatnonzero(mask_phases(operations.phase, COUNTED) & (operations.microbatch >= 0))
    microbatch = operations.microbatch[counted]
    begins = np.ones(cells, bool)
    owner = cell[counted]
    first = np.flatnonzero(np.diff(owner, prepend=NONE))
    if len(first):
        smallest = microbatch[first] == np.minimum.reduceat(microbatch, first)
        begins[owner[first]] = mask_phases(operations.phase[counted[first]], FORWARDS) & smallest
    return begins


def _find_unpaired(operations: Operations, cell: Ints, forward: Bools) -> tuple[Bools, Ints, Ints]:
    """Tell which operations are an F without its B, or a B without the W that it owes.

    And the cell of each pass that has a backward, or a W of a microbatch, and no F before it, and
    of those the ones that have one later. Which operations go forward is given.
    """
    phase, microbatch, chunk = operations.phase, operations.microbatch, operations.chunk
    second = np.flatnonzero(phase == Phase.FB)
    keys: tuple[Ints, ...] = (cell, microbatch, chunk, operations.sequence)
    if len(second):
        # An FB is the F of one microbatch and the backward of another one.
        others = operations.second_microbatch, operations.second_chunk, operations.sequence
        keys = tuple(np.append(k, o[second]) for k, o in zip(keys, (cell, *others), strict=True))
    passes = group_rows(*keys)
    code, of_second = passes.of_row[: len(cell)], passes.of_row[len(cell) :]
    forwards, backwards = np.flatnonzero(forward), np.flatnonzero(mask_phases(phase, BACKWARDS))
    of_backward = np.append(code[backwards], of_second)
    backwards = np.append(backwards, second)
    first, last = intervals.group_extents(code[forwards], len(passes), forwards, forwards)
    back, returned = intervals.group_extents(of_backward, len(passes), backwards, backwards)
    differentiated, paid = returned >= 0, np.zeros(len(passes), bool)
    in_order = (last >= 0) & ((first <= back) | ~differentiated)
    weights, owes = phase == Phase.W, phase == Phase.B
    if weights.any():
        # A W without a microbatch clears all of its chunk, one without a chunk all there are.
        clears = weights & (microbatch == NONE)
        paid[code[weights & ~clears]] = True
        of_chunk = group_rows(cell, chunk).of_row
        chunk_cleared = np.zeros(len(cell), bool)
        cell_cleared = np.zeros(int(cell.max(initial=NONE)) + 1, bool)
        chunk_cleared[of_chunk[clears]] = True
        cell_cleared[cell[clears & (chunk == NONE)]] = True
        owes &= ~paid[code] & ~chunk_cleared[of_chunk] & ~cell_cleared[cell]
    without_forward, late = ((differentiated | paid) & ~in_order), (last >= 0) & ~in_order
    owner = keys[0][passes.first]
    return owes | (forward & ~differentiated[code]), owner[without_forward], owner[late]
