"""Who is missing, and who is late: the ranks that others wait for.

An operation is open where a member has entered it and not finished. Members that have not entered
hold it up, and those of them that wait in no other open operation hold up the run::

    rank 0   ├─ barrier ······      waits for 2 and 3
    rank 2   ├─ all-reduce ···      waits for 3
    rank 3                          waits in none: all wait for it
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from bubbleviz.analyses.nccl.communications import EACH, Communications, Communicator
from bubbleviz.analyses.nccl.summary import LateRank
from bubbleviz.interpret.iterations import number_occurrences
from bubbleviz.model import grouping, intervals
from bubbleviz.model.collectives import Group
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.sources.nccl.events import PROGRESS

_STARTED, _COMPLETED = PROGRESS.index("started"), PROGRESS.index("completed")
#: Operations to which all members hand in as much.
_ALIKE = (EACH - {"Gather", "Scatter"}) | {"AllReduce", "Broadcast", "Reduce"}
#: How frameworks describe the process group of a pipeline: ``mesh_pp``,
#: ``PIPELINE_MODEL_PARALLEL_GROUP``.
_PIPELINE = re.compile(r"(?:mesh_)?pp|pipeline\w*", re.IGNORECASE)


@dataclass(frozen=True)
class Fault:
    """An operation that its members have not all entered, finished, or called alike.

    Attributes:
        communicator: whose it is.
        name: of the operation.
        sequence: its number; -1 unknown.
        entered: ranks of the run that have entered it.
        missing: those that have not.
        undumped: those that may have, as no dump of theirs was given.
        calls: where members called it in several ways, each in words, and the ranks that did so.
    """

    communicator: Communicator
    name: str
    sequence: int
    entered: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    undumped: tuple[int, ...] = ()
    calls: tuple[tuple[str, tuple[int, ...]], ...] = ()


def with_run_ranks(table: Communications, dumped: Bools) -> Communications:
    """Return the operations with the numbers of their ranks in the run; -1 unknown.

    Args:
        table: operations.
        dumped: which are of a flight recorder, whose groups of unknown members hold such numbers.
    """
    members = [own.ranks if isinstance(own, Group) else () for own in table.communicators]
    size = np.array([*map(len, members), 0])
    known = np.array([*chain.from_iterable(members), NONE], np.int64)
    first, of_row = (np.cumsum(size) - size)[table.communicator], size[table.communicator]
    inside = (table.rank >= 0) & (table.rank < of_row)
    told = np.where(dumped & (of_row == 0), table.rank, NONE)
    run_rank = np.where(inside, known[np.where(inside, first + table.rank, NONE)], told)
    return replace(table, run_rank=run_rank)


def with_awaited(table: Communications, instance: Ints) -> Communications:
    """Return the operations with how long other members waited for each; -1 unknown.

    They wait for the last to enter; where several are, each has an equal part.
    """
    rows = np.flatnonzero((instance != NONE) & (table.waiting_ns >= 0))
    by = grouping.group_rows(instance[rows])
    waited_ns = np.bincount(by.of_row, table.waiting_ns[rows], len(by))
    last = table.waiting_ns[rows] == 0
    lasts = np.bincount(by.of_row[last], minlength=len(by))
    awaited_ns = np.full(len(table), NONE, np.int64)
    each_ns = waited_ns[by.of_row] / np.maximum(lasts[by.of_row], 1)
    awaited_ns[rows] = np.where(last, np.rint(each_ns), 0)
    return replace(table, awaited_ns=awaited_ns)


def stages_of(communicators: Sequence[Communicator]) -> dict[int, int]:
    """Return the stage of each rank of the run, by the process groups of pipelines."""
    groups = [own for own in communicators if isinstance(own, Group)]
    pipelines = [own.ranks for own in groups if _PIPELINE.fullmatch(own.description)]
    # Pairs of stages may have groups of their own: the longest counts.
    pipelines.sort(key=len)
    return {rank: stage for ranks in pipelines for stage, rank in enumerate(ranks)}


def late_ranks(table: Communications) -> list[LateRank]:
    """Return the ranks that others waited for, the longest awaited first."""
    rows = np.flatnonzero((table.run_rank != NONE) & (table.awaited_ns > 0))
    ranks, of_row = np.unique(table.run_rank[rows], return_inverse=True)
    operations = np.bincount(of_row, minlength=len(ranks))
    awaited_ns = np.bincount(of_row, table.awaited_ns[rows], len(ranks)).astype(np.int64)
    columns = ranks.tolist(), operations.tolist(), awaited_ns.tolist()
    late = [LateRank(*row) for row in zip(*columns, strict=True)]
    return sorted(late, key=lambda entry: (-entry.awaited_ns, entry.rank))


def faults_of(table: Communications, dumped: Collection[int]) -> tuple[Fault, ...]:
    """Return the operations at which the run stands, the first of each communicator or pair.

    A rank whose dump ends before an operation has not entered it; nor has one whose GPU has not
    begun it, where another's has. Sends and receives between two ranks follow one another: open
    ones are counted.

    Args:
        table: operations, of which those of flight recorders say how far they came.
        dumped: ranks of the run whose flight recorders were given.
    """
    known = (table.progress != NONE) & (table.communicator != NONE) & (table.run_rank != NONE)
    own = table.take(known)
    passing, unfinished = own.peer != NONE, own.progress < _COMPLETED
    sends = np.array([name == "Send" for name in own.names], bool)[own.name]
    source = np.where(passing, np.where(sends, own.rank, own.peer), NONE)
    target = np.where(passing, np.where(sends, own.peer, own.rank), NONE)
    keys = grouping.group_rows(own.communicator, source, target).of_row
    place = np.where(passing, 0, own.sequence)
    rows = np.flatnonzero(passing & unfinished)
    place[rows] = 1 + number_occurrences((keys[rows], own.run_rank[rows]))
    faults, standing = [], np.flatnonzero(np.isin(keys, keys[unfinished]))
    for _, of_key in grouping.list_rows_by_value(keys[standing]):
        rows = standing[of_key]
        first = int(place[rows[unfinished[rows]]].min())
        at = rows[place[rows] == first]
        entered = {*own.run_rank[rows[place[rows] >= first]].tolist()}
        if (own.progress[at] == _STARTED).any():
            entered -= {*own.run_rank[at[own.progress[at] < _STARTED]].tolist()}
        communicator = own.communicators[int(own.communicator[at[0]])]
        group = communicator.ranks if isinstance(communicator, Group) else ()
        members = {*group} or {*own.run_rank[rows].tolist()}
        if passing[at[0]]:
            ends = int(source[at[0]]), int(target[at[0]])
            members = {group[end] if end < len(group) else end for end in ends}
        name, number, missing = own.names[own.name[at[0]]], own.sequence[at[0]], members - entered
        parts = (entered, missing & {*dumped}, missing - {*dumped})
        ranks = (tuple(sorted(part)) for part in parts)
        faults.append(Fault(communicator, name, int(number), *ranks))
    return (*faults, *_mismatches(own.take(~passing)))


def culprits(faults: Sequence[Fault]) -> list[int]:
    """Return the ranks that operations lack, and that wait in none themselves."""
    waiting = {rank for fault in faults if not fault.calls for rank in fault.entered}
    return sorted({rank for fault in faults for rank in fault.missing} - waiting)


def _mismatches(table: Communications) -> Iterator[Fault]:
    """Yield the first collective of each communicator that its members called in several ways."""
    nth = number_occurrences((table.communicator, table.sequence, table.run_rank))
    by = grouping.group_rows(table.communicator, table.sequence, nth)
    alike = np.array([name in _ALIKE for name in table.names], bool)[table.name]
    count = np.where(alike, table.count, NONE)
    call = grouping.group_rows(table.name, count, table.datatype).of_row
    low, high = intervals.group_extents(by.of_row, len(by), call, call)
    rows = np.flatnonzero((low != high)[by.of_row])
    rows = rows[np.lexsort((table.run_rank[rows], by.of_row[rows], table.sequence[rows]))]
    _, first = np.unique(table.communicator[rows], return_index=True)
    for row in np.sort(rows[first]).tolist():
        calls: dict[str, tuple[int, ...]] = {}
        for at in rows[by.of_row[rows] == by.of_row[row]].tolist():
            elements = f"{count[at]:,} elements" if count[at] != NONE else ""
            parts = table.names[table.name[at]], elements, (*table.names, "")[table.datatype[at]]
            text = " of ".join(filter(None, parts))
            calls[text] = (*calls.get(text, ()), int(table.run_rank[at]))
        name, own = table.names[table.name[row]], table.communicators[table.communicator[row]]
        ways = sorted(calls.items(), key=lambda call: (-len(call[1]), call[1]))
        yield Fault(own, name, int(table.sequence[row]), calls=tuple(ways))
