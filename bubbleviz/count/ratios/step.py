"""The iteration to the end of its last Optimizer."""

from __future__ import annotations

from bubbleviz.count.ratios import CountedWork, RatioDefinition
from bubbleviz.count.ratios.schedule import common_window

RATIO = RatioDefinition(
    name="step",
    summary="to the last Optimizer end",
    definition="1 - sum of the ranks' compute and Optimizer / (ranks x (last end, Optimizer "
    "included - first start over all ranks))",
    words="share of the ranks' time from an iteration's first F to its last Optimizer end, "
    "on any rank, in which they run none of its operations",
    windows=lambda extents: common_window(extents, extents.step_last_ns),
    work=CountedWork.STEP,
    common_clock=True,
    across_ranks=True,
    order=3,
    forward_words="share of the ranks' time from the first chunk's start to the last one's end, "
    "on any rank, in which they run none",
)
