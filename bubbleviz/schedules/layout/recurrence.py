"""A plan as a recurrence, evaluated for thousands of layouts at once.

With a fixed order the end of an operation is

    end = max(end of the device's operation before, end of the remote input + transfer) + length

(a local input ended before the device's operation before it did, or is it). One column a layout
makes that three numpy calls an operation, and the same sums as
:func:`bubbleviz.schedules.simulation.simulate` makes, exactly: all are whole nanoseconds.

The longest path of one layout is a sum of its stages' times with fixed factors. For another layout
the same path is still a path, so that its length there is a lower bound of the makespan.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from bubbleviz.errors import MismatchError
from bubbleviz.model.columns import NONE, Floats, Ints
from bubbleviz.model.phases import Phase
from bubbleviz.model.values import frozen
from bubbleviz.schedules.layout.layers import FEATURES, HELD, KEPT, RESIDENT, Layers
from bubbleviz.schedules.plan import Plan, PlannedOperation

#: Where the length of a phase stands among :attr:`.layers.Layers.times`.
_COLUMN = {Phase.F: 0, Phase.B: 1, Phase.W: 2, Phase.BW: 3}
#: Directions of what crosses a boundary: outputs go down, gradients up.
_DOWN, _UP = 0, 1
#: Layouts that are evaluated at once: a column of 32 kB stays in the cache.
BLOCK = 4096


@frozen
class _Node:
    """An operation, or two that run side by side.

    Attributes:
        before: node that the device ran before; -1 none.
        remote: nodes on other devices whose results it needs, with the direction and the boundary
            that each crosses (``b`` is that behind virtual stage ``b``).
        operations: (virtual stage of one pipeline, column of the lengths) of each.
    """

    before: int
    remote: tuple[tuple[int, int, int], ...]
    operations: tuple[tuple[int, int], ...]


@frozen
class Path:
    """The longest path through a plan at the times of one layout.

    Attributes:
        factors: how often it takes each feature of each virtual stage; shape (7, S).
        crossed: how often it crosses each boundary between devices, down and up; shape (2, S - 1).
    """

    factors: Floats
    crossed: Floats


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
        followed = {node.before for node in self._nodes}
        self._last = [at for at in range(len(self._nodes)) if at not in followed]

    def makespans(self, layers: Layers, bounds: Ints) -> Ints:
        """Return the makespan of each layout, in nanoseconds.

        Args:
            layers: of the model.
            bounds: one layout a row, see :class:`.layers.Layout`; shape (n, S + 1).
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
            node = self._nodes[at]
            start = int(ends[at])
            for stage, column in node.operations:
                start -= int(lengths[column, stage, 0])
                factors[column, stage] += 1
            at = node.before
            if at == NONE or int(ends[at]) != start:
                for source, *crossing in node.remote:
                    if int(ends[source]) + int(transfers[(*crossing, 0)]) == start:
                        at = source
                        crossed[tuple(crossing)] += 1
                        break
        return Path(factors, crossed)

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
        for row, node in zip(ends, self._nodes, strict=True):
            first, *others = node.operations
            if node.before == NONE:
                row[:] = 0
            begun = row if node.before == NONE else ends[node.before]
            for source, way, boundary in node.remote:
                np.add(ends[source], transfers[way, boundary], out=arrival)
                begun = np.maximum(begun, arrival, out=row)
            np.add(begun, lengths[first[1], first[0]], out=row)
            for stage, column in others:
                np.add(row, lengths[column, stage], out=row)
        return ends

    def memory_rows(self) -> list[tuple[int, Path]]:
        """Return what each device holds at its fullest moments: (device, factors of features).

        The order of a device fixes what it holds when, whatever the times, so that its peak is the
        largest of a few sums; moments that hold no more of anything than another are left out.
        """
        return [
            (device, Path(factors, self._uncrossed()))
            for device in range(self.plan.stages)
            for factors in self._moments(device)
        ]

    def _moments(self, device: int) -> list[Floats]:
        """Return the factors of a device's fullest moments."""
        order = self.plan.orders[device]
        change = np.zeros((len(order) + 1, 2, self.length), np.int64)
        for at, op in enumerate(order):
            stage = op.virtual_stage % self.length
            if op.phase is Phase.F:
                change[at + 1, :, stage] = 1
            if op.phase in (Phase.B, Phase.BW):
                change[at + 1, 0, stage] = -1
            if op.phase in (Phase.W, Phase.BW):
                change[at + 1, 1, stage] = -1
        # Of what is held, the part that stays until W is counted by itself.
        held = change.cumsum(axis=0)
        full, late = held[:, 0], held[:, 1] - held[:, 0]
        moments = np.unique(np.concatenate((full, late), axis=1), axis=0)
        fullest = _undominated(moments)
        present = np.zeros(self.length)
        mine = [stage for stage, at in enumerate(self.plan.placement) if at == device]
        for stage in mine:
            present[stage % self.length] += 1
        rows = []
        for moment in fullest:
            factors = np.zeros((FEATURES, self.length))
            factors[HELD] = moment[: self.length]
            factors[KEPT] = moment[self.length :]
            factors[RESIDENT] = present
            rows.append(factors)
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
    groups = [_grouped(plan, device) for device in range(plan.stages)]
    nodes: list[_Node] = []
    made: dict[tuple[bool, int, int], int] = {}
    place, last = [0] * plan.stages, [NONE] * plan.stages
    todo = list(range(plan.stages))
    while todo:
        device = todo.pop()
        while place[device] < len(groups[device]):
            group = groups[device][place[device]]
            remote = _remote(plan, length, group, device, made)
            if remote is None:
                break
            operations = tuple((op.virtual_stage % length, _COLUMN[op.phase]) for op in group)
            nodes.append(_Node(last[device], remote, operations))
            last[device] = len(nodes) - 1
            place[device] += 1
            for op in group:
                if op.phase is Phase.W:
                    continue
                made[op.phase is Phase.F, op.virtual_stage, op.microbatch] = len(nodes) - 1
                near = op.virtual_stage + (1 if op.phase is Phase.F else -1)
                if near // length == op.virtual_stage // length:
                    todo.append(plan.placement[near])
    for device, group_list in enumerate(groups):
        if place[device] < len(group_list):
            raise MismatchError(
                f"the order deadlocks: device {device} waits for ever for the inputs of "
                f"{group_list[place[device]][0]}"
            )
    return nodes


def _grouped(plan: Plan, device: int) -> list[tuple[PlannedOperation, ...]]:
    """Return the operations of a device, those that run side by side as one."""
    groups: list[tuple[PlannedOperation, ...]] = []
    pending: PlannedOperation | None = None
    order = plan.orders[device]
    for op, behind in pairwise((*order, None)):
        assert op is not None
        if pending is not None:
            groups.append((pending, op))
            pending = None
        elif op in plan.together and behind is not None and behind.phase is not Phase.F:
            pending = op
        else:
            groups.append((op,))
    return groups


def _remote(
    plan: Plan,
    length: int,
    group: tuple[PlannedOperation, ...],
    device: int,
    made: dict[tuple[bool, int, int], int],
) -> tuple[tuple[int, int, int], ...] | None:
    """Return the remote inputs of a node, with what they cross; None where one is not made yet."""
    needed = []
    for op in group:
        stage, mb = op.virtual_stage, op.microbatch
        if op.phase is Phase.F and stage % length:
            source, crossing = (True, stage - 1, mb), (_DOWN, stage % length - 1)
        elif op.phase in (Phase.B, Phase.BW) and (stage + 1) % length:
            source, crossing = (False, stage + 1, mb), (_UP, stage % length)
        else:
            continue
        if source not in made:
            return None
        if plan.placement[source[1]] != device:
            needed.append((made[source], *crossing))
    return tuple(needed)
