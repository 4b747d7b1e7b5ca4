"""Limitations on operations: information missing from the ranges and kernels of a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np

from bubbleviz.interpret.capture_end import OPEN, UNRECORDED
from bubbleviz.interpret.linking import LinkedWork, LinkRule
from bubbleviz.interpret.operation_ranges import OperationRanges
from bubbleviz.model.columns import Bools, Ints, make_mask
from bubbleviz.model.grouping import find_distinct_rows, group_rows, subtract_values
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COMPUTE, COUNTED, Phase
from bubbleviz.model.profile import Profile
from bubbleviz.model.run_kinds import TRAINING, run_kind

#: A possible limitation: subject, reason and count. It does not exist if the count is 0.
Candidate: TypeAlias = tuple[str, str, int]
#: Limitation subject if names contain no microbatch numbers.
_INFERRED = "microbatch numbers are inferred"
#: Limitation subject if names contain neither microbatches nor iterations.
_UNDIVIDED = "iteration boundaries are unknown"
#: Limitation subject if all names contain the same microbatch and no iteration.
_UNMARKED = "iteration boundaries and stages are uncertain"
#: Limitation subject if kernels of forwards and backwards are missing.
_WITHOUT_WORK = "forwards and backwards without GPU work"
#: Kernels are reported as missing if at least this share of forwards and backwards lack GPU work.
_NOTICEABLE = 0.01
#: Limitations on linking: the link rule whose kernels are counted, the subject and the reason.
_UNLINKED = (
    (
        LinkRule.UNLINKED,
        "kernels without their launching call",
        "the profile does not contain the call (cutting a capture to a window drops some calls)",
    ),
    (
        LinkRule.AMBIGUOUS,
        "kernels that may belong to the backward of several threads",
        "the launching thread opened no range, and several others had a backward range open",
    ),
    (
        LinkRule.HELPER_THREAD,
        "kernels of helper threads while backward ran elsewhere",
        "the launching threads have names that loaders, watchdogs or profilers use",
    ),
)
_KINDS = {
    _WITHOUT_WORK: LimitationKind.OPERATIONS_WITHOUT_WORK,
    _INFERRED: LimitationKind.MICROBATCHES_INFERRED,
    _UNDIVIDED: LimitationKind.ITERATIONS_UNDIVIDED,
    _UNMARKED: LimitationKind.ITERATIONS_UNMARKED,
}


def list_limitations(
    profile: Profile, work: LinkedWork, operations: Operations, ranges: OperationRanges
) -> tuple[Limitation, ...]:
    """Return the limitations on the operations of one profile, and on the linking of its kernels.

    The limitations report:

    - Kernels that are not linked (``_UNLINKED``).
    - Problems found by :func:`check_operations` and :func:`check_iteration_marks`.
    - Ranks whose iteration boundaries are unknown.

    Limitations whose count is 0 are left out.

    Args:
        profile: The profile.
        work: Kernels and copies of the profile, linked to ranges.
        operations: Operations of the profile.
        ranges: Ranges assigned to ranks, with the operation of each range.
    """
    rules = work.rule[: profile.activities.kernels]
    is_unnumbered = make_mask(len(operations), ranges.operation[ranges.unnumbered])
    is_unnumbered |= operations.microbatch < 0
    in_parts = np.bincount(ranges.operation, minlength=len(operations)) > 1
    ranks_with_names = ranges.rank[ranges.mark >= 0]
    candidates = [
        (what, reason, int(np.count_nonzero(rules == np.int8(rule))))
        for rule, what, reason in _UNLINKED
    ]
    candidates += check_operations(operations, inferred=bool(ranges.unnumbered.any()))
    candidates.append(check_iteration_marks(operations, is_unnumbered, in_parts, ranks_with_names))
    undivided = (
        "no range name identifies a microbatch, an iteration or the optimizer step, so the whole "
        "capture of a rank counts as one iteration; add ranges with iteration numbers, or define "
        "the name of the optimizer step with --convention"
    )
    candidates.append((_UNDIVIDED, undivided, len(_find_undivided_ranks(operations, ranges))))
    return make_limitations(profile.source.path, candidates)


def make_limitations(path: str, candidates: Iterable[Candidate]) -> tuple[Limitation, ...]:
    """Turn candidates into limitations, leaving out candidates whose count is 0.

    Args:
        path: Path of the file. Each reason starts with it.
        candidates: Limitations that the file may have.
    """
    return tuple(
        Limitation(what, f"{path}: {reason}", count, _KINDS.get(what, LimitationKind.OTHER))
        for what, reason, count in candidates
        if count
    )


def _find_kinds_with_work(operations: Operations) -> Bools:
    """Return a mask of the operations whose (rank, chunk, phase) has at least some GPU work."""
    groups = group_rows(operations.rank, operations.chunk, operations.phase)
    working = make_mask(len(groups), groups.of_row[operations.has_span == 1])
    return np.asarray(working[groups.of_row], bool)


def _find_undivided_ranks(operations: Operations, ranges: OperationRanges) -> Ints:
    """Return the ranks with several forwards whose iteration boundaries are unknown.

    Boundaries are unknown if the rank has no Optimizer, none of its range names contains an
    iteration number, and none of its forward names contains a microbatch.
    """
    is_forward = mask_phases(operations.phase, (Phase.F, Phase.FB))
    is_unnumbered = make_mask(len(operations), ranges.operation[ranges.unnumbered])
    rank, n_forwards = np.unique(operations.rank[is_forward & is_unnumbered], return_counts=True)
    divided = np.concatenate(
        (
            operations.rank[is_forward & ~is_unnumbered],
            operations.rank[operations.phase == Phase.OPTIMIZER],
            ranges.rank[ranges.mark >= 0],
        )
    )
    return subtract_values(rank[n_forwards > 1], divided)


def check_iteration_marks(
    operations: Operations, is_unnumbered: Bools, in_parts: Bools, ranks_with_names: Ints
) -> Candidate:
    """Count the operations on ranks where all microbatches have the same number.

    In a training run, a single name then stands for many microbatches. If nothing marks iterations,
    every forward that follows a backward starts an iteration, and consecutive forwards look like
    parts of a single forward::

        ranges       F0 F0 F0 B0 F0 B0 B0 B0
        operations   ├─ F0 ─┤ B0 F0 ├─ B0 ─┤

    An F, B, W, BW or FB whose name contains a microbatch counts if it consists of several ranges,
    or if it repeats an earlier operation in its iteration. Ranks are left out if they have several
    microbatch numbers or an Optimizer, or if they are in ``ranks_with_names``. The count is 0
    unless the run is a training run.

    Args:
        operations: Operations of one file.
        is_unnumbered: Mask of the operations whose names contain no microbatch.
        in_parts: Mask of the operations that consist of several ranges.
        ranks_with_names: Ranks whose range names contain iteration numbers.

    Returns:
        The candidate limitation with this count.
    """
    is_numbered = mask_phases(operations.phase, COUNTED) & ~is_unnumbered
    is_repeated = is_numbered & (in_parts | (operations.occurrence > 0))
    ranks = operations.rank[is_repeated]
    if len(ranks):
        numbers = find_distinct_rows(operations.rank, operations.microbatch, mask=is_numbered)
        with_several = numbers[0, 1:][np.diff(numbers[0]) == 0]
        with_optimizer = operations.rank[operations.phase == Phase.OPTIMIZER]
        ranks = subtract_values(
            ranks, np.concatenate((with_several, with_optimizer, ranks_with_names))
        )
    return (
        _UNMARKED,
        "all forwards have the same microbatch number, and no iteration name or optimizer step "
        "separates iterations. Each forward after a backward therefore starts an iteration, and "
        "consecutive forwards count as one forward; add ranges with iteration numbers, or a range "
        "called Optimizer",
        len(ranks) if run_kind(operations.phase) == TRAINING else 0,
    )


def check_operations(
    operations: Operations, *, inferred: bool, is_table: bool = False
) -> Iterator[Candidate]:
    """Yield the limitations on operations: missing work, inferred numbers, cuts and repetitions.

    There are always six candidates, even if their count is 0: missing kernels of forwards and
    backwards, other compute operations without GPU work, inferred microbatches, operations that
    were open at the end of the capture, operations whose work is missing at the end of the capture,
    and repeated operations.

    If a forward or backward has no GPU work, its kernels are reported as missing only if all of the
    following conditions hold:

    - The file is a profile, not a table.
    - Other operations of the same rank, chunk and phase have GPU work.
    - At least ``_NOTICEABLE`` of all forwards and backwards are affected.

    Args:
        operations: Operations of one file.
        inferred: Whether any microbatch numbers were inferred from the order of operations.
        is_table: Whether the file is a table of operations rather than a profile.
    """
    is_compute = mask_phases(operations.phase, COMPUTE)
    is_counted = mask_phases(operations.phase, COUNTED)
    is_workless = is_compute & (operations.has_span == 0) & (operations.cut == 0)
    lost_work = is_workless & is_counted & _find_kinds_with_work(operations)
    if is_table or lost_work.sum() < _NOTICEABLE * max(is_counted.sum(), 1):
        lost_work[:] = False
    yield (
        _WITHOUT_WORK,
        "other passes on the same rank have GPU work, so kernels are missing or were left out, and "
        "their time counts as idle; profile again",
        int(lost_work.sum()),
    )
    no_work = "rows have neither start nor end" if is_table else "ranges launched no recorded work"
    yield (
        "operations without any GPU work",
        f"some {no_work}, so these operations have no device time",
        int((is_workless & ~lost_work).sum()),
    )
    yield (
        _INFERRED,
        f"the {'table contains' if is_table else 'range names contain'} no microbatch numbers, so "
        "operations are numbered in order within each iteration",
        int(inferred),
    )
    yield (
        "operations cut by the end of the capture",
        "the table marks them as cut" if is_table else "a range was still open at that time",
        int((operations.cut > 0 if is_table else operations.cut == OPEN).sum()),
    )
    yield (
        "operations whose work was cut off by the end of the capture",
        "the host had launched the work, but the profile does not contain it",
        0 if is_table else int((operations.cut == UNRECORDED).sum()),
    )
    is_repeated = is_counted & (operations.occurrence > 0) & (operations.microbatch >= 0)
    yield (
        "repeated operations",
        "the same microbatch, chunk and phase occur more than once in an iteration",
        int(is_repeated.sum()),
    )
