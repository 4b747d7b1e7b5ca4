"""Masks that select rows by phase."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from bubbleviz.model.columns import Bools, Codes, Ints, make_mask
from bubbleviz.model.phases import Phase


def mask_phases(phase: Ints | Codes, phases: Iterable[Phase]) -> Bools:
    """Return a mask of the rows whose phase is in ``phases``. The mask excludes phase -1 (none).

    A lookup table is used because ``np.isin`` sorts, which is slow for a few hundred rows.
    """
    return make_code_mask(len(Phase), tuple(phases))[phase]


@cache
def make_code_mask(n_codes: int, codes: tuple[int, ...]) -> Bools:
    """Return a lookup table from codes to booleans, shape (n_codes + 1,).

    The last entry is False, so that indexing the table with code -1 (none) yields False.

    Args:
        n_codes: Number of codes.
        codes: Codes whose entries are set to True.
    """
    return make_mask(n_codes + 1, list(codes))


#: Number of rows to check first. Most ranks have fewer operations per iteration.
_FIRST_ROWS = 1024


def has_phase(phase: Ints | Codes, phases: Iterable[Phase]) -> bool:
    """Return whether any row is in one of the phases.

    If the first ``_FIRST_ROWS`` rows contain a match, the other rows are not checked.
    """
    return bool(mask_phases(phase[:_FIRST_ROWS], phases).any() or mask_phases(phase, phases).any())
