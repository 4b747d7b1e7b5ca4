"""Collectives: time that each rank spent in each collective, and the rows that form one collective.

No member of a collective gets its result before all members have entered, so its kernel first waits
and then moves data::

    rank 0   ├─ waiting ──────┼─ moving ─┤
    rank 1        ├─ waiting ─┼─ moving ─┤
    rank 2                    ├─ moving ─┤      entered last: one meeting of three rows
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from bubbleviz.model.columns import Ints, Table


@dataclass(frozen=True)
class Group:
    """A process group (``torch.distributed.new_group``): a communicator of its ranks.

    Attributes:
        name: Name of the group, or "" if unknown. Groups with other members may share it.
        ranks_text: Text with the ranks as the profile contains it if not all ranks are known,
            otherwise "".
        ranks: Global ranks of the members, in order; empty if not all are known.
        size: Number of members, or 0 if unknown.
        description: Description of the group, such as ``default_pg``, or "" if unknown.
        has_unique_name: Whether no group with other members has the same name.
    """

    name: str
    ranks_text: str = ""
    ranks: tuple[int, ...] = ()
    size: int = 0
    description: str = field(default="", compare=False)
    has_unique_name: bool = False

    @property
    def label(self) -> str:
        """Display name of the group: its name, description and ranks, without unknown parts.

        Ranks are shortened to ranges, such as ``[0-3,5]``, or ``[0-6 by 2]`` if evenly spaced.
        """
        step = self.ranks[1] - self.ranks[0] if len(self.ranks) > 2 else 1
        ranks = f"[{format_number_ranges(self.ranks)}]" if self.ranks else self.ranks_text
        if step > 1 and self.ranks == tuple(range(self.ranks[0], self.ranks[-1] + 1, step)):
            ranks = f"[{self.ranks[0]}-{self.ranks[-1]} by {step}]"
        return " ".join(part for part in (self.name, self.description, ranks) if part)


def format_number_ranges(numbers: Sequence[int]) -> str:
    """Format numbers as ``0-3,5``, keeping their order; runs of consecutive numbers are joined."""
    texts = []
    for _, pairs in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in pairs]
        texts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(texts)


@dataclass(frozen=True, eq=False, repr=False)
class Collectives(Table):
    """Collectives of PyTorch's profiler, one row per kernel. Unknown values are -1.

    Attributes:
        kernel: Row of the kernel in the activities.
        operation: Number that the kernels of one operation share.
        name: Index into ``names`` of the operation's name.
        group: Index into ``groups``.
        elements_in: Number of elements that the rank contributes.
        elements_out: Number of elements that the rank receives.
        datatype: Index into ``names`` of the data type.
        is_uneven: 1 if the parts of the ranks differ in size, else 0.
        rank: Index of the calling rank in the group.
        peer: Index in the group of the rank that the calling rank sends to or receives from.
        root: Index in the group of the root.
        sequence: Number of the operation within the group.
        names: PyTorch's names of operations and data types.
        groups: Process groups.
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
    """Times of ranks in collectives, sorted by (rank, start). Unknown values are -1.

    A row is a kernel, or several kernels that a profile records as one operation. The table
    contains

    - kernels that no forward or backward owns, such as the synchronization of replicas;
    - kernels that ran while the rank was idle;
    - kernels of a kind and group that a rank ran at most 64 times per iteration, such as buckets of
      gradients.

    All others are left out, mainly the collectives of tensor parallelism inside operations: they
    would need as many rows as there are kernels, and they explain no idle time.

    Attributes:
        rank: Index of the rank.
        iteration: Index of the iteration.
        kind: Index into ``kinds``.
        group: Index into ``groups``.
        order: Position among the rank's collectives of this kind, group and iteration, from 0, in
            launch order. Kernels that are left out count.
        sequence: Recorded number of the collective within its group.
        start_ns: Time when the rank entered.
        end_ns: Time when the rank left.
        late_ns: Time for which the rank was idle before because the host had not launched the
            kernel, or 0 if it was busy or the launch time is unknown.
        operation: Row of the operation that owns the kernel, or -1 if there is none.
        meeting: Number that the rows of all ranks in one collective share. A rank has several rows
            of the same collective if it ran in pieces.
        kinds: NCCL's names of operations (``AllReduce``), or "" for an unnamed kind.
        groups: Communicators and process groups. Equal groups have the same members.
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
