"""A plan as a recurrence, evaluated for thousands of layouts at once.

With a fixed order the end of an operation is

    end = max(end of the device's operation before, end of the remote input + transfer) + length

(a local input ended before the device's operation before it did, or is it). One column a layout
makes that three numpy calls an operation, and the same sums as
:func:`bubbleviz.schedules.simulation.simulate` makes, exactly: all are whole nanoseconds.

The longest path of one layout is a sum of its stages' times with fixed factors. For another
layout the same path is still a path, so that its length there is a lower bound of the makespan.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import NONE, Floats, Ints
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.layout.layers import FEATURES, HELD, KEPT, RESIDENT, Layers
from bubbleviz.schedules.plan import Plan
from bubbleviz.schedules.simulation import in_turn

#: Where the length of a phase stands among :attr:`Layers.times`.
_COLUMN = {Phase.F: 0, Phase.B: 1, Phase.W: 2, Phase.BW: 3}
#: Directions of what crosses a boundary: outputs go down, gradients up.
_DOWN, _UP = 0, 1
#: Layouts that are evaluated at once: a column of 32 kB stays in the cache.
BLOCK = 4096


#: An operation, or two that run side by side: the node that the device ran before, -1 for none;
#: nodes on other devices whose results it needs, with the direction and the boundary that each
#: crosses (``b`` is that behind virtual stage ``b``); and of each operation the virtual stage of
#: one pipeline, and the column of the lengths.
_Node = tuple[int, list[tuple[int, int, int]], list[tuple[int, int]]]
#: The longest path through a plan at the times of one layout: how often it takes each feature of
#: each virtual stage, shape (7, S), and how often it crosses each boundary between devices, down
#: and up, shape (2, S - 1).
Path = tuple[Floats, Floats]


class Recurrence:
    """A plan, ready to be timed for any layout.

    Args:
        plan: fixed orders.
        links: by device and device: how long anything takes from one to the other beside the
            layers' own transfers; None for no time.

    Raises:
        MismatchError: the order deadlocks.
    """

    def __init__(self, plan: Plan, links: Ints | None = None) -> None:
        self.plan = plan
        #: Virtual stages of one pipeline; the replicas' stages hold the same layers.
        self.length = len(plan.placement) // plan.replicas
        self.placement = plan.placement[: self.length]
        self._nodes = _nodes(plan, self.length)
        #: What crossing each boundary takes beside the transfers of layers, down and up.
        self.edges = edges_of(self.placement, links)
        followed = {before for before, _, _ in self._nodes}
        self._last = [at for at in range(len(self._nodes)) if at not in followed]

    def makespans(self, layers: Layers, bounds: Ints) -> Ints:
        """Return the makespan of each layout, in nanoseconds.

        Args:
            layers: of the model.
            bounds: one layout a row, see :class:`Layout`; shape (n, S + 1).
        """
        result = np.empty(len(bounds), np.int64)
        for at in range(0, len(bounds), BLOCK):
            part = bounds[at : at + BLOCK]
            ends = self._ends(*self._times(layers, part))
            result[at : at + BLOCK] = ends[self._last].max(axis=0, initial=0)
        return result

    def path(self, layers: Layers, bounds: Ints) -> Path:
        """Return the longest path of one layout, a row of ``bounds``."""
        return self._longest(*self._times(layers, bounds[None, :]))

    def device_paths(self, layers: Layers) -> list[Path]:
        """Return for each device a path through all that it runs, on to it and away from it."""
        totals = [int(each.sum()) for each in layers.times]
        each = [1 + total * 1000 // (1 + sum(totals)) for total in totals]
        lengths = np.array(each, np.int64)[:, None, None]
        lengths = np.repeat(lengths, self.length, axis=1)
        paths = []
        for device in range(self.plan.stages):
            weight = np.where(np.array(self.plan.placement) == device, 1 << 20, 1)
            weight = weight.reshape(-1, self.length).max(axis=0)
            transfers = np.ones((2, max(0, self.length - 1), 1), np.int64)
            paths.append(self._longest(lengths * weight[:, None], transfers))
        return paths

    def _longest(self, lengths: Ints, transfers: Ints) -> Path:
        """Return the longest path at some times of one layout."""
        ends = self._ends(lengths, transfers)[:, 0]
        factors, crossed = np.zeros((FEATURES, self.length)), self._uncrossed()
        at = max(self._last, key=lambda node: int(ends[node]), default=NONE)
        while at != NONE:
            before, remote, operations = self._nodes[at]
            start = int(ends[at])
            for stage, column in operations:
                start -= int(lengths[column, stage, 0])
                factors[column, stage] += 1
            at = before
            if at == NONE or int(ends[at]) != start:
                for source, *crossing in remote:
                    if int(ends[source]) + int(transfers[(*crossing, 0)]) == start:
                        at = source
                        crossed[tuple(crossing)] += 1
                        break
        return factors, crossed

    def _times(self, layers: Layers, bounds: Ints) -> tuple[Ints, Ints]:
        """Return the lengths of F, B, W and BW by virtual stage, and transfers by boundary.

        Shapes (4, S, n) and (2, S - 1, n).
        """
        each = np.stack(layers.times)
        sums = np.concatenate((np.zeros((4, 1), np.int64), each.cumsum(axis=1)), axis=1)
        at = bounds.T
        ways = np.stack((layers.down_ns, layers.up_ns))
        transfers = ways[:, at[1:-1] - 1] + self.edges[:, :, None]
        return sums[:, at[1:]] - sums[:, at[:-1]], transfers

    def _uncrossed(self) -> Floats:
        """Return boundaries that nothing crosses."""
        return np.zeros((2, max(0, self.length - 1)))

    def _ends(self, lengths: Ints, transfers: Ints) -> Ints:
        """Return when each node ends, by layout; shape (nodes, n)."""
        ends = np.empty((len(self._nodes), lengths.shape[2]), np.int64)
        arrival = np.empty(lengths.shape[2], np.int64)
        for row, (before, remote, operations) in zip(ends, self._nodes, strict=True):
            if before == NONE:
                row[:] = 0
            begun = row if before == NONE else ends[before]
            for source, way, boundary in remote:
                np.add(ends[source], transfers[way, boundary], out=arrival)
                begun = np.maximum(begun, arrival, out=row)
            for stage, column in operations:
                begun = np.add(begun, lengths[column, stage], out=row)
        return ends

    def memory_rows(self) -> list[tuple[int, Path]]:
        """Return what each device holds at its fullest moments: (device, factors of features).

        The order of a device fixes what it holds when, whatever the times, so that its peak is the
        largest of a few sums; moments that hold no more of anything than another are left out.
        """
        rows: list[tuple[int, Path]] = []
        for device, order in enumerate(self.plan.orders):
            change = np.zeros((len(order) + 1, 2, self.length), np.int64)
            for at, op in enumerate(order, 1):
                stage = op.virtual_stage % self.length
                if op.phase is Phase.F:
                    change[at, :, stage] = 1
                if op.phase in (Phase.B, Phase.BW):
                    change[at, 0, stage] = -1
                if op.phase in (Phase.W, Phase.BW):
                    change[at, 1, stage] = -1
            # Of what is held, the part that stays until W is counted by itself.
            held = change.cumsum(axis=0)
            full, late = held[:, 0], held[:, 1] - held[:, 0]
            present = (np.array(self.plan.placement) == device).reshape(-1, self.length).sum(axis=0)
            for moment in _undominated(np.unique(np.concatenate((full, late), axis=1), axis=0)):
                factors = np.zeros((FEATURES, self.length))
                factors[HELD], factors[KEPT] = np.split(moment, 2)
                factors[RESIDENT] = present
                rows.append((device, (factors, self._uncrossed())))
        return rows


def _undominated(moments: Ints) -> Ints:
    """Return the rows that no other row equals or exceeds in every column; rows are distinct."""
    kept: list[Ints] = []
    for row in moments[np.argsort(-moments.sum(axis=1), kind="stable")]:
        if not any((other >= row).all() for other in kept):
            kept.append(row)
    return np.array(kept, np.int64).reshape(len(kept), moments.shape[1])


def edges_of(placement: tuple[int, ...], links: Ints | None) -> Ints:
    """Return how long it takes over each boundary of a placement, down and up; (2, S - 1)."""
    edges = np.zeros((2, len(placement) - 1), np.int64)
    if links is not None and len(placement) > 1:
        here, there = np.array(placement[:-1]), np.array(placement[1:])
        edges[_DOWN], edges[_UP] = links[here, there], links[there, here]
        edges[:, here == there] = 0
    return edges


def _nodes(plan: Plan, length: int) -> list[_Node]:
    """Return the operations in an order in which each comes behind what it needs.

    Raises:
        MismatchError: there is none.
    """
    nodes: list[_Node] = []
    made: dict[tuple[bool, int, int], int] = {}
    last = [NONE] * plan.stages
    for device, group, taken, given in in_turn(plan, made):
        remote = [
            (made[result], _DOWN if result[0] else _UP, result[1] % length - (not result[0]))
            for result in taken
            if plan.placement[result[1]] != device
        ]
        operations = [(op.virtual_stage % length, _COLUMN[op.phase]) for op in group]
        made.update(dict.fromkeys(given, len(nodes)))
        nodes.append((last[device], remote, operations))
        last[device] = len(nodes) - 1
    return nodes
