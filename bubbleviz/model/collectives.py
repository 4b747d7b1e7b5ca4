"""Collectives, and the times at which each rank entered and left them.

A collective cannot finish before all of its ranks have entered. Each rank's kernel therefore first
waits, then moves data::

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
    """A process group, as created by ``torch.distributed.new_group``.

    Attributes:
        name: Name of the group, or "" if unknown. Several groups may have the same name.
        ranks_text: The list of ranks as written in the profile, if that list is incomplete.
            x Global ranks of the members, in the order of the group. Empty if not all are known.
        size: Number of members, or 0 if unknown. description: Description of the group, such as
        ``default_pg``, or "" if unknown. has_unique_name: Whether no group with other members has
        the same name.
    """

    name: str
    ranks_text: str = ""
    ranks: tuple[int, ...] = ()
    size: int = 0
    description: str = field(default="", compare=False)
    has_unique_name: bool = False

    @property
    def label(self) -> str:
        """Display name of the group: its name, description and ranks, separated by spaces.

        Unknown parts are left out. Ranks are written as ranges, such as ``[0-3,5]``. At least three
        evenly spaced ranks are written as ``[0-6 by 2]``.
        """
        step = self.ranks[1] - self.ranks[0] if len(self.ranks) > 2 else 1
        ranks = f"[{format_number_ranges(self.ranks)}]" if self.ranks else self.ranks_text
        if step > 1 and self.ranks == tuple(range(self.ranks[0], self.ranks[-1] + 1, step)):
            ranks = f"[{self.ranks[0]}-{self.ranks[-1]} by {step}]"
        return " ".join(part for part in (self.name, self.description, ranks) if part)


def format_number_ranges(numbers: Sequence[int]) -> str:
    """Format numbers as ``0-3,5``, in the given order.

    Consecutive numbers are joined into ranges.
    """
    texts = []
    for _, pairs in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in pairs]
        texts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(texts)


@dataclass(frozen=True, eq=False, repr=False)
class Collectives(Table):
    """Collectives recorded by PyTorch's profiler, one row per kernel. Unknown values are -1.

    Attributes:
        kernel: Row of the kernel in the activity table.
        operation: Number of the collective call. All kernels of a call share the same number.
        name: The name of the collective, as an index into ``names``.
        group: The process group, as an index into ``groups``.
        elements_in: Number of elements that the rank contributes.
        elements_out: Number of elements that the rank receives.
        datatype: The data type, as an index into ``names``.
        is_uneven: 1 if the ranks contribute or receive different numbers of elements, else 0.
        rank: Position of the calling rank in the process group.
        peer: Position, within the process group, of the rank that data is sent to or received from.
        root: Position of the root rank in the process group.
        sequence: Sequence number of the collective call within the process group.
        names: Names that PyTorch uses for collectives and data types.
        groups: Distinct process groups.
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
    """Intervals in which each rank was inside a collective, sorted by (rank, start).

    Unknown values are -1.

    Each row is one kernel, or several kernels that a profile records as one operation. The table
    contains

    - kernels that are not part of a forward or backward, such as gradient synchronization between
      replicas;
    - kernels that ran while the rank was idle;
    - kernels of a kind and group that a rank ran at most 64 times per iteration, such as gradient
      buckets.

    All other collectives are left out, mainly tensor-parallel collectives inside operations. Those
    collectives would need one row per kernel, and do not explain idle time.

    Attributes:
        rank: Index of the rank.
        iteration: Index of the iteration.
        kind: Index into ``kinds``.
        group: Index into ``groups``.
        order: Zero-based position, in launch order, among all collectives with the same rank, kind,
            group and iteration. The count includes collectives that this table leaves out.
        sequence: Recorded sequence number of the collective within its group.
        start_ns: Time at which the rank entered the collective.
        end_ns: Time at which the rank left the collective.
        late_ns: How long the rank was idle before the collective because the host had not launched
            the kernel yet, or 0 if the rank was busy or the launch time is unknown.
        operation: Row of the operation that contains the kernel, or -1 if there is none.
        meeting: Number of the collective, the same on all ranks that took part in it. A single
            collective on one rank spans several rows if it ran in several kernels.
        kinds: NCCL operation names, such as ``AllReduce``, or "" if unnamed.
        groups: Communicators and process groups. Two equal groups have the same members.
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
