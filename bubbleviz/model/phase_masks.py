"""Masks of the rows with certain phases."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from bubbleviz.model.columns import Bools, Codes, Ints, make_mask
from bubbleviz.model.phases import Phase


def mask_phases(phase: Ints | Codes, phases: Iterable[Phase]) -> Bools:
    """Return a mask of the rows whose phase is one of ``phases``. Code -1 (none) never is.

    A lookup table is used because ``np.isin`` sorts, which is slow for a few hundred rows.
    """
    return make_code_mask(len(Phase), tuple(phases))[phase]


@cache
def make_code_mask(n_codes: int, codes: tuple[int, ...]) -> Bools:
    """Return a mask of the codes in ``codes``, with one more entry, False, for code -1.

    Args:
        n_codes: Number of codes.
        codes: Codes that are True in the mask.
    """
    return make_mask(n_codes + 1, list(codes))


#: Number of rows that are checked first. Most ranks have fewer operations per iteration.
_FIRST_ROWS = 1024


def has_phase(phase: Ints | Codes, phases: Iterable[Phase]) -> bool:
    """Return whether any row has one of the phases. The first rows are checked first."""
    return bool(mask_phases(phase[:_FIRST_ROWS], phases).any() or mask_phases(phase, phases).any())
