"""What an iteration is: training or evaluation, whole or cut, and what a rank lacks in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bubbleviz.align.run import Run
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import BACKWARD, COUNTED, WORK, Phase

_FORWARD = (Phase.F, Phase.FB)
_GRADIENT = (Phase.B, Phase.BW, Phase.FB)


@dataclass(frozen=True)
class Nature:
    """One iteration.

    Attributes:
        kind: ``"training"`` or ``"evaluation"``.
        complete: whether the capture holds all of it.
        stepped: whether every rank ran its Optimizer, of those that usually do.
        ranks_missing: whether ranks that train in other iterations are not in it.
        microbatches: how many; None where names do not tell.
        missing: what each rank lacks to have a ratio, None where nothing.
    """

    kind: str
    complete: bool
    stepped: bool
    ranks_missing: bool
    microbatches: int | None
    missing: Mapping[int, str | None]


@dataclass(frozen=True)
class _Found:
    """One rank in one iteration.

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


def natures(run: Run, present: Bools) -> tuple[Nature, ...]:
    """Return what each iteration is.

    Args:
        run: the profiles put together.
        present: which ranks take part, shape (iterations, ranks).
    """
    found = _all_found(run.operations, present)
    training = [k for k, ranks in enumerate(found) if any(f.backward for f in ranks.values())]
    usual = {rank for k in training for rank in found[k]}
    stepping = _stepping(found, training)
    whole = _whole(found)
    result = []
    for k, ranks in enumerate(found):
        forwards = Counter(frozenset(f.forwards) for f in ranks.values())
        known = [len(f.forwards) for f in ranks.values() if NONE not in f.forwards and f.forwards]
        evaluation = False
        everyone = set(ranks) == usual or not training
        if k in training:
            complete = everyone and all(whole[k, rank] for rank in ranks)
        else:
            # What a capture cut off after some forwards may have become training.
            same = len(forwards) == 1 and everyone and bool(ranks)
            complete = same and not any(f.cut for f in ranks.values())
            evaluation = same or k < len(found) - 1 or not training
        result.append(
            Nature(
                kind="evaluation" if evaluation else "training",
                complete=complete,
                stepped=k not in training
                or all(
                    not f.step_cut and (f.optimizer or rank not in stepping)
                    for rank, f in ranks.items()
                ),
                ranks_missing=k in training and not everyone,
                microbatches=max(known) if known else None,
                missing={rank: None if evaluation else f.lacks for rank, f in ranks.items()},
            )
        )
    return tuple(result)


def _whole(found: list[dict[int, _Found]]) -> dict[tuple[int, int], bool]:
    """Return whether each rank's part of each training iteration is all in the capture.

    Where ranges never mark the backward of a rank (DeepSpeed's inner stages), what follows an
    iteration tells that it ended.
    """
    marked = {rank for ranks in found for rank, f in ranks.items() if f.backward}
    latest = {rank: k for k, ranks in enumerate(found) for rank in ranks}
    return {
        (k, rank): f.begins
        and not f.cut
        and (f.settled or (rank not in marked and (f.optimizer or k < latest[rank])))
        for k, ranks in enumerate(found)
        for rank, f in ranks.items()
    }


def _stepping(found: list[dict[int, _Found]], training: list[int]) -> set[int]:
    """Return the ranks that run an Optimizer in most training iterations."""
    runs, steps = Counter[int](), Counter[int]()
    for k in training:
        runs.update(list(found[k]))
        steps.update(rank for rank, f in found[k].items() if f.optimizer)
    return {rank for rank in runs if 2 * steps[rank] > runs[rank]}


def _all_found(operations: Operations, present: Bools) -> list[dict[int, _Found]]:
    rows = np.flatnonzero(operations.iteration >= 0)
    rows = rows[
        np.lexsort(
            (operations.host_start_ns[rows], operations.rank[rows], operations.iteration[rows])
        )
    ]
    cell = operations.iteration[rows] * present.shape[1] + operations.rank[rows]
    cells, first = np.unique(cell, return_index=True)
    found: list[dict[int, _Found]] = [{} for _ in range(len(present))]
    if len(rows) == 0:
        return found
    for code, own in zip(cells.tolist(), np.split(rows, first[1:]), strict=True):
        k, rank = divmod(code, present.shape[1])
        if present[k, rank]:
            found[k][rank] = _look(operations, own)
    return found


def _look(operations: Operations, rows: Ints) -> _Found:
    """Look at one rank's operations of one iteration, in host order."""
    phase, microbatch = operations.phase[rows], operations.microbatch[rows]
    chunk, split = operations.chunk[rows], operations.sequence[rows]
    spanned = operations.has_span[rows] == 1
    counted = np.flatnonzero(np.isin(phase, COUNTED) & (microbatch >= 0))
    forward, gradient = np.isin(phase, _FORWARD), np.isin(phase, _GRADIENT)
    starts_whole = len(counted) == 0 or bool(
        forward[counted[0]] and microbatch[counted[0]] == microbatch[counted].min()
    )
    owed = _keys(microbatch, chunk, split, forward)
    second = phase == Phase.FB
    settled = _keys(microbatch, chunk, split, gradient & ~second) | _keys(
        operations.second_microbatch[rows], operations.second_chunk[rows], split, second
    )
    input_only = _keys(microbatch, chunk, split, phase == Phase.B)
    weights = _keys(microbatch, chunk, split, phase == Phase.W)
    clears = {c for m, c, _ in weights if m == NONE}
    unsettled = {key for key in input_only - weights if not {key[1], NONE} & clears}
    cut = operations.cut[rows] > 0
    optimizer = phase == Phase.OPTIMIZER
    lacks = None
    if not (forward & spanned).any():
        lacks = "no F with GPU work"
    elif not (gradient & spanned).any():
        lacks = "no B or BW with GPU work"
    return _Found(
        forwards=frozenset(microbatch[forward].tolist()),
        begins=starts_whole,
        settled=owed <= settled and not unsettled,
        cut=bool((cut & np.isin(phase, WORK)).any()),
        lacks=lacks,
        backward=bool((np.isin(phase, BACKWARD) | second).any()),
        optimizer=bool(optimizer.any()),
        step_cut=bool((cut & optimizer).any()),
    )


def _keys(microbatch: Ints, chunk: Ints, split: Ints, which: Bools) -> set[tuple[int, int, int]]:
    columns = (microbatch[which].tolist(), chunk[which].tolist(), split[which].tolist())
    return set(zip(*columns, strict=True))
