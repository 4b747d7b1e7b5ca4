"""Phase masks: which rows of a column are of some phases."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from bubbleviz.model.columns import Bools, Codes, Ints, make_mask
from bubbleviz.model.phases import Phase


def mask_phases(phase: Ints | Codes, phases: Iterable[Phase]) -> Bools:
    """Return which values of a column are some phases; -1 (none) is not.

    A look into a table of all, for each: ``np.isin`` sorts, which takes longer than all else where
    there are a few hundred rows.
    """
    return make_code_mask(len(Phase), tuple(phases))[phase]


@cache
def make_code_mask(n_codes: int, codes: tuple[int, ...]) -> Bools:
    """Return for each of so many codes whether it is chosen, and in the last place False (none)."""
    return make_mask(n_codes + 1, list(codes))


#: So many operations are an iteration of most ranks.
_FIRST_ROWS = 1024


def has_phase(phase: Ints | Codes, phases: Iterable[Phase]) -> bool:
    """Return whether any value of a column is one of some phases; mostly a first one is."""
    return bool(mask_phases(phase[:_FIRST_ROWS], phases).any() or mask_phases(phase, phases).any())
