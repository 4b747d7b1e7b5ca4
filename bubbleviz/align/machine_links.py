"""Machine links: what to add to each machine's clock so that one pairing of iterations is possible.

The machines are joined one after another, each by the first pair of ranks that decides how its
iterations pair with those of a machine that is already joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from bubbleviz.align.iteration_histories import RankHistory
from bubbleviz.align.iteration_links import Link, link
from bubbleviz.model.values import frozen

#: With so many pairs of ranks a machine is tried.
_TRIES = 6


@frozen
class Neighbours:
    """Two ranks next to each other: of a pipeline, or replicas (``beside``)."""

    first: int
    second: int
    beside: bool


@frozen
class MachineLink:
    """How two ranks of two machines were paired."""

    first: int
    second: int
    link: Link


@frozen
class LinkedMachines:
    """Machines whose iterations pair.

    Attributes:
        offset_ns: what to add to the clock of each, by its number.
        links: one for each machine but the first: how it was joined, or what came closest.
    """

    offset_ns: Mapping[int, int]
    links: tuple[MachineLink, ...]


def linked(
    histories: Mapping[int, RankHistory],
    neighbours: Sequence[Neighbours],
    machine: Sequence[int],
    timed: Callable[[int, int], bool],
) -> LinkedMachines:
    """Return the machines that are linked to that of the first rank.

    Args:
        histories: of the ranks.
        neighbours: pairs of them, those of the first rank first.
        machine: number of each rank's machine.
        timed: whether the UTC of two ranks is known.
    """
    joining = _Joining(histories, machine, timed)
    edges = [pair for pair in neighbours if machine[pair.first] != machine[pair.second]]
    if not neighbours:
        return LinkedMachines({}, ())
    joining.offset_ns[machine[neighbours[0].first]] = 0
    while joining.join_any(edges) or joining.join_any(_farther(joining, neighbours)):
        pass
    return LinkedMachines(joining.offset_ns, tuple(joining.links.values()))


def _farther(joining: _Joining, neighbours: Sequence[Neighbours]) -> Iterator[Neighbours]:
    """Yield pairs of ranks of one pipeline that have one other rank in between."""
    for one, other in pairwise(neighbours):
        if one.second == other.first and not one.beside and not other.beside:
            pair = Neighbours(one.first, other.second, beside=False)
            if joining.machine[pair.first] != joining.machine[pair.second]:
                yield pair


class _Joining:
    """Machines while they are joined."""

    def __init__(
        self,
        histories: Mapping[int, RankHistory],
        machine: Sequence[int],
        timed: Callable[[int, int], bool],
    ) -> None:
        self.histories = histories
        self.machine = machine
        self.timed = timed
        self.offset_ns: dict[int, int] = {}
        self.links: dict[int, MachineLink] = {}
        self.tried: set[tuple[int, int]] = set()
        self.tries: dict[int, int] = {}

    def join_any(self, pairs: Iterable[Neighbours]) -> bool:
        """Join what these pairs join, and return whether that is anything."""
        return sum(self.join(pair) for pair in pairs) > 0

    def join(self, pair: Neighbours) -> bool:
        """Join the machine of one of two ranks to that of the other, and return whether it was."""
        sides = self.machine[pair.first], self.machine[pair.second]
        joined = [side in self.offset_ns for side in sides]
        ends = pair.first, pair.second
        if joined[0] == joined[1] or ends in self.tried:
            return False
        new = sides[joined[0]]
        self.tries[new] = self.tries.get(new, 0) + 1
        self.tried.add(ends)
        if self.tries[new] > _TRIES:
            return False
        found = link(
            self.histories[pair.first],
            self.histories[pair.second],
            beside=pair.beside,
            timed=self.timed(*ends),
        )
        if new not in self.links or found.margin > self.links[new].link.margin:
            self.links[new] = MachineLink(*ends, found)
        if found.best is None or not found.decided:
            return False
        moved = round(found.best.offset_ns)
        other = self.offset_ns[sides[not joined[0]]]
        self.offset_ns[new] = other + (moved if joined[0] else -moved)
        return True
