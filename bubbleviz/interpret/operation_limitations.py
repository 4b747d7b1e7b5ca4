"""Limitations of operations: what linking and interpretation of one file could not determine."""

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

#: A subject, a reason, and how often it applies; of none, there is no limitation.
Candidate: TypeAlias = tuple[str, str, int]
#: The limitation of names that give no microbatches.
_INFERRED = "microbatch numbers are inferred"
#: The limitation of names that give neither microbatches nor iterations.
_UNDIVIDED = "iteration boundaries are unknown"
#: The limitation of names that give one microbatch for several, and no iterations.
_UNMARKED = "iterations and stages of ranks"
#: The limitation of forwards and backwards whose kernels are not there.
_WITHOUT_WORK = "forwards and backwards without GPU work"
#: From such a share of them on, ratios are off.
_NOTICEABLE = 0.01
#: What rules of linking left open, by the rule of each kernel.
_UNLINKED = (
    (
        LinkRule.UNLINKED,
        "kernels without their launching call",
        "the call is not in the profile (a capture cut to a window drops some)",
    ),
    (
        LinkRule.AMBIGUOUS,
        "kernels that several threads' backward could own",
        "their thread opens no range, and several others had a backward range open",
    ),
    (
        LinkRule.HELPER_THREAD,
        "kernels of helper threads while backward ran elsewhere",
        "their threads are named as loaders, watchdogs or profilers are",
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
    """Return the limitations of one profile.

    Args:
        profile: The profile.
        work: Its linked work.
        operations: Its operations.
        ranges: Ranges of these operations, by rank.
    """
    rules = work.rule[: profile.activities.kernels]
    unnumbered = make_mask(len(operations), ranges.operation[ranges.unnumbered])
    in_parts = np.bincount(ranges.operation, minlength=len(operations)) > 1
    named = ranges.rank[ranges.mark >= 0]
    candidates = (
        *(
            (what, reason, int(np.count_nonzero(rules == np.int8(rule))))
            for rule, what, reason in _UNLINKED
        ),
        *check_operations(operations, inferred=bool(ranges.unnumbered.any())),
        check_iteration_marks(
            operations, unnumbered | (operations.microbatch < 0), in_parts, named
        ),
        (
            _UNDIVIDED,
            "no name gives a microbatch, an iteration or the optimizer step, so the whole capture "
            "of a rank counts as one iteration; name iterations in ranges, or the optimizer with "
            "--convention",
            len(_find_undivided_ranks(operations, ranges)),
        ),
    )
    return make_limitations(profile.source.path, candidates)


def make_limitations(path: str, candidates: Iterable[Candidate]) -> tuple[Limitation, ...]:
    """Return the limitations of a file, of some that it may have."""
    return tuple(
        Limitation(what, f"{path}: {reason}", count, _KINDS.get(what, LimitationKind.OTHER))
        for what, reason, count in candidates
        if count
    )


def _find_kinds_with_work(operations: Operations) -> Bools:
    """Tell for each operation whether others of its rank, chunk and phase have GPU work."""
    groups = group_rows(operations.rank, operations.chunk, operations.phase)
    working = make_mask(len(groups), groups.of_row[operations.has_span == 1])
    return np.asarray(working[groups.of_row], bool)


def _find_undivided_ranks(operations: Operations, ranges: OperationRanges) -> Ints:
    """Return the ranks with several forwards, and nothing that shows where an iteration ends."""
    forward = mask_phases(operations.phase, (Phase.F, Phase.FB))
    unnumbered = make_mask(len(operations), ranges.operation[ranges.unnumbered])
    rank, forwards = np.unique(operations.rank[forward & unnumbered], return_counts=True)
    divided = (
        operations.rank[forward & ~unnumbered],
        operations.rank[operations.phase == Phase.OPTIMIZER],
        ranges.rank[ranges.mark >= 0],
    )
    return subtract_values(rank[forwards > 1], np.concatenate(divided))


def check_iteration_marks(
    operations: Operations, unnumbered: Bools, in_parts: Bools, named: Ints
) -> Candidate:
    """Return how many ranks run their only microbatch again, and nothing marks iterations.

    One name stands for many microbatches then, and each forward behind a backward begins an
    iteration. Forwards of several microbatches in a row look like parts of one::

        ranges       F0 F0 F0 B0 F0 B0 B0 B0
        operations   ├─ F0 ─┤ B0 F0 ├─ B0 ─┤

    Args:
        operations: of one file.
        unnumbered: which of them have no microbatch by name.
        in_parts: which of them are several ranges.
        named: ranks of which names tell iterations apart.
    """
    counted = mask_phases(operations.phase, COUNTED) & ~unnumbered
    again = operations.rank[counted & (in_parts | (operations.occurrence > 0))]
    if len(again):
        numbers = find_distinct_rows(operations.rank, operations.microbatch, mask=counted)
        several = numbers[0, 1:][np.diff(numbers[0]) == 0]
        steps = operations.rank[operations.phase == Phase.OPTIMIZER]
        again = subtract_values(again, np.concatenate((several, steps, named)))
    again = again if run_kind(operations.phase) == TRAINING else again[:0]
    return (
        _UNMARKED,
        "all forwards name one microbatch, and neither names nor an optimizer step tell iterations "
        "apart, so each forward behind a backward begins one, and forwards in a row are one; name "
        "iterations in ranges, or record a range Optimizer",
        len(again),
    )


def check_operations(
    operations: Operations, *, inferred: bool, told: bool = False
) -> Iterator[Candidate]:
    """Yield what operations lack, or have twice.

    Args:
        operations: of one file.
        inferred: whether it gives no microbatches.
        told: whether it is a table of them.
    """
    compute = mask_phases(operations.phase, COMPUTE)
    counted = mask_phases(operations.phase, COUNTED)
    workless = compute & (operations.has_span == 0) & (operations.cut == 0)
    of_pass = workless & counted & _find_kinds_with_work(operations)
    if told or of_pass.sum() < _NOTICEABLE * max(counted.sum(), 1):
        of_pass[:] = False
    repeated = counted & (operations.occurrence > 0) & (operations.microbatch >= 0)
    yield (
        _WITHOUT_WORK,
        "others of the same rank have some: their kernels are missing or were left out, so their "
        "time counts as idle; profile again",
        int(of_pass.sum()),
    )
    lacking = "ranges launched nothing that the profile shows"
    yield (
        "operations without any GPU work",
        f"their {'rows have neither start nor end' if told else lacking}, so they have no device "
        "time",
        int((workless & ~of_pass).sum()),
    )
    yield (
        _INFERRED,
        f"the {'table gives' if told else 'names give'} none, so they are counted by order within "
        "an iteration",
        int(inferred),
    )
    yield (
        "operations cut by the end of the capture",
        "the table says so" if told else "their range was still open",
        int((operations.cut > 0 if told else operations.cut == OPEN).sum()),
    )
    yield (
        "operations whose work the end of the capture cut",
        "the host had launched it, and the profile does not contain it",
        0 if told else int((operations.cut == UNRECORDED).sum()),
    )
    yield (
        "repeated operations",
        "the same microbatch, chunk and phase occur again in one iteration",
        int(repeated.sum()),
    )
