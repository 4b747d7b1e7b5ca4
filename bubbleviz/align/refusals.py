"""Refusals: profiles that are of no single run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from bubbleviz.align.merge import JoinedRecordings
from bubbleviz.align.waits import forward_and_backward
from bubbleviz.errors import MismatchError
from bubbleviz.interpret.recording import Recording
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.grouping import distinct_rows, first_of_each, groups_of
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import Phase
from bubbleviz.model.profile import pid_of


def refuse_other_runs(
    recordings: Sequence[Recording], machines: Sequence[str], joined: JoinedRecordings
) -> None:
    """Refuse recordings that are of no one run.

    Args:
        recordings: one a profile.
        machines: on which each was made.
        joined: all of them.

    Raises:
        MismatchError: they differ in what one run has in common, or hold a process twice.
    """
    # An export that lost names of ranges is not held to what these tell.
    lost = LimitationKind.RANGE_NAMES_LOST
    named = [all(note.kind is not lost for note in r.limitations) for r in recordings]
    _refuse_other_shapes(recordings, np.array(named), joined)
    _refuse_other_namings([r for r, kept in zip(recordings, named, strict=True) if kept])
    _refuse_one_process_twice(recordings, machines)
    _refuse_one_rank_twice(recordings)


def _refuse_other_shapes(
    recordings: Sequence[Recording], named: Bools, joined: JoinedRecordings
) -> None:
    """Raise MismatchError where profiles ran other numbers of microbatches or chunks.

    Counted are a rank's iterations in which every forward has its backward.

    Args:
        recordings: one a profile.
        named: which of them hold all names.
        joined: all of them.
    """
    rank, forwards, chunks = _whole_iterations(joined.operations)
    profile = np.array([rank.profile for rank in joined.ranks], np.int64)[rank]
    kept = named[profile]
    profile, forwards, chunks = profile[kept], forwards[kept], chunks[kept]
    numbers = forwards // np.maximum(chunks, 1), chunks
    whats = "microbatches an iteration", "model chunks per rank"
    for number, what in zip(numbers, whats, strict=True):
        first: dict[int, str] = {}
        for place, usual in zip(
            *(column.tolist() for column in _usual(profile, number)), strict=True
        ):
            first.setdefault(usual, recordings[place].source.path)
        if len(first) > 1:
            (usual, path), (another, second), *_ = first.items()
            raise MismatchError(
                f"{path} and {second}: {usual} and {another} {what}, so they are no single run, "
                "or a range is missing in one; give the profiles of one run, each as a whole"
            )


def _usual(profile: Ints, number: Ints) -> tuple[Ints, Ints]:
    """Return profiles, ascending, and the most frequent number of each (ties: the smallest)."""
    groups = groups_of(profile, number)
    often = np.bincount(groups.of_row, minlength=len(groups))
    owner, value = profile[groups.first], number[groups.first]
    most = first_of_each(owner, -often, value)
    return owner[most], value[most]


def _refuse_other_namings(recordings: Sequence[Recording]) -> None:
    """Raise MismatchError where two profiles share no convention of forward or backward.

    Which one leads may differ: ranks name their layers, or their transfers, more or less often.
    """
    differing = {(r.convention, r.conventions): r for r in recordings}
    for first, second in combinations(differing.values(), 2):
        if first.convention != second.convention and not first.conventions & second.conventions:
            raise MismatchError(
                f"{first.source.path} and {second.source.path}: {first.convention} and "
                f"{second.convention} as their naming convention, so they are no single run; give "
                "the profiles of one run"
            )


def _refuse_one_process_twice(recordings: Sequence[Recording], machines: Sequence[str]) -> None:
    """Raise MismatchError where two profiles hold the same process of the same machine.

    That is a process captured twice (``--capture-range-end=repeat``), or two runs.
    """
    paths: dict[tuple[str, str, int], str] = {}
    for recording, machine in zip(recordings, machines, strict=True):
        for process in {rank.process for rank in recording.ranks}:
            # Containers of one machine count their processes each for itself.
            key = (machine, recording.source.host, process)
            path = paths.setdefault(key, recording.source.path)
            if path != recording.source.path and recording.source.host_known:
                raise MismatchError(
                    f"{path} and {recording.source.path}: both hold process {pid_of(process)} of "
                    "the same host, so they are two captures or two runs; analyze each by itself"
                )


def _refuse_one_rank_twice(recordings: Sequence[Recording]) -> None:
    """Raise MismatchError where two tables of operations hold the same rank."""
    paths: dict[int, str] = {}
    for recording in recordings:
        for rank in (rank.told.number for rank in recording.ranks if rank.told is not None):
            path = paths.setdefault(rank, recording.source.path)
            if path != recording.source.path:
                raise MismatchError(
                    f"{path} and {recording.source.path}: both hold rank {rank}; give all rows of "
                    "a rank in one table, or each rank a number of its own"
                )


def _whole_iterations(operations: RankOperations) -> tuple[Ints, Ints, Ints]:
    """Return rank, forwards and chunks of the (rank, iteration) that a capture did not cut.

    These begin with microbatch 0, every forward has its backward there, and vice versa, and an
    Optimizer or another iteration follows.
    """
    first = (operations.occurrence == 0) & (operations.iteration >= 0)
    iterations = int(operations.iteration.max(initial=0)) + 1
    cell = operations.rank * iterations + operations.iteration
    cells = int(cell.max(initial=0)) + 1
    forward = np.flatnonzero(first & among(operations.phase, (Phase.F, Phase.FB)))
    backward = np.flatnonzero(first & among(operations.phase, (Phase.B, Phase.BW, Phase.FB)))
    both = np.concatenate((forward, backward))
    microbatch, chunk = forward_and_backward(operations, forward, backward)
    number = groups_of(cell[both], microbatch, chunk, operations.sequence[both]).of_row
    of_forward, of_backward = number[: len(forward)], number[len(forward) :]
    cut = np.zeros(cells, bool)
    cut[cell[forward[~np.isin(of_forward, of_backward)]]] = True
    cut[cell[backward[~np.isin(of_backward, of_forward)]]] = True
    begins = np.zeros(cells, bool)
    begins[cell[forward[operations.microbatch[forward] == 0]]] = True
    pairs = distinct_rows(cell[forward], operations.chunk[forward])
    followed = np.zeros(cells + 1, bool)
    followed[cell[first & (operations.phase == Phase.OPTIMIZER)]] = True
    later = cell[forward[operations.iteration[forward] > 0]] - 1
    followed[later] = True
    whole = begins & ~cut & followed[:cells]
    return (
        np.flatnonzero(whole) // iterations,
        np.bincount(cell[forward], minlength=cells)[whole],
        np.bincount(pairs[0], minlength=cells)[whole],
    )
