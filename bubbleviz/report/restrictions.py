"""Restrictions: why ratios are not those of a whole pipeline, in words; saved reports have them."""

from __future__ import annotations

#: Ranks are known to be missing.
INCOMPLETE = "incomplete: ranks of the run are missing"
#: Stages may be missing, or have no GPU work.
MAYBE_INCOMPLETE = "maybe incomplete: stages may be missing"
#: So many kernels were lost that where they ran looks idle.
KERNELS_LOST = "incomplete: kernels that were launched are not in the profile"


def restriction_of(
    no_pipeline: str | None, *, incomplete: bool, kernels_lost: bool, stages_may_be_missing: bool
) -> str | None:
    """Return the restriction of a report; None where it is of a whole pipeline.

    Args:
        no_pipeline: why its ranks form no pipeline; None where they do.
        incomplete: whether ranks of averaged iterations are known to be missing.
        kernels_lost: whether so many kernels were not recorded that ratios are off.
        stages_may_be_missing: whether stages may be.
    """
    if no_pipeline is not None:
        return f"no pipeline was measured: {no_pipeline}"
    if incomplete:
        return INCOMPLETE
    if kernels_lost:
        return KERNELS_LOST
    return MAYBE_INCOMPLETE if stages_may_be_missing else None
