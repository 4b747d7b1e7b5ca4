"""Precedences: events on two clocks of which one is known to be no later than the other."""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import Ints, Table
from bubbleviz.model.values import frozen


@frozen
class Precedences(Table):
    """Pairs of events on two clocks of which the first is not later than the second.

    Attributes:
        before: clock of the first event.
        after: clock of the second, another.
        before_ns: time of the first on its own clock.
        after_ns: time of the second on its own clock.
        before_row: row of what the first event is; -1 none.
        after_row: likewise of the second.
        iteration: of the second, counted over all ranks.
    """

    before: Ints
    after: Ints
    before_ns: Ints
    after_ns: Ints
    before_row: Ints
    after_row: Ints
    iteration: Ints


def together(*parts: Precedences) -> Precedences:
    """Return all of them as one table."""
    some = [part for part in parts if len(part)]
    if len(some) == 1:
        return some[0]
    empty = np.empty(0, np.int64)
    return Precedences(
        *(
            np.concatenate([empty, *(getattr(part, name) for part in some)])
            for name in Precedences.column_names()
        )
    )
