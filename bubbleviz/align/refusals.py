"""Checks that all profiles are from a single run.

Profiles are refused if their captures are far apart in time, if they ran different numbers of
microbatches or model chunks, if their naming conventions differ, or if two tables contain the same
rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from bubbleviz.align.join import JoinedRecordings
from bubbleviz.align.profile_clocks import (
    build_session_clocks,
    mask_typical_sizes,
    refuse_unrelated,
)
from bubbleviz.align.waits import get_pass_keys
from bubbleviz.errors import MismatchError
from bubbleviz.interpret.recording import Recording, Recordings
from bubbleviz.model.columns import Bools, Ints, make_mask
from bubbleviz.model.grouping import find_distinct_rows, find_first_rows, group_rows, split_by_owner
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import Phase


def refuse_unrelated_captures(parts: Recordings, machines: Sequence[str]) -> tuple[Limitation, ...]:
    """Refuse captures that are far apart in UTC, or return a limitation if few clocks are wrong.

    See :func:`~bubbleviz.align.profile_clocks.refuse_unrelated` for the conditions.

    Args:
        parts: The recordings, one per clock of a profile.
        machines: Machine name of each profile.

    Raises:
        MismatchError: The captures are not from a single run.
    """
    recordings = parts.recordings
    captures = tuple((recording.start_ns, recording.end_ns) for recording in recordings)
    sources = [recording.source for recording in recordings]
    numbers = [rank.global_rank for recording in recordings for rank in recording.ranks]
    is_numbered = None not in numbers and len(set(numbers)) == len(numbers)
    n_ranks = np.array([len(recording.ranks) for recording in recordings], np.int64)
    is_typical = mask_typical_sizes(n_ranks, parts.count_rows("operations"))
    sessions = build_session_clocks(sources, machines)
    return refuse_unrelated(sources, captures, sessions, is_typical, is_numbered=is_numbered)


def refuse_other_runs(recordings: Sequence[Recording], joined_recordings: JoinedRecordings) -> None:
    """Refuse recordings that are not from a single run.

    Args:
        recordings: All recordings.
        joined_recordings: The joined tables of all recordings.

    Raises:
        MismatchError: Two recordings contain different numbers of microbatches or chunks, use
            different naming conventions, or contain the same rank of a table.
    """
    # Recordings that lost range names are not compared by name.
    names_lost = LimitationKind.RANGE_NAMES_LOST
    has_all_names = [all(note.kind is not names_lost for note in r.limitations) for r in recordings]
    _refuse_other_shapes(recordings, np.array(has_all_names), joined_recordings)
    _refuse_other_namings([r for r, kept in zip(recordings, has_all_names, strict=True) if kept])
    _refuse_duplicates(recordings)


def _refuse_other_shapes(
    recordings: Sequence[Recording], has_all_names: Bools, joined_recordings: JoinedRecordings
) -> None:
    """Raise MismatchError if profiles ran different numbers of microbatches or chunks.

    Only complete iterations are compared (:func:`_find_complete_iterations`). Each profile is
    represented by its most frequent number, or by the smallest in case of a tie. Profiles that lost
    range names are not compared.

    Args:
        recordings: All recordings.
        has_all_names: Mask of the recordings that contain all range names.
        joined_recordings: The joined tables of all recordings.
    """
    rank, forwards, chunks = _find_complete_iterations(joined_recordings.operations, sure=False)
    if (forwards == forwards[:1]).all() and (chunks == chunks[:1]).all():
        # All numbers are equal, even including iterations that may be incomplete.
        return
    rank, forwards, chunks = _find_complete_iterations(joined_recordings.operations)
    profile = np.array([rank.profile for rank in joined_recordings.ranks], np.int64)[rank]
    is_compared = has_all_names[profile]
    profile, forwards, chunks = profile[is_compared], forwards[is_compared], chunks[is_compared]
    for number, noun in (
        (forwards // np.maximum(chunks, 1), "microbatches per iteration"),
        (chunks, "model chunks per rank"),
    ):
        _refuse_other_numbers(recordings, profile, number, noun)


def _refuse_other_numbers(
    recordings: Sequence[Recording], profile: Ints, number: Ints, noun: str
) -> None:
    """Raise MismatchError if two profiles differ in their most frequent number.

    If several numbers in a profile are equally frequent, the smallest one is used.

    Args:
        recordings: All recordings.
        profile: Profile index of each iteration.
        number: The number to compare for each iteration.
        noun: Plural noun for what is counted, for example "model chunks per rank".
    """
    groups = group_rows(profile, number)
    frequency = np.bincount(groups.of_row, minlength=len(groups))
    owner, value = profile[groups.first], number[groups.first]
    most_frequent = find_first_rows(owner, -frequency, value)
    first: dict[int, str] = {}
    for owner_index, count in zip(
        owner[most_frequent].tolist(), value[most_frequent].tolist(), strict=True
    ):
        first.setdefault(count, recordings[owner_index].source.path)
    if len(first) > 1:
        (count, path), (another, second), *_ = first.items()
        raise MismatchError(
            f"{path} and {second}: they have {count} and {another} {noun}, so they are not from "
            "one run, or a range is missing from one of them; pass complete profiles of one run"
        )


def _refuse_other_namings(recordings: Sequence[Recording]) -> None:
    """Raise MismatchError if two profiles have no naming convention in common.

    A profile may use several naming conventions. The main conventions of two profiles from one run
    may differ, because some ranks name more layers or transfers than others.
    """
    differing = {(r.convention, r.conventions): r for r in recordings}
    for first, second in combinations(differing.values(), 2):
        if first.convention != second.convention and not first.conventions & second.conventions:
            raise MismatchError(
                f"{first.source.path} and {second.source.path}: they use the naming conventions "
                f"{first.convention} and {second.convention}, so they are not from one run; pass "
                "only profiles of one run"
            )


def _refuse_duplicates(recordings: Sequence[Recording]) -> None:
    """Raise MismatchError if two tables contain the same rank.

    Ranks in tables are the same if their declared numbers are equal.
    """
    paths: dict[int, str] = {}
    for recording in recordings:
        for rank in recording.ranks:
            if rank.declared is None:
                continue
            number = rank.declared.number
            path = paths.setdefault(number, recording.source.path)
            if path != recording.source.path:
                raise MismatchError(
                    f"{path} and {recording.source.path}: both contain rank {number}; put all rows "
                    "of a rank into one table, or give each rank a unique number"
                )


def _find_complete_iterations(
    operations: Operations, *, sure: bool = True
) -> tuple[Ints, Ints, Ints]:
    """Find the iterations that were completely captured, separately for each rank.

    An iteration of a rank is complete if it meets the following conditions:

    - The iteration contains a forward of microbatch 0.
    - The iteration contains an Optimizer, or the next iteration contains a forward.
    - If ``sure`` is True, every forward has a matching backward, and every backward has a matching
      forward.

    Args:
        operations: Operations of all ranks, sorted by rank.
        sure: Whether to check that forwards and backwards match.

    Returns:
        rank: Rank of each complete iteration.
        forwards: Number of forwards in each complete iteration.
        chunks: Number of model chunks with a forward in each complete iteration.
    """
    parts = (
        _find_complete_in(operations.take(rows), sure) for rows in split_by_owner(operations.rank)
    )
    rank, forwards, chunks = (np.concatenate(column) for column in zip(*parts, strict=True))
    return rank, forwards, chunks


def _find_complete_in(operations: Operations, sure: bool) -> tuple[Ints, Ints, Ints]:
    """Find the complete iterations of a subset of the ranks, to limit memory use.

    The conditions and the three columns of the result are the same as in
    :func:`_find_complete_iterations`.

    Args:
        operations: Operations of the ranks in this subset.
        sure: Whether to check that forwards and backwards match.
    """
    first = (operations.occurrence == 0) & (operations.iteration >= 0)
    iterations = int(operations.iteration.max(initial=0)) + 1
    cell = operations.rank * iterations + operations.iteration
    cells = int(cell.max(initial=0)) + 1
    forward = np.flatnonzero(first & mask_phases(operations.phase, (Phase.F, Phase.FB)))
    is_cut = np.zeros(cells, bool)
    if sure:
        backward = np.flatnonzero(
            first & mask_phases(operations.phase, (Phase.B, Phase.BW, Phase.FB))
        )
        is_cut[_find_unmatched(operations, forward, backward, cell)] = True
    has_begin = make_mask(cells, cell[forward[operations.microbatch[forward] == 0]])
    pairs = find_distinct_rows(cell[forward], operations.chunk[forward])
    is_followed = make_mask(cells + 1, cell[first & (operations.phase == Phase.OPTIMIZER)])
    later = cell[forward[operations.iteration[forward] > 0]] - 1
    is_followed[later] = True
    is_complete = has_begin & ~is_cut & is_followed[:cells]
    return (
        np.flatnonzero(is_complete) // iterations,
        np.bincount(cell[forward], minlength=cells)[is_complete],
        np.bincount(pairs[0], minlength=cells)[is_complete],
    )


def _find_unmatched(operations: Operations, forward: Ints, backward: Ints, cell: Ints) -> Ints:
    """Return the cells in which a forward has no backward, or a backward has no forward.

    A cell is one iteration of one rank. It occurs in the result once for each unmatched pass.

    Args:
        operations: Operations of several ranks.
        forward: Rows that run a forward.
        backward: Rows that run a backward.
        cell: Cell number of each operation.
    """
    rows = np.concatenate((forward, backward))
    microbatch, chunk = get_pass_keys(operations, forward, backward)
    passes = group_rows(cell[rows], microbatch, chunk, operations.sequence[rows])
    has_forward = make_mask(len(passes), passes.of_row[: len(forward)])
    has_backward = make_mask(len(passes), passes.of_row[len(forward) :])
    unmatched = passes.first[has_forward != has_backward]
    return np.asarray(cell[rows[unmatched]], np.int64)
