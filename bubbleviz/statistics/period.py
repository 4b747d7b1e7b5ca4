"""What training waits for: from an iteration's first start to the next one's, on each rank."""

from __future__ import annotations

from bubbleviz.statistics import Extents, Statistic, Windows, Work


def _windows(extents: Extents) -> Windows:
    import numpy as np

    following = np.roll(extents.first_ns, -1, axis=0)
    both = extents.present & np.roll(extents.present, -1, axis=0)
    known = extents.present.any(axis=1) & (both == extents.present).all(axis=1)
    known[-1:] = False
    return Windows(extents.first_ns, following, known)


STATISTIC = Statistic(
    name="period",
    summary="from one iteration to the next",
    definition="1 - sum of all compute / sum of the ranks' times from the iteration's first start "
    "to the next iteration's",
    windows=_windows,
    work=Work.EVERYTHING,
    common_clock=False,
    order=4,
)
