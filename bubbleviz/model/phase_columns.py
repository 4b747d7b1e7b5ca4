"""Columns of phases: which rows are of some phases."""

from __future__ import annotations

from functools import cache

import numpy as np

from bubbleviz.model.columns import Bools, Codes
from bubbleviz.model.phases import Phase


def of_phases(phase: Codes, phases: tuple[Phase, ...]) -> Bools:
    """Tell of each row whether its phase is one of some; -1 is none.

    ``np.isin`` sorts, which takes longer than all else where there are a few hundred rows.
    """
    return _table(phases)[phase]


@cache
def _table(phases: tuple[Phase, ...]) -> Bools:
    """Return for each code whether it is one of some phases, in the last place that of none."""
    table = np.zeros(len(Phase) + 1, bool)
    table[list(phases)] = True
    return table
