"""The Zero Bubble paper's rate: the longest of the ranks' own windows (arXiv 2401.10241, 5.3)."""

from __future__ import annotations

import numpy as np

from bubbleviz.count.ratios import CountedWork, Extents, RatioDefinition, Windows


def _windows(extents: Extents) -> Windows:
    length = np.where(extents.present, extents.last_ns - extents.first_ns, 0)
    longest = length.max(axis=1, keepdims=True, initial=0)
    return Windows(
        extents.first_ns,
        extents.first_ns + longest,
        extents.started,
    )


RATIO = RatioDefinition(
    name="stage",
    summary="longest rank's window",
    definition="1 - sum of the ranks' compute / (ranks x longest (last end - first start) of a "
    "rank); arXiv 2401.10241, section 5.3",
    words="share of the ranks' time, in windows as long as the longest rank's own from "
    "first F to last backward, in which they run none of the iteration's F, B and W",
    windows=_windows,
    work=CountedWork.ITERATION,
    common_clock=False,
    across_ranks=True,
    order=2,
    forward_words="share of the ranks' time, in windows as long as the longest rank's own from its "
    "first chunk to its last one, in which they run none",
)
