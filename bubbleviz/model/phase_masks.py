"""Phase masks: which rows of a column are of some phases."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from bubbleviz.model.columns import Bools, Codes, Ints, marked
from bubbleviz.model.phases import Phase


def among(phase: Ints | Codes, phases: Iterable[Phase]) -> Bools:
    """Return which values of a column are some phases; -1 (none) is not.

    A look into a table of all, for each: ``np.isin`` sorts, which takes longer than all else where
    there are a few hundred rows.
    """
    return chosen_of(len(Phase), tuple(phases))[phase]


@cache
def chosen_of(codes: int, some: tuple[int, ...]) -> Bools:
    """Return for each of so many codes whether it is chosen, and in the last place False (none)."""
    return marked(codes + 1, list(some))


#: So many operations are an iteration of most ranks.
_FEW = 1024


def any_among(phase: Ints | Codes, phases: Iterable[Phase]) -> bool:
    """Return whether any value of a column is one of some phases; mostly a first one is."""
    return bool(among(phase[:_FEW], phases).any() or among(phase, phases).any())
