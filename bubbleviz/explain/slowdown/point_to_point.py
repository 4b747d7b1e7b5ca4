"""Point to point: which compute each send and receive belongs to, and which are pairs."""

from __future__ import annotations

from bubbleviz.model.columns import Ints, Table
from bubbleviz.model.values import frozen

#: How far the clock of sends and receives is off that of computes, as in the published analyzer.
CLOCK_NS = 50_000


@frozen
class PointToPoint(Table):
    """Sends and receives of an iteration, each with what it belongs to.

    Attributes:
        row: of the work table.
        compute: row of the compute that takes or gave the data; -1 where it stands for nothing.
        pair: number of the pair that it forms with its peer; -1 without a peer.
    """

    row: Ints
    compute: Ints
    pair: Ints
