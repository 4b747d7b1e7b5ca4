"""What training waits for: from an iteration's first start to the next one's, on each rank."""

from __future__ import annotations

import numpy as np

from bubbleviz.count.ratios import CountedWork, Extents, RatioDefinition, Windows


def _windows(extents: Extents) -> Windows:
    following = np.roll(extents.first_ns, -1, axis=0)
    both = extents.present & np.roll(extents.present, -1, axis=0)
    known = extents.started & (both == extents.present).all(axis=1)
    known[-1:] = False
    if extents.paused is not None:
        # What is next was recorded after others that were not.
        known &= ~extents.paused
    # Iterations are in the host's order, and none starts with or before the one in front of it.
    known &= (~extents.present | (following > extents.first_ns)).all(axis=1)
    return Windows(extents.first_ns, following, known)


RATIO = RatioDefinition(
    name="period",
    summary="start to next start",
    definition="1 - sum of all compute / sum of the ranks' times from the iteration's first start "
    "to the next iteration's",
    words="share of the ranks' time from the start of one iteration to that of the next in "
    "which they run no operation of any iteration",
    windows=_windows,
    work=CountedWork.EVERYTHING,
    common_clock=False,
    across_ranks=False,
    order=4,
)
