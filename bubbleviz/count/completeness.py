"""Completeness: each iteration's kind, whether it was cut off, and what work each rank lacks.

Tables have the shape (iterations, ranks). A cell is one iteration of one rank. In this module,
cells are numbered ``rank * iterations + iteration``, which matches the order of operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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
#: Multiplier of a hash function. An odd multiplier with half of its bits set spreads numbers over
#: 64 bits.
_MIX = 0x9E3779B97F4A7C15
_GRADIENT = (Phase.B, Phase.BW, Phase.FB)
#: Work that a rank may lack for a bubble ratio. The index is the code. Code 0 means that nothing is
#: missing.
LACKS = (None, "no F with GPU work", "no backward with GPU work")


@dataclass(frozen=True)
class IterationStatuses:
    """The kind and completeness of iterations. Columns have the shape (iterations,) unless noted.

    Attributes:
        kind: ``"training"``, ``"evaluation"`` or ``"inference"``. An iteration without backwards is
            ``"inference"`` if no iteration of the run trains.
        complete: Whether the capture contains the whole iteration.
        stepped: Whether every rank that usually runs an Optimizer ran it to the end.
        ranks_missing: Whether any rank that takes part in other training iterations is missing.
        microbatches: Number of microbatches, or None if the names contain no microbatch numbers.
        missing: Work that each rank lacks for computing a ratio, as an index into :data:`LACKS`,
            shape (iterations, ranks).
        unmatched: Whether an F has no B even though its rank continued, so the end of the capture
            does not explain the missing B.
        is_uniform: Whether all ranks ran the same microbatches, and every backward has its F.
        idle: Mask of the ranks that had no forward or backward to run in the training iteration,
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
    """What each rank ran in each iteration, shape (iterations, ranks).

    Entries are undefined unless ``present`` is set.

    Attributes:
        present: Whether the rank takes part in the iteration.
        microbatches: Number of distinct microbatches whose forward the rank ran, or -1 if the name
            of any forward contains no microbatch.
        ran: Hash of this set of microbatches. Equal hashes mean equal sets.
        starts_regularly: Whether the first forward or backward is the F of the smallest microbatch,
            and each F comes before its backward.
        closed: Whether ``starts_regularly`` is False, but every backward has its F, and the first
            Optimizer comes after the last forward.
        settled: Whether every F has its B, and every B that needs a W has a W.
        cut: Whether the end of the capture cut off an operation whose phase is in ``WORK``.
        lacks: Work that the rank lacks for computing a ratio, as an index into :data:`LACKS`.
        backward: Whether the rank ran a B, W, BW, R or FB.
        optimizer: Whether the rank ran an Optimizer.
        step_cut: Whether the end of the capture cut off an Optimizer.
        without_forward: Number of passes with a backward, or with a W that has a microbatch, but
            without a preceding F.
        is_resumed: Whether the iteration is the first one after a pause between captures. All
            entries of an iteration are equal.
    """

    present: Bools
    microbatches: Ints
    ran: Ints
    starts_regularly: Bools
    closed: Bools
    settled: Bools
    cut: Bools
    lacks: Ints
    backward: Bools
    optimizer: Bools
    step_cut: Bools
    without_forward: Ints
    is_resumed: Bools

    @property
    def has_beginning(self) -> Bools:
        """Whether the capture contains the beginning of the rank's part of the iteration.

        The part must meet one of the following conditions:

        - The rank starts with the F of the smallest microbatch (``starts_regularly``).
        - The part is ``closed``, and an earlier iteration of the rank in the same capture contains
          an Optimizer.
        - The part is ``closed``, and no cell has more microbatches. If the capture had cut off only
          a forward, the part would not be closed. If it had cut off complete passes, microbatches
          would be missing.

        Without Optimizers, a repeated forward ends an iteration. The remainder of a cut iteration
        may then be merged with the start of the next iteration::

            cut  F2 B2 F3 B3 F0 B0 F1 B1  F2 B2 ...

        The backwards of forwards that were cut off then have no F. Forward passes can also be
        missing from the names, but then they are missing in every iteration. A capture that starts
        late truncates only its first iteration. Therefore, up to the first Optimizer of a rank in a
        capture, ``without_forward`` must not exceed the rank's second largest value, or its
        (n + 1)-th largest if there are n captures. Only iterations with a backward that meet a
        condition above are compared.
        """
        has_maximum = self.microbatches == self.microbatches.max(initial=NONE)
        has_stepped = self.mask_later(self.optimizer)
        is_regular = self.starts_regularly | (self.closed & (has_stepped | has_maximum))
        n_lacking = np.where(is_regular & self.backward, self.without_forward, 0)
        # At least one more iteration than there are captures has this number or more.
        n_compared = 2 + int(self.is_resumed.any(axis=1).sum())
        usual = np.sort(n_lacking, axis=0)[-n_compared] if len(n_lacking) >= n_compared else 0
        return np.asarray(is_regular & (has_stepped | (self.without_forward <= usual)), bool)

    @property
    def later(self) -> Bools:
        """Whether the rank takes part in any later iteration of the same capture."""
        is_last = np.roll(self.is_resumed, -1, axis=0)
        return _mask_later(self.present[::-1], is_last[::-1])[::-1]

    def mask_later(self, flags: Bools) -> Bools:
        """Return a mask of the cells after the first flagged iteration of each rank and capture."""
        return _mask_later(flags, self.is_resumed)


def _mask_later(flags: Bools, is_first: Bools) -> Bools:
    """Return a mask of the cells after the first flagged iteration of each rank and capture.

    Args:
        flags: Flags of shape (iterations, ranks).
        is_first: Mask of the iterations that start a capture, shape (iterations, ranks). The first
            iteration always starts one.
    """
    n_before: Ints = np.cumsum(flags, axis=0) - flags
    n_before_capture = np.maximum.accumulate(np.where(is_first, n_before, 0), axis=0)
    return np.asarray(n_before > n_before_capture, bool)


def find_idle_ranks(
    present: Bools, is_whole: Bools, can_idle: Bools, is_recorded: Bools, is_resumed: Bools
) -> Bools:
    """Return a mask of the ranks that had nothing to run in each iteration.

    A vision encoder, for example, has no forward in a step that contains only text samples. A rank
    that works in other iterations is idle only if it is certain that the capture did not cut off
    its work. This is certain in two cases:

    - The recording of the rank covers the iteration (``is_recorded``).
    - The rank works before and after the iteration in the same capture, and all iterations from its
      nearest earlier working iteration to its nearest later one are complete.

    ::

        stage 0   F0 B0                Optimizer   F0 B0     idle in the second iteration
        stage 1   F0 B0   F0 B0        Optimizer   F0 B0

    An iteration is complete if the capture cut off no rank in it and all missing ranks are idle.
    Because this depends on the result, candidates are removed from the mask until nothing changes.

    Args:
        present: Mask of the ranks that work in each iteration, shape (iterations, ranks). All
            iterations are training iterations.
        is_whole: Mask of the iterations in which the capture cut off no working rank, shape
            (iterations,).
        can_idle: Mask of the ranks that may have had nothing to run, shape (iterations, ranks).
        is_recorded: Mask of the ranks whose recording starts before the iteration and contains the
            iteration's Optimizer, shape (iterations, ranks).
        is_resumed: Mask of the iterations before which a pause between captures ends, shape
            (iterations,).

    Returns:
        Mask of the idle ranks, shape (iterations, ranks).
    """
    works_around, first, last = _find_surrounding_iterations(present)
    n_pauses = np.cumsum(is_resumed)
    works_around &= n_pauses[first] == n_pauses[last]
    lacks = ~present & present.any(axis=0)
    is_idle = lacks & can_idle & is_whole[:, None]
    # If a rank is not proven idle, its iteration is incomplete, which may invalidate the proof for
    # adjacent iterations. Every round except the last one removes at least one candidate.
    while True:
        is_complete = is_whole & ~(lacks & ~is_idle).any(axis=1)
        n_incomplete = np.cumsum(~is_complete)
        is_between = works_around & is_complete[first] & (n_incomplete[first] == n_incomplete[last])
        remaining = is_idle & (is_between | is_recorded)
        if np.array_equal(remaining, is_idle):
            return is_idle
        is_idle = remaining


def _find_surrounding_iterations(present: Bools) -> tuple[Bools, Ints, Ints]:
    """Find each rank's nearest working iterations before and after each iteration.

    Args:
        present: Mask of the ranks that work in each iteration, shape (iterations, ranks).

    Returns:
        works_around: Mask of the cells for which both results exist, shape (iterations, ranks).
        first: This iteration if the rank works in it, or else the nearest earlier working
            iteration, or 0 if there is none.
        last: This iteration if the rank works in it, or else the nearest later working iteration,
            or the last iteration if there is none.
    """
    row, count = np.arange(len(present))[:, None], len(present)
    previous = np.maximum.accumulate(np.where(present, row, NONE), axis=0)
    following = np.minimum.accumulate(np.where(present, row, count)[::-1], axis=0)[::-1]
    works_around = (previous >= 0) & (following < count)
    return works_around, np.maximum(previous, 0), np.minimum(following, count - 1)


def classify_iterations(
    ran: Evidence, phase: Ints, can_idle: Bools, is_recorded: Bools
) -> IterationStatuses:
    """Determine the kind and completeness of each iteration.

    If the run is inference (see :func:`~bubbleviz.model.run_kinds.run_kind`), all iterations are
    inference. Otherwise, the rules of :func:`_classify_training` apply.

    Args:
        ran: Evidence of what each rank ran in each iteration.
        phase: Phase of each operation in the run.
        can_idle: See :func:`find_idle_ranks`.
        is_recorded: See :func:`find_idle_ranks`.
    """
    trains = np.asarray(ran.backward.any(axis=1))
    has_stepped = _mask_stepped_cells(ran, trains)
    is_whole = _find_whole_parts(ran)
    idle = _find_idle_in_training(ran, trains, is_whole, can_idle, is_recorded)
    everyone = ran.present[trains].any(axis=0)
    all_present = ((ran.present | idle) == everyone).all(axis=1) | ~trains.any()
    if run_kind(phase) == INFERENCE:
        kind, complete = np.full(len(trains), INFERENCE), _find_complete_inference(ran)
        trains = np.zeros(len(trains), bool)
    else:
        kind, complete = _classify_training(ran, trains, is_whole, np.asarray(all_present))
    # If a rank continued, the end of the capture does not explain a missing backward.
    has_continued = ran.present & (ran.optimizer | ran.later)
    is_unmatched = has_continued & ran.backward & ~(ran.settled | ran.cut | ran.step_cut)
    is_matched = (ran.present & (ran.without_forward == 0)) | idle
    n_microbatches = ran.microbatches.max(1, initial=0).tolist()
    return IterationStatuses(
        kind=tuple(kind.tolist()),
        complete=complete,
        stepped=~trains | has_stepped.all(axis=1),
        ranks_missing=trains & ~all_present,
        microbatches=tuple(n if n > 0 else None for n in n_microbatches),
        missing=np.where((kind == TRAINING)[:, None] & ~idle, ran.lacks, 0),
        unmatched=trains & is_unmatched.any(axis=1),
        is_uniform=_mask_uniform_iterations(ran) & is_matched.all(axis=1),
        idle=idle,
    )


def _find_complete_inference(ran: Evidence) -> Bools:
    """Return a mask of the complete iterations of a forward-only run.

    An iteration is complete if all ranks in the run take part and ran the same microbatches, and if
    the end of the capture cut off none of its operations. If every capture has only one iteration,
    all iterations are complete, because each represents a whole capture.
    """
    all_present = (ran.present == ran.present.any(axis=0)).all(axis=1)
    is_complete = all_present & _mask_uniform_iterations(ran) & ~ran.cut.any(axis=1)
    return np.asarray(is_complete | ran.is_resumed[1:].all(), bool)


def _classify_training(
    ran: Evidence, trains: Bools, is_whole: Bools, all_present: Bools
) -> tuple[npt.NDArray[np.str_], Bools]:
    """Determine the kind of each iteration in a training run, and whether it is complete.

    An iteration without a backward is an evaluation. The exception is the last iteration of a run
    with backwards, if ranks are missing or the ranks did not run the same microbatches. In this
    case, the kind is training, because the capture may have cut off a training iteration. The same
    applies to the last iteration of each capture.

    - An iteration with backwards is complete if all ranks take part or are idle, and if the part of
      each rank is whole (``is_whole``).
    - An iteration without backwards is complete if all ranks take part and ran the same
      microbatches, and if the capture cut off no forward at its start or end.

    Args:
        ran: Evidence of what each rank ran in each iteration.
        trains: Mask of the iterations that contain a backward.
        is_whole: Mask of the cells that lie entirely within the capture; see
            :func:`_find_whole_parts`.
        all_present: Mask of the iterations in which all ranks take part or are idle.

    Returns:
        kind: ``"training"`` or ``"evaluation"`` for each iteration.
        complete: Mask of the complete iterations.
    """
    all_ran = all_present & _mask_uniform_iterations(ran)
    # Forwards at the end of a capture may be the start of a training iteration.
    is_first = np.asarray(ran.is_resumed.any(axis=1), bool)
    is_last = np.append(is_first, True)[1:]
    is_evaluation = ~trains & (all_ran | ~is_last | ~trains.any())
    kind = np.where(is_evaluation, EVALUATION, TRAINING)
    # The capture may have cut off a rank's first forwards.
    has_start = ran.starts_regularly | ran.mask_later(ran.present)
    all_forwards = ((~ran.cut & has_start) | ~ran.present).all(axis=1)
    complete = np.where(trains, all_present & is_whole.all(axis=1), all_ran & all_forwards)
    return kind, complete


def _mask_uniform_iterations(ran: Evidence) -> Bools:
    """Return a mask of the iterations in which all present ranks ran the same microbatches.

    Iterations without ranks are excluded from the mask.
    """
    lowest = np.iinfo(np.int64).min
    largest = np.where(ran.present, ran.ran, lowest).max(axis=1, initial=NONE)
    is_equal = (ran.ran == largest[:, None]) | ~ran.present
    return np.asarray(is_equal.all(axis=1) & ran.present.any(axis=1), bool)


def _find_whole_parts(ran: Evidence) -> Bools:
    """Return a mask of the training cells that lie entirely within the capture.

    A cell is complete if all of the following conditions hold:

    - The capture contains its start (:attr:`Evidence.has_beginning`).
    - The end of the capture cut off no operation.
    - Every F has its B, and every B has its W. DeepSpeed's inner stages, for example, have no range
      that marks a backward in any iteration. On such ranks, an Optimizer or a later iteration must
      instead show that the iteration ended.

    Cells of ranks that are not present are included in the mask.
    """
    has_ended = ~ran.backward.any(axis=0) & (ran.optimizer | ran.later)
    is_whole = ran.has_beginning & ~ran.cut & (ran.settled | has_ended)
    return np.asarray(is_whole | ~ran.present, bool)


def _find_idle_in_training(
    ran: Evidence, trains: Bools, is_whole: Bools, can_idle: Bools, is_recorded: Bools
) -> Bools:
    """Return a mask of the ranks that had nothing to run in training iterations.

    The mask has the shape (iterations, ranks). If the same ranks ran in all training iterations,
    the mask is all False.

    Args:
        ran: Evidence of what each rank ran in each iteration.
        trains: Mask of the training iterations.
        is_whole: Mask of the cells that lie entirely within the capture; see
            :func:`_find_whole_parts`.
        can_idle: See :func:`find_idle_ranks`.
        is_recorded: See :func:`find_idle_ranks`.
    """
    idle = np.zeros_like(ran.present)
    present = ran.present[trains]
    if (present != present.any(axis=0)).any():
        all_whole = np.asarray(is_whole[trains].all(axis=1), bool)
        n_pauses = np.cumsum(ran.is_resumed.any(axis=1))[trains]
        is_resumed = np.diff(n_pauses, prepend=0) > 0
        idle[trains] = find_idle_ranks(
            present, all_whole, can_idle[trains], is_recorded[trains], is_resumed
        )
    return idle


def _mask_stepped_cells(ran: Evidence, trains: Bools) -> Bools:
    """Return a mask of the cells whose Optimizer either ran to its end or was not expected to run.

    A rank's Optimizer is expected if it runs in more than half of the training iterations in which
    the rank takes part. Cells of ranks that are not present are included in the mask.

    Args:
        ran: Evidence of what each rank ran in each iteration.
        trains: Mask of the training iterations.
    """
    n_steps = (ran.optimizer & ran.present)[trains].sum(axis=0)
    is_expected = 2 * n_steps > ran.present[trains].sum(axis=0)
    has_stepped = ~ran.step_cut & (ran.optimizer | ~is_expected)
    return np.asarray(has_stepped | ~ran.present, bool)


def collect_evidence(operations: Operations, present: Bools) -> Evidence:
    """Summarize what each rank ran in each iteration, as evidence of whether it is complete.

    Operations of ranks that are not present in their iteration are ignored.

    Args:
        operations: Operations of the ranks, sorted by (rank, start).
        present: Mask of the ranks that take part in each iteration, shape (iterations, ranks).
    """
    operations, cell = _sort_by_cell(operations, present)
    first_of_cell = find_run_starts(cell)

    def to_table(column: Ints | Bools) -> Any:
        """Reshape a column with one entry per cell into a table of shape (iterations, ranks)."""
        return column.reshape(present.shape[::-1]).T

    def mask_any(is_flagged: Bools) -> Bools:
        """Return a mask of the cells with any flagged operations, shape (iterations, ranks)."""
        has_any = np.zeros(present.size, bool)
        if is_flagged.any():
            has_any[cell[first_of_cell]] = np.logical_or.reduceat(is_flagged, first_of_cell)
        return np.asarray(to_table(has_any), bool)

    phase, has_span = operations.phase, operations.has_span == 1
    is_forward, is_optimizer = mask_phases(phase, FORWARDS), phase == Phase.OPTIMIZER
    microbatches, ran = _count_microbatches(
        operations.microbatch[is_forward], cell[is_forward], present.size
    )
    unpaired = _find_unpaired_operations(operations, cell, is_forward)
    without_forward = np.bincount(unpaired.cell_without_forward, minlength=present.size)
    starts_regularly = _find_regular_starts(operations, cell, present.size)
    starts_regularly[unpaired.cell_with_late_forward] = False
    closed = ~starts_regularly & (without_forward == 0)
    if closed.any():
        closed &= _find_with_final_step(cell, is_forward, is_optimizer, present.size)
    return Evidence(
        present=present,
        microbatches=to_table(microbatches),
        ran=to_table(ran),
        starts_regularly=to_table(starts_regularly),
        closed=to_table(closed),
        settled=~mask_any(unpaired.is_unsettled),
        cut=mask_any((operations.cut > 0) & mask_phases(phase, WORK)),
        lacks=_find_lacking_pass(
            has_forward=mask_any(has_span & is_forward),
            # A stage whose input needs no gradient runs its entire backward in W.
            has_gradient=mask_any(has_span & mask_phases(phase, (*_GRADIENT, Phase.W))),
        ),
        backward=mask_any(mask_phases(phase, (*BACKWARD, Phase.FB))),
        optimizer=mask_any(is_optimizer),
        step_cut=mask_any((operations.cut > 0) & is_optimizer),
        without_forward=to_table(without_forward),
        is_resumed=np.zeros_like(present),
    )


def _find_lacking_pass(*, has_forward: Bools, has_gradient: Bools) -> Ints:
    """Return the pass that each cell lacks; see :attr:`Evidence.lacks`."""
    return np.where(has_forward, np.where(has_gradient, 0, 2), 1)


def _sort_by_cell(operations: Operations, present: Bools) -> tuple[Operations, Ints]:
    """Return the operations in present cells, sorted by (cell, host start).

    A cell is an iteration of a rank. A cell is present if the rank takes part in the iteration.

    Args:
        operations: Operations of the ranks, sorted by (rank, start).
        present: Mask of the ranks that take part in each iteration, shape (iterations, ranks).

    Returns:
        operations: The sorted operations from present cells.
        cell: Cell to which each sorted operation belongs.
    """
    cell = operations.rank * len(present) + operations.iteration
    if operations.iteration.min(initial=0) < 0 or not present.all():
        rows = np.flatnonzero(operations.iteration >= 0)
        rows = rows[present.T.reshape(-1)[cell[rows]]]
        operations, cell = operations.take(rows), cell[rows]
    # Operations usually start on the device in the same order as on the host.
    host_ns = operations.host_start_ns
    is_same_cell = cell[1:] == cell[:-1]
    is_in_order = (cell[1:] > cell[:-1]) | (is_same_cell & (host_ns[1:] >= host_ns[:-1]))
    if not is_in_order.all():
        order = sort_rows(cell, host_ns)
        operations, cell = operations.take(order), cell[order]
    return operations, cell


def _find_with_final_step(
    cell: Ints, is_forward: Bools, is_optimizer: Bools, n_cells: int
) -> Bools:
    """Return a mask of the cells whose first Optimizer comes after their last forward.

    Cells without an Optimizer are excluded from the mask.

    Args:
        cell: Cell of each operation, ascending. Operations of a cell are sorted by host start.
        is_forward: Mask of the forwards.
        is_optimizer: Mask of the Optimizers.
        n_cells: Number of cells.
    """
    steps, forwards = np.flatnonzero(is_optimizer), np.flatnonzero(is_forward)
    first_step, _ = intervals.group_extents(cell[steps], n_cells, steps, steps)
    _, last_forward = intervals.group_extents(cell[forwards], n_cells, forwards, forwards)
    return np.asarray(first_step > np.maximum(last_forward, 0), bool)


def _count_microbatches(microbatch: Ints, cell: Ints, n_cells: int) -> tuple[Ints, Ints]:
    """Count the distinct microbatches in each cell, and hash the set of microbatches.

    Args:
        microbatch: Microbatch of each forward, or -1 if unknown.
        cell: Cell of each forward.
        n_cells: Number of cells.

    Returns:
        count: Number of distinct microbatches in each cell, or -1 if one of them is unknown.
        ran: Sum of the microbatch hashes in each cell. Equal sums mean equal sets.
    """
    cell, microbatch = find_distinct_rows(cell, microbatch)
    count = np.bincount(cell, minlength=n_cells)
    # One is added because the hash of 0 would be 0.
    hashed = (microbatch + 1).astype(np.uint64) * np.uint64(_MIX)
    hashed = (hashed ^ (hashed >> np.uint64(29))) * np.uint64(_MIX)
    # Without the lowest 16 bits, sums of many hashes do not overflow.
    ran = intervals.group_sum(cell, n_cells, (hashed >> np.uint64(16)).astype(np.int64))
    count[cell[microbatch == NONE]] = NONE
    return count, ran


def join_evidence(parts: Sequence[Evidence]) -> Evidence:
    """Join the evidence from all slices of a run along the rank axis."""
    return Evidence(*join_ranks([vars(part) for part in parts]))


def _find_regular_starts(operations: Operations, cell: Ints, n_cells: int) -> Bools:
    """Return a mask of the cells whose first pass is the F of the smallest microbatch.

    Forwards and backwards without a microbatch are ignored. A cell without any other forward or
    backward is included in the mask.

    Args:
        operations: Operations, sorted by (cell, host start).
        cell: Cell of each operation.
        n_cells: Number of cells.
    """
    is_pass = mask_phases(operations.phase, COUNTED) & (operations.microbatch >= 0)
    passes = np.flatnonzero(is_pass)
    microbatch, cell_of_pass = operations.microbatch[passes], cell[passes]
    is_regular = np.ones(n_cells, bool)
    first = find_run_starts(cell_of_pass)
    if len(first):
        is_smallest = microbatch[first] == np.minimum.reduceat(microbatch, first)
        is_forward = mask_phases(operations.phase[passes[first]], FORWARDS)
        is_regular[cell_of_pass[first]] = is_forward & is_smallest
    return is_regular


@dataclass(frozen=True)
class _Passes:
    """Passes of operations: an F, B and W with the same cell, microbatch, chunk and sequence.

    Attributes:
        cell: Cell of each pass.
        of_operation: Index of the pass that contains each operation.
        fused: Rows of the FBs. An FB is the F of one pass and the backward of another.
        of_fused: For each FB in ``fused``, the index of the pass whose backward it runs.
    """

    cell: Ints
    of_operation: Ints
    fused: Ints
    of_fused: Ints


@dataclass(frozen=True)
class _Unpaired:
    """Operations that lack their counterpart.

    Attributes:
        is_unsettled: Mask of the operations that are an F without its B, or a B without its W.
        cell_without_forward: Cells of the passes with a backward, or with a W that has a
            microbatch, but without a preceding F. A cell occurs once per pass.
        cell_with_late_forward: Cells of the passes whose F comes after their backward.
    """

    is_unsettled: Bools
    cell_without_forward: Ints
    cell_with_late_forward: Ints


def _group_passes(operations: Operations, cell: Ints) -> _Passes:
    """Group operations by cell, microbatch, chunk and sequence.

    An FB belongs to two passes: one for its first microbatch and one for its second.

    Args:
        operations: Operations, sorted by (cell, host start).
        cell: Cell of each operation.
    """
    fused = np.flatnonzero(operations.phase == Phase.FB)
    columns = [cell, operations.microbatch, operations.chunk, operations.sequence]
    if len(fused):
        of_fused = (
            cell[fused],
            operations.second_microbatch[fused],
            operations.second_chunk[fused],
            operations.sequence[fused],
        )
        columns = [np.append(*pair) for pair in zip(columns, of_fused, strict=True)]
    passes = group_rows(*columns)
    return _Passes(
        cell=columns[0][passes.first],
        of_operation=passes.of_row[: len(cell)],
        fused=fused,
        of_fused=passes.of_row[len(cell) :],
    )


def _find_unpaired_operations(operations: Operations, cell: Ints, is_forward: Bools) -> _Unpaired:
    """Find forwards without a backward, backwards without a W, and passes without a forward.

    A pass whose first forward comes after its first backward is treated as a pass without a
    forward.

    Args:
        operations: Operations, sorted by (cell, host start).
        cell: Cell of each operation.
        is_forward: Mask of the F and FB operations.
    """
    passes = _group_passes(operations, cell)
    forwards = np.flatnonzero(is_forward)
    first_forward, last_forward = intervals.group_extents(
        passes.of_operation[forwards], len(passes.cell), forwards, forwards
    )
    first_backward, last_backward = _find_backward_extents(operations, passes)
    has_forward, has_backward = last_forward >= 0, last_backward >= 0
    has_weight, owes_weight = _find_weights(operations, cell, passes)
    is_in_order = has_forward & ((first_forward <= first_backward) | ~has_backward)
    lacks_forward = (has_backward | has_weight) & ~is_in_order
    return _Unpaired(
        is_unsettled=owes_weight | (is_forward & ~has_backward[passes.of_operation]),
        cell_without_forward=passes.cell[lacks_forward],
        cell_with_late_forward=passes.cell[has_forward & ~is_in_order],
    )


def _find_backward_extents(operations: Operations, passes: _Passes) -> tuple[Ints, Ints]:
    """Find the rows of each pass's first and last backward.

    Args:
        operations: Operations, sorted by (cell, host start).
        passes: Passes of the operations.

    Returns:
        first: Row of the first backward, or 0 if the pass has none.
        last: Row of the last backward, or -1 if the pass has none.
    """
    backwards = np.flatnonzero(mask_phases(operations.phase, BACKWARDS))
    pass_of_backward = np.append(passes.of_operation[backwards], passes.of_fused)
    backwards = np.append(backwards, passes.fused)
    return intervals.group_extents(pass_of_backward, len(passes.cell), backwards, backwards)


def _find_weights(operations: Operations, cell: Ints, passes: _Passes) -> tuple[Bools, Bools]:
    """Find the passes that have a W with their microbatch, and the B operations without a W.

    A W with a microbatch completes the B of its pass. A W without a microbatch completes every B of
    its cell and chunk. A W without a microbatch or chunk completes every B of its cell.

    Args:
        operations: Operations, sorted by (cell, host start).
        cell: Cell of each operation.
        passes: Passes of the operations.

    Returns:
        has_weight: Mask of the passes that have a W with their microbatch.
        owes_weight: Mask of the B operations that no W completes.
    """
    is_weight, owes_weight = operations.phase == Phase.W, operations.phase == Phase.B
    has_weight = np.zeros(len(passes.cell), bool)
    if not is_weight.any():
        return has_weight, owes_weight
    flushes = is_weight & (operations.microbatch == NONE)
    has_weight[passes.of_operation[is_weight & ~flushes]] = True
    chunk = group_rows(cell, operations.chunk).of_row
    chunk_is_flushed = np.zeros(len(cell), bool)
    chunk_is_flushed[chunk[flushes]] = True
    cell_is_flushed = np.zeros(int(cell.max(initial=NONE)) + 1, bool)
    cell_is_flushed[cell[flushes & (operations.chunk == NONE)]] = True
    is_completed = has_weight[passes.of_operation] | chunk_is_flushed[chunk] | cell_is_flushed[cell]
    return has_weight, owes_weight & ~is_completed
