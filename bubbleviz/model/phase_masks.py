"""Phase masks: which rows of a column are of some phases."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bubbleviz.model.columns import Bools, Codes, Ints
from bubbleviz.model.phases import Phase


def among(phase: Ints | Codes, phases: Iterable[Phase]) -> Bools:
    """Return which values of a column are some phases: a look into a table of all, for each."""
    chosen = np.zeros(len(Phase), bool)
    chosen[list(phases)] = True
    return chosen[phase]
