"""Limitations: what linking and interpretation of one profile could not determine."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.interpret.linking.links import LinkRule, Links
from bubbleviz.interpret.operation_ranges import OperationRanges
from bubbleviz.interpret.truncation import OPEN, UNRECORDED
from bubbleviz.model.columns import Bools, Codes, Ints
from bubbleviz.model.grouping import groups_of, without
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COMPUTE, COUNTED, Phase
from bubbleviz.model.profile import Profile

#: A subject, a reason, and how often it applies; of none, there is no limitation.
_Candidate = tuple[str, str, int]
#: The limitation of names that give no microbatches.
_INFERRED = "microbatch numbers are inferred"
#: The limitation of names that give neither microbatches nor iterations.
_UNDIVIDED = "iterations are not told apart"
#: The limitation of forwards and backwards whose kernels are not there.
_WITHOUT_WORK = "forwards and backwards without GPU work"
#: From such a share of them on, ratios are off.
_NOTICEABLE = 0.01
_KINDS = {
    _WITHOUT_WORK: LimitationKind.OPERATIONS_WITHOUT_WORK,
    _INFERRED: LimitationKind.MICROBATCHES_INFERRED,
    _UNDIVIDED: LimitationKind.ITERATIONS_UNDIVIDED,
}


def limitations_of(
    profile: Profile, links: Links, operations: RankOperations, ranges: OperationRanges
) -> tuple[Limitation, ...]:
    """Return the limitations of one profile.

    Args:
        profile: the profile.
        links: of its kernels, then copies.
        operations: its operations.
        ranges: their ranges.
    """
    candidates = (
        *_of_links(links.rule[: profile.activities.kernels]),
        *_of_operations(operations, inferred=bool(ranges.unnumbered.any())),
        (
            _UNDIVIDED,
            "no name gives a microbatch, an iteration or the optimizer's step, so all that the "
            "capture holds of a rank counts as one iteration, even if it is many steps; name "
            "iterations in ranges, or give the names of the optimizer's with --convention",
            len(_undivided_ranks(operations, ranges)),
        ),
    )
    return tuple(
        Limitation(
            what, f"{profile.source.path}: {reason}", count, _KINDS.get(what, LimitationKind.OTHER)
        )
        for what, reason, count in candidates
        if count
    )


def _works_elsewhere(operations: RankOperations) -> Bools:
    """Tell for each operation whether others of its rank, chunk and phase have GPU work."""
    groups = groups_of(operations.rank, operations.chunk, operations.phase)
    working = np.zeros(len(groups), bool)
    working[groups.of_row[operations.has_span == 1]] = True
    return np.asarray(working[groups.of_row], bool)


def _undivided_ranks(operations: RankOperations, ranges: OperationRanges) -> Ints:
    """Return the ranks with several forwards, and nothing that shows where an iteration ends."""
    forward = among(operations.phase, (Phase.F, Phase.FB))
    unnumbered = np.zeros(len(operations), bool)
    unnumbered[ranges.operation[ranges.unnumbered]] = True
    rank, forwards = np.unique(operations.rank[forward & unnumbered], return_counts=True)
    divided = (
        operations.rank[forward & ~unnumbered],
        operations.rank[operations.phase == Phase.OPTIMIZER],
        ranges.rank[ranges.mark >= 0],
    )
    return without(rank[forwards > 1], np.concatenate(divided))


def _of_links(kernels: Codes) -> Iterator[_Candidate]:
    """Yield what rules of linking left open, by the rule of each kernel."""
    yield (
        "kernels without their launching call",
        "the call is not in the profile (a capture cut to a window drops some)",
        int((kernels == LinkRule.UNLINKED).sum()),
    )
    yield (
        "kernels that several threads' backward could own",
        "their thread opens no range, and several others had a backward range open",
        int((kernels == LinkRule.AMBIGUOUS).sum()),
    )
    yield (
        "kernels of helper threads while backward ran elsewhere",
        "their threads are named as loaders, watchdogs or profilers are",
        int((kernels == LinkRule.HELPER_THREAD).sum()),
    )


def _of_operations(operations: RankOperations, *, inferred: bool) -> Iterator[_Candidate]:
    """Yield what operations lack, or have twice.

    Args:
        operations: of one profile.
        inferred: whether names give no microbatches.
    """
    compute = among(operations.phase, COMPUTE)
    counted = among(operations.phase, COUNTED)
    workless = compute & (operations.has_span == 0) & (operations.cut == 0)
    of_pass = workless & counted & _works_elsewhere(operations)
    many = of_pass.sum() >= _NOTICEABLE * max(counted.sum(), 1)
    repeated = counted & (operations.occurrence > 0) & (operations.microbatch >= 0)
    yield (
        _WITHOUT_WORK,
        "others of their rank have some: their kernels are missing, or were left out, so their "
        "time counts as idle; profile again",
        int(of_pass.sum()) if many else 0,
    )
    yield (
        "operations without any GPU work",
        "their ranges launched nothing that the profile shows, so they have no device time",
        int((workless & ~of_pass if many else workless).sum()),
    )
    yield (
        _INFERRED,
        "the names give none, so they are counted by order within an iteration",
        int(inferred),
    )
    yield (
        "operations cut by the end of the capture",
        "their range was still open",
        int((operations.cut == OPEN).sum()),
    )
    yield (
        "operations whose work the end of the capture cut",
        "the host had launched it, and the GPU had not done it",
        int((operations.cut == UNRECORDED).sum()),
    )
    yield (
        "repeated operations",
        "the same microbatch, chunk and phase occur again in one iteration",
        int(repeated.sum()),
    )
