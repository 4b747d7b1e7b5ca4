"""Limitations: what linking and interpretation of one profile could not determine."""

from __future__ import annotations

import numpy as np

from bubbleviz.interpret.linking.links import LinkRule, Links
from bubbleviz.interpret.operation_ranges import OperationRanges
from bubbleviz.interpret.truncation import OPEN, UNRECORDED
from bubbleviz.model.operations import Limitation, LimitationKind, RankOperations
from bubbleviz.model.phases import COMPUTE, COUNTED
from bubbleviz.model.profile import Profile

#: The limitation of names that give no microbatches.
_INFERRED = "microbatch numbers are inferred"
_KINDS = {_INFERRED: LimitationKind.MICROBATCHES_INFERRED}


def limitations_of(
    profile: Profile, links: Links, operations: RankOperations, placed: OperationRanges
) -> tuple[Limitation, ...]:
    """Return the limitations of one profile.

    Args:
        profile: the profile.
        links: of its kernels, then copies.
        operations: its operations.
        placed: their ranges.
    """
    kernels = links.rule[: profile.activities.kernels]
    path = profile.source.path
    compute = np.isin(operations.phase, COMPUTE)
    candidates = (
        (
            "kernels without their launching call",
            "the call is not in the profile (a capture cut to a window drops some)",
            int((kernels == LinkRule.UNLINKED).sum()),
        ),
        (
            "kernels that several threads' backward could own",
            "their thread opens no range, and several others had a backward range open",
            int((kernels == LinkRule.AMBIGUOUS).sum()),
        ),
        (
            "kernels of helper threads while backward ran elsewhere",
            "their threads are named as loaders, watchdogs or profilers are",
            int((kernels == LinkRule.HELPER_THREAD).sum()),
        ),
        (
            "operations without any GPU work",
            "their ranges launched nothing that the profile shows, so they have no device time",
            int((compute & (operations.has_span == 0) & (operations.cut == 0)).sum()),
        ),
        (
            _INFERRED,
            "the names give none, so they are counted by order within an iteration",
            int(placed.unnumbered.any()),
        ),
        (
            "operations cut by the end of the capture",
            "their range was still open",
            int((operations.cut == OPEN).sum()),
        ),
        (
            "operations whose work the end of the capture cut",
            "the host had launched it, and the GPU had not done it",
            int((operations.cut == UNRECORDED).sum()),
        ),
        (
            "repeated operations",
            "the same microbatch, chunk and phase occur again in one iteration",
            int(
                (
                    np.isin(operations.phase, COUNTED)
                    & (operations.occurrence > 0)
                    & (operations.microbatch >= 0)
                ).sum()
            ),
        ),
    )
    return tuple(
        Limitation(what, f"{path}: {reason}", count, _KINDS.get(what, LimitationKind.OTHER))
        for what, reason, count in candidates
        if count
    )
