"""The iteration to the end of its last Optimizer."""

from __future__ import annotations

from bubbleviz.count.ratios import CountedWork, RatioDefinition
from bubbleviz.count.ratios.schedule import common_window

RATIO = RatioDefinition(
    name="step",
    summary="to the last Optimizer end",
    definition="1 - sum of the ranks' compute and Optimizer / (ranks x (last end, Optimizer "
    "included - first start over all ranks))",
    windows=lambda extents: common_window(extents, extents.step_last_ns),
    work=CountedWork.STEP,
    common_clock=True,
    across_ranks=True,
    order=3,
)
