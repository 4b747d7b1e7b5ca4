"""Completeness: training or forward only, whole or cut, and what each rank lacks for a ratio."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from bubbleviz.align.run import Run
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import BACKWARD, COUNTED, WORK, Phase
from bubbleviz.model.run_kind import EVALUATION, INFERENCE, TRAINING, run_kind
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen

_FORWARD = (Phase.F, Phase.FB)
_GRADIENT = (Phase.B, Phase.BW, Phase.FB)


@frozen
class IterationStatus:
    """Kind and completeness of one iteration.

    Attributes:
        kind: ``"training"``; where it only goes forward ``"evaluation"``, or ``"inference"`` if no
            iteration of the run trains.
        complete: whether the capture holds all of it.
        stepped: whether every rank ran its Optimizer, of those that usually do.
        ranks_missing: whether ranks that train in other iterations are not in it.
        microbatches: how many; None where names do not give it.
        missing: what each rank lacks to have a ratio, None where nothing.
        unmatched: whether some F has no B though the rank went on, so that no capture cut it.
    """

    kind: str
    complete: bool
    stepped: bool
    ranks_missing: bool
    microbatches: int | None
    missing: Mapping[int, str | None]
    unmatched: bool


@frozen
class _RankEvidence:
    """What one rank ran in one iteration.

    Attributes:
        forwards: microbatches it ran forward.
        begins: whether its first operation is the smallest microbatch's F.
        settled: whether every F has its B, and every B its W where it owes one.
        cut: whether the end of the capture cut an F, B, W or BW.
        lacks: what it lacks to have a ratio.
        backward: whether it ran any backward.
        optimizer: whether it ran an Optimizer.
        step_cut: whether the end of the capture cut that.
    """

    forwards: frozenset[int]
    begins: bool
    settled: bool
    cut: bool
    lacks: str | None
    backward: bool
    optimizer: bool
    step_cut: bool


#: What the ranks of one iteration ran, by rank.
_Ranks = dict[int, _RankEvidence]


@frozen
class _OperationKeys(Table):
    """The columns of operations that show what is complete, as in :class:`.Operations`."""

    phase: Ints
    microbatch: Ints
    chunk: Ints
    sequence: Ints
    second_microbatch: Ints
    second_chunk: Ints
    has_span: Ints
    cut: Ints


def iteration_statuses(run: Run, present: Bools) -> tuple[IterationStatus, ...]:
    """Return the kind and completeness of each iteration.

    Args:
        run: the merged profiles.
        present: which ranks take part, shape (iterations, ranks).
    """
    iterations = _evidence(run.operations, present)
    if run_kind(run.operations.phase) == INFERENCE:
        return _of_inference(iterations)
    training = [k for k, ranks in enumerate(iterations) if _trains(ranks)]
    everyone = {rank for k in training for rank in iterations[k]}
    stepping = _stepping_ranks([iterations[k] for k in training])
    whole = _whole(iterations)
    latest = {rank: k for k, ranks in enumerate(iterations) for rank in ranks}
    statuses = []
    for k, ranks in enumerate(iterations):
        all_present = set(ranks) == everyone or not training
        if k in training:
            complete = all_present and all(whole[k, rank] for rank in ranks)
            status = _training(ranks, stepping, complete, ranks_missing=not all_present)
            went_on = {rank for rank, e in ranks.items() if e.optimizer or k < latest[rank]}
            statuses.append(replace(status, unmatched=_is_unmatched(ranks, went_on)))
        else:
            # Forwards alone at the end of a capture may be the start of a training iteration.
            alike = all_present and _run_same_microbatches(ranks)
            settled = alike or k < len(iterations) - 1 or not training
            complete = alike and not any(rank.cut for rank in ranks.values())
            kind = EVALUATION if settled else TRAINING
            statuses.append(_forwards_only(ranks, complete, kind=kind))
    return tuple(statuses)


def _of_inference(iterations: Sequence[_Ranks]) -> tuple[IterationStatus, ...]:
    """Return the status of iterations of a run that never goes back.

    A single one is the window of the whole recording, wherever that began and ended.
    """
    everyone = {rank for ranks in iterations for rank in ranks}
    statuses = []
    for ranks in iterations:
        whole = set(ranks) == everyone and _run_same_microbatches(ranks)
        whole = whole and not any(rank.cut for rank in ranks.values())
        complete = len(iterations) == 1 or whole
        statuses.append(_forwards_only(ranks, complete, kind=INFERENCE))
    return tuple(statuses)


def _trains(ranks: _Ranks) -> bool:
    return any(rank.backward for rank in ranks.values())


def _is_unmatched(ranks: _Ranks, went_on: set[int]) -> bool:
    """Return whether some rank that went on has a B, and an F without one."""
    return any(
        rank in went_on and e.backward and not (e.settled or e.cut or e.step_cut)
        for rank, e in ranks.items()
    )


def _run_same_microbatches(ranks: _Ranks) -> bool:
    return len({rank.forwards for rank in ranks.values()}) == 1


def _training(
    ranks: _Ranks, stepping: set[int], complete: bool, *, ranks_missing: bool
) -> IterationStatus:
    return IterationStatus(
        kind=TRAINING,
        complete=complete,
        stepped=all(
            not evidence.step_cut and (evidence.optimizer or rank not in stepping)
            for rank, evidence in ranks.items()
        ),
        ranks_missing=ranks_missing,
        microbatches=_microbatches(ranks),
        missing={rank: evidence.lacks for rank, evidence in ranks.items()},
        unmatched=False,
    )


def _forwards_only(ranks: _Ranks, complete: bool, *, kind: str) -> IterationStatus:
    return IterationStatus(
        kind=kind,
        complete=complete,
        stepped=True,
        ranks_missing=False,
        microbatches=_microbatches(ranks),
        missing={
            rank: evidence.lacks if kind == TRAINING else None for rank, evidence in ranks.items()
        },
        unmatched=False,
    )


def _microbatches(ranks: _Ranks) -> int | None:
    """Return the most microbatches that a rank ran forward; None where names give none."""
    forwards = [rank.forwards for rank in ranks.values()]
    return max((len(f) for f in forwards if f and NONE not in f), default=None)


def _whole(iterations: Sequence[_Ranks]) -> dict[tuple[int, int], bool]:
    """Return whether the capture holds each rank's part of each training iteration.

    Where ranges never mark the backward of a rank (DeepSpeed's inner stages), the start of its
    next iteration shows that one ended.
    """
    marked = {rank for ranks in iterations for rank, e in ranks.items() if e.backward}
    latest = {rank: k for k, ranks in enumerate(iterations) for rank in ranks}
    return {
        (k, rank): e.begins
        and not e.cut
        and (e.settled or (rank not in marked and (e.optimizer or k < latest[rank])))
        for k, ranks in enumerate(iterations)
        for rank, e in ranks.items()
    }


def _stepping_ranks(training: Sequence[_Ranks]) -> set[int]:
    """Return the ranks that run an Optimizer in most training iterations."""
    iterations, steps = Counter[int](), Counter[int]()
    for ranks in training:
        iterations.update(list(ranks))
        steps.update(rank for rank, evidence in ranks.items() if evidence.optimizer)
    return {rank for rank in iterations if 2 * steps[rank] > iterations[rank]}


def _evidence(operations: Operations, present: Bools) -> list[_Ranks]:
    """Return the evidence of every iteration, by rank."""
    iterations: list[_Ranks] = [{} for _ in range(len(present))]
    rows = np.flatnonzero(operations.iteration >= 0)
    if len(rows) == 0:
        return iterations
    cell = operations.iteration[rows] * present.shape[1] + operations.rank[rows]
    order = sorted_rows(cell, operations.host_start_ns[rows])
    rows = rows[order]
    keys = _OperationKeys(*(getattr(operations, c)[rows] for c in _OperationKeys.column_names()))
    cells, first, of_cell = np.unique(cell[order], return_index=True, return_inverse=True)
    for code, evidence in zip(cells.tolist(), _evidence_of(keys, of_cell, first), strict=True):
        k, rank = divmod(code, present.shape[1])
        if present[k, rank]:
            iterations[k][rank] = evidence
    return iterations


def _evidence_of(operations: _OperationKeys, cell: Ints, first: Ints) -> Iterator[_RankEvidence]:
    """Yield the evidence of one rank's operations of one iteration after another.

    Args:
        operations: in order of (iteration, rank, host start).
        cell: number of the iteration and rank of each, from 0.
        first: the first operation of each cell.
    """

    def any_of(which: Bools) -> list[bool]:
        found: list[bool] = np.logical_or.reduceat(which, first).tolist()
        return found

    phase, cut, spanned = operations.phase, operations.cut > 0, operations.has_span == 1
    forward, gradient = np.isin(phase, _FORWARD), np.isin(phase, _GRADIENT)
    optimizer = phase == Phase.OPTIMIZER
    columns = zip(
        _microbatch_sets(operations.microbatch[forward], cell[forward], len(first)),
        _begins(operations, cell, len(first)),
        any_of(_unsettled(operations, cell)),
        any_of(cut & np.isin(phase, WORK)),
        any_of(spanned & forward),
        any_of(spanned & gradient),
        any_of(np.isin(phase, (*BACKWARD, Phase.FB))),
        any_of(optimizer),
        any_of(cut & optimizer),
        strict=True,
    )
    for forwards, begins, unsettled, work_cut, ran, differentiated, backward, step, late in columns:
        yield _RankEvidence(
            forwards=forwards,
            begins=begins,
            settled=not unsettled,
            cut=work_cut,
            lacks=_lacking(ran, differentiated),
            backward=backward,
            optimizer=step,
            step_cut=late,
        )


def _microbatch_sets(microbatch: Ints, cell: Ints, cells: int) -> list[frozenset[int]]:
    """Return the microbatches of each cell; ``cell`` ascends."""
    bounds = np.searchsorted(cell, np.arange(cells + 1)).tolist()
    numbers = microbatch.tolist()
    return [frozenset(numbers[low:high]) for low, high in pairwise(bounds)]


def _begins(operations: _OperationKeys, cell: Ints, cells: int) -> list[bool]:
    """Return for each cell whether its first operation is the smallest microbatch's F."""
    counted = np.isin(operations.phase, COUNTED) & (operations.microbatch >= 0)
    microbatch, phase = operations.microbatch[counted], operations.phase[counted]
    begins = np.ones(cells, bool)
    known, first = np.unique(cell[counted], return_index=True)
    if len(known):
        smallest = microbatch[first] == np.minimum.reduceat(microbatch, first)
        begins[known] = np.isin(phase[first], _FORWARD) & smallest
    found: list[bool] = begins.tolist()
    return found


def _unsettled(operations: _OperationKeys, cell: Ints) -> Bools:
    """Tell which operations are an F without its B, or a B without the W that it owes."""
    phase, microbatch, chunk = operations.phase, operations.microbatch, operations.chunk
    second = phase == Phase.FB
    # An FB is the F of one microbatch and the backward of another one.
    code = groups_of(
        np.concatenate((cell, cell[second])),
        np.concatenate((microbatch, operations.second_microbatch[second])),
        np.concatenate((chunk, operations.second_chunk[second])),
        np.concatenate((operations.sequence, operations.sequence[second])),
    ).of_row
    code, of_second = code[: len(cell)], code[len(cell) :]
    differentiated, paid = np.zeros((2, len(cell) + len(of_second)), bool)
    differentiated[code[np.isin(phase, _GRADIENT) & ~second]] = True
    differentiated[of_second] = True
    paid[code[phase == Phase.W]] = True
    # A W without a microbatch clears all of its chunk, one without a chunk all there are.
    clears = (phase == Phase.W) & (microbatch == NONE)
    of_chunk = groups_of(cell, chunk).of_row
    chunk_cleared, cell_cleared = np.zeros((2, len(cell)), bool)
    chunk_cleared[of_chunk[clears]] = True
    cell_cleared[cell[clears & (chunk == NONE)]] = True
    owes = (phase == Phase.B) & ~paid[code] & ~chunk_cleared[of_chunk] & ~cell_cleared[cell]
    return np.asarray(owes | (np.isin(phase, _FORWARD) & ~differentiated[code]))


def _lacking(forward: bool, gradient: bool) -> str | None:
    """Return the reason that a rank has no ratio; None if it has one."""
    if not forward:
        return "no F with GPU work"
    return None if gradient else "no B or BW with GPU work"
