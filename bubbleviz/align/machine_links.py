"""Machine links: what to add to each machine's clock so that one pairing of iterations is possible.

The machines are joined one after another, each by the first pair of ranks that decides how its
iterations pair with those of a machine that is already joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from bubbleviz.align.iteration_links import Link
from bubbleviz.model.values import frozen

#: With so many pairs of ranks a machine is tried.
_TRIES = 6
#: Of so many pairs links are found together at first.
_AHEAD = 16


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
    find: Callable[[Sequence[Neighbours]], Sequence[Link]],
    neighbours: Sequence[Neighbours],
    machine: Sequence[int],
) -> LinkedMachines:
    """Return the machines that are linked to that of the first rank.

    Args:
        find: returns the links of some pairs of ranks.
        neighbours: pairs of ranks, those of the first rank first.
        machine: number of each rank's machine.
    """
    joining = _Joining(find, machine)
    edges = [pair for pair in neighbours if machine[pair.first] != machine[pair.second]]
    if not neighbours:
        return LinkedMachines({}, ())
    joining.offset_ns[machine[neighbours[0].first]] = 0
    farther = list(_farther(joining, neighbours))
    while joining.join_any(edges) or joining.join_any(farther):
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
        find: Callable[[Sequence[Neighbours]], Sequence[Link]],
        machine: Sequence[int],
    ) -> None:
        self.find = find
        self.machine = machine
        self.offset_ns: dict[int, int] = {}
        self.links: dict[int, MachineLink] = {}
        self.found: dict[tuple[int, int], Link] = {}
        self.tried: set[tuple[int, int]] = set()
        self.tries: dict[int, int] = {}
        self.ahead = _AHEAD

    def join_any(self, pairs: Sequence[Neighbours]) -> bool:
        """Join what these pairs join, and return whether that is anything."""
        before = len(self.offset_ns)
        for place, pair in enumerate(pairs):
            sides = self.machine[pair.first], self.machine[pair.second]
            joined = sides[0] in self.offset_ns, sides[1] in self.offset_ns
            if joined[0] == joined[1] or (pair.first, pair.second) in self.tried:
                continue
            if self._may_try(pair, sides[joined[0]]):
                if (pair.first, pair.second) not in self.found:
                    self._find(pairs[at] for at in range(place, len(pairs)))
                self._join(pair, sides, new=sides[joined[0]])
        return len(self.offset_ns) > before

    def _may_try(self, pair: Neighbours, new: int) -> bool:
        """Note that a machine is tried with a pair, and return whether it may be."""
        self.tries[new] = self.tries.get(new, 0) + 1
        self.tried.add((pair.first, pair.second))
        return self.tries[new] <= _TRIES

    def _find(self, pairs: Iterable[Neighbours]) -> None:
        """Find the links of the first pair, and of those that are tried if each one is decided.

        The more of them were, the more are found at once.
        """
        joined = set(self.offset_ns)
        wanted = []
        for pair in pairs:
            sides = self.machine[pair.first], self.machine[pair.second]
            if (sides[0] in joined) != (sides[1] in joined):
                joined.update(sides)
                if (pair.first, pair.second) not in self.found:
                    wanted.append(pair)
            if len(wanted) >= self.ahead:
                break
        for pair, link in zip(wanted, self.find(wanted), strict=True):
            self.found[pair.first, pair.second] = link

    def _join(self, pair: Neighbours, sides: tuple[int, int], new: int) -> None:
        """Join a new machine by the link of two ranks, if that is decided."""
        ends = pair.first, pair.second
        found = self.found[ends]
        if new not in self.links or found.margin > self.links[new].link.margin:
            self.links[new] = MachineLink(*ends, found)
        if found.best is None or not found.decided:
            self.ahead = 1
            return
        self.ahead *= 2
        moved = round(found.best.offset_ns)
        if new == sides[1]:
            self.offset_ns[new] = self.offset_ns[sides[0]] + moved
        else:
            self.offset_ns[new] = self.offset_ns[sides[1]] - moved
