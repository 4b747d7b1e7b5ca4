"""Collectives: when each rank was in which, and which rows of all ranks are one.

No member of a collective has its result before all have entered, so a kernel waits first and moves
data then::

    rank 0   ├─ waiting ──────┼─ moving ─┤
    rank 1        ├─ waiting ─┼─ moving ─┤
    rank 2                    ├─ moving ─┤      entered last: one meeting of three rows
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from bubbleviz.model.columns import Ints, Table

# Process groups of PyTorch, and the collectives that its profiler records.


@dataclass(frozen=True)
class Group:
    """A process group (``torch.distributed.new_group``): a communicator of its ranks.

    Attributes:
        name: of the group; "" unknown. Groups of other ranks may have the same one.
        ranks_text: its ranks as they are written where not all are known; "" else.
        ranks: the members' numbers in the run, in order; empty where not all are known.
        size: how many there are; 0 unknown.
        description: of the group, as ``default_pg``; "" unknown.
        has_unique_name: whether no group of other ranks has its name.
    """

    name: str
    ranks_text: str = ""
    ranks: tuple[int, ...] = ()
    size: int = 0
    description: str = field(default="", compare=False)
    has_unique_name: bool = False

    @property
    def label(self) -> str:
        """The group for people: name, description and ranks."""
        step = self.ranks[1] - self.ranks[0] if len(self.ranks) > 2 else 1
        ranks = f"[{format_number_ranges(self.ranks)}]" if self.ranks else self.ranks_text
        if step > 1 and self.ranks == tuple(range(self.ranks[0], self.ranks[-1] + 1, step)):
            ranks = f"[{self.ranks[0]}-{self.ranks[-1]} by {step}]"
        return " ".join(part for part in (self.name, self.description, ranks) if part)


def format_number_ranges(numbers: Sequence[int]) -> str:
    """Return numbers as ``0-3,5``, in their order."""
    texts = []
    for _, pairs in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in pairs]
        texts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(texts)


@dataclass(frozen=True, eq=False, repr=False)
class Collectives(Table):
    """Collectives that kernels carry out: a row for each kernel of each; -1 is none.

    Attributes:
        kernel: row of the activities.
        operation: number that the kernels of one operation share.
        name: row of ``names``.
        group: row of ``groups``.
        elements_in: that the rank hands in.
        elements_out: that it takes.
        datatype: row of ``names``.
        is_uneven: 1 where the ranks' parts differ in size; else 0.
        rank: own, in the group.
        peer: rank in the group that it goes to or comes from.
        root: rank in the group that it starts from or ends at.
        sequence: number among the group's operations.
        names: of operations and datatypes, as PyTorch has them.
        groups: the groups.
    """

    kernel: Ints
    operation: Ints
    name: Ints
    group: Ints
    elements_in: Ints
    elements_out: Ints
    datatype: Ints
    is_uneven: Ints
    rank: Ints
    peer: Ints
    root: Ints
    sequence: Ints
    names: tuple[str, ...] = field(metadata={"shared": True})
    groups: tuple[Group, ...] = field(metadata={"shared": True})


@dataclass(frozen=True, eq=False, repr=False)
class CollectiveIntervals(Table):
    """When ranks were in collectives, in order of (rank, start); -1 is "none" or "unknown".

    A row is one kernel, or several that a profile records as one operation. Kept are the kernels
    that no forward or backward owns (what synchronises replicas, norms, parameters), and of those
    that one owns what ran while the rank was idle, and kinds of a group of which a rank ran at most
    64 an iteration (buckets of gradients). What tensor parallelism runs inside operations would be
    as many rows as kernels, and explains no idle time.

    Attributes:
        rank: the rank.
        iteration: its iteration.
        kind: row of ``kinds``: what it does.
        group: row of ``groups``: among whom.
        order: its place among the rank's collectives of this kind, group and iteration, from 0, in
            the order in which the host launched them; rows that are not kept count.
        sequence: its number among those of its group, as recorded.
        start_ns: when the rank entered.
        end_ns: when it left.
        late_ns: how long the rank ran nothing before, since the host had not launched it; 0 where
            it ran something, or that is unknown.
        operation: row of the operations that owns it.
        meeting: a number that the rows of all ranks share that are one collective. A rank has
            several rows of one where it ran in pieces.
        kinds: NCCL's names of operations (``AllReduce``); "" for what has none.
        groups: communicators and process groups; equal ones have the same members.
    """

    rank: Ints
    iteration: Ints
    kind: Ints
    group: Ints
    order: Ints
    sequence: Ints
    start_ns: Ints
    end_ns: Ints
    late_ns: Ints
    operation: Ints
    meeting: Ints
    kinds: tuple[str, ...] = field(metadata={"shared": True})
    groups: tuple[Group, ...] = field(metadata={"shared": True})
