"""Mixtures of sums: weighted means, which bound the longest of them from below.

The longest of some sums is at least any mean of them, and the least value of a mean is found
exactly (:mod:`.bounds`). Weights that make it large are Lagrange multipliers of "no sum exceeds the
makespan"; they are sought by multiplicative steps towards the sums that are long where the mean is
short.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.schedules.layout.bounds import Sums
from bubbleviz.schedules.layout.incumbent import Incumbent

#: Steps, mixtures that are kept, and steps between looks at a layout that a mixture prefers.
_STEPS, _KEPT, _BETWEEN = 96, 6, 8


def add_mixtures(sums: Sums, incumbent: Incumbent) -> None:
    """Add mixtures of the sums whose least value is large, and paths that were met on the way."""
    share = np.full(len(sums), 1.0 / len(sums))
    found = []
    for number in range(_STEPS):
        up_to = np.tensordot(share, sums.up_to, 1)[None]
        into = np.tensordot(share, sums.into, 1)[None]
        rest = sums.least(up_to, into)
        found.append((float(rest[0, 0, 0]), up_to, into))
        bounds = sums.best_layout(up_to[0], into[0], rest[0])
        if number % _BETWEEN == 0:
            better = incumbent.climb(bounds)
            recurrence, layers = incumbent.recurrence, incumbent.layers
            sums.add([recurrence.path(layers, each) for each in (bounds, better)])
            share = np.concatenate((share * 0.9, [0.05, 0.05]))
        values = sums.values(bounds[None, :])[0]
        spread = float(values.max() - values.min())
        if spread > 0:
            share = share * np.exp(3.0 / np.sqrt(1 + number) * (values - values.max()) / spread)
            share /= share.sum()
    found.sort(key=lambda mixture: -mixture[0])
    for _, up_to, into in found[:_KEPT]:
        sums.extend(up_to, into)
