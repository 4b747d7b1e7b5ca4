"""Starts: where recorded operations and profiled kernels begin, and which can be the same."""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.values import frozen

#: Kernels last as long as their work but for this share of their length and this time: the two are
#: recorded at different points.
_LENGTH_SHARE, _LENGTH_SLACK_NS = 0.25, 50_000


@frozen
class Starts:
    """Where things begin on some clock: columns of one length.

    Attributes:
        start_ns: start of each, ascending.
        family: number of what it does; -1 for anything.
        length_ns: how long it lasts; -1 unknown.
    """

    start_ns: Ints
    family: Ints
    length_ns: Ints


@frozen
class StartPairs:
    """Recorded operations and the kernels that they may be.

    Attributes:
        operations: as recorded.
        kernels: as profiled.
        tolerance_ns: the largest distance of an operation and its kernel on one clock.
    """

    operations: Starts
    kernels: Starts
    tolerance_ns: int

    def alike(self, row: Ints | int, kernel: Ints | slice) -> Bools:
        """Whether operations can be kernels: of one family, and about as long."""
        family, kernel_family = self.operations.family[row], self.kernels.family[kernel]
        length_ns, kernel_ns = self.operations.length_ns[row], self.kernels.length_ns[kernel]
        slack_ns = _LENGTH_SHARE * kernel_ns + _LENGTH_SLACK_NS
        fits = (length_ns < 0) | (np.abs(kernel_ns - length_ns) <= slack_ns)
        same = (family == kernel_family) | (family < 0) | (kernel_family < 0)
        return np.asarray(fits & same, bool)
