"""Phase masks: which rows of a column are of some phases."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np

from bubbleviz.model.columns import Bools, Codes, Ints
from bubbleviz.model.phases import Phase


def among(phase: Ints | Codes, phases: Iterable[Phase]) -> Bools:
    """Return which values of a column are some phases; -1 (none) is not.

    A look into a table of all, for each: ``np.isin`` sorts, which takes longer than all else where
    there are a few hundred rows.
    """
    return _chosen(tuple(phases))[phase]


@cache
def _chosen(phases: tuple[Phase, ...]) -> Bools:
    """Return for each code whether it is chosen, and in the last place that none is not."""
    chosen = np.zeros(len(Phase) + 1, bool)
    chosen[list(phases)] = True
    return chosen
