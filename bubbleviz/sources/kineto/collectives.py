"""Collectives that kernels carry out, as PyTorch's profiler records them.

The operator ``record_param_comms`` describes them; kernels that it launched repeat that, and share
its ``External id`` (torch/csrc/distributed/c10d/ParamCommsUtils.hpp, torch/csrc/profiler/util.cpp
``saveNcclMeta``, libkineto/src/output_json.cpp). Where a kernel lacks an argument, that of its
operator is used: older versions write none with kernels, and no version writes the root there. A
batch of sends and receives (``batch_isend_irecv``) launches one kernel at its end, which belongs to
no operator::

    operators   send  recv
    calls                   cudaLaunchKernelExC
    kernel                        ├─ SendRecv ─┤    of both
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from bubbleviz.model.collectives import Collectives, EventRecords, Group, Synchronisation, Waits
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import Numbering, distinct, looked_up
from bubbleviz.model.profile import UNCORRELATED, process_of
from bubbleviz.sources.kineto.events import (
    KERNEL,
    OPERATOR,
    CollectiveArgs,
    CollectiveRecord,
    EventCollector,
    EventRows,
    KinetoEvent,
    SynchronisationArgs,
    either,
    text_of,
    whole_number,
)
from bubbleviz.sources.trace_events import times_ns

# Process groups as PyTorch's profiler writes them, with each event and in the document.


#: More ranks than there are.
MOST_RANKS = 1 << 20
_NUMBER = re.compile(r"-?\d+")
#: Stands for the ranks that are left out of a long list.
_ELLIPSIS = "..."
_FIELDS = ("group", "size", "ranks", "description")

#: Own rank and number of ranks, -1 unknown; and ranks of groups by name, () where two share it.
World: TypeAlias = tuple[int, int, Mapping[str, tuple[int, ...]]]


def world_of(metadata: Mapping[str, object]) -> World:
    """Return what ``distributedInfo`` of the document holds."""
    info = metadata.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    configs = info.get("pg_config")
    groups: dict[str, tuple[int, ...]] = {}
    for config in configs if isinstance(configs, list) else []:
        if isinstance(config, dict):
            name = text_of(config.get("pg_name"))
            size = max(whole_number(config.get("pg_size"), MOST_RANKS), 0)
            ranks = _members(config.get("ranks"), size)
            groups[name] = () if groups.get(name, ranks) != ranks else ranks
    rank, size = (whole_number(info.get(name), MOST_RANKS) for name in ("rank", "world_size"))
    return rank, size, groups


def _members(ranks: object, size: int) -> tuple[int, ...]:
    """Return all ranks of a group; () where some are left out, or their number is not its size."""
    if isinstance(ranks, str) and _ELLIPSIS not in ranks:
        numbers = _numbers(ranks[: 1 << 20])
    elif isinstance(ranks, list):
        numbers = [whole_number(rank, MOST_RANKS) for rank in ranks]
    else:
        return ()
    sound = len(set(numbers)) == len(numbers) and min(numbers, default=0) >= 0
    return tuple(numbers) if sound and size in (0, len(numbers)) else ()


def _strided(operator: CollectiveArgs, ranks: object, size: int) -> tuple[int, ...]:
    """Return a group's ranks where some are left out, but all lie one stride apart.

    ``[0, 8, 16, ..., 1016]`` shows the stride (torch/csrc/profiler/util.cpp ``format_list``), or
    ``Global rank start`` and ``stride`` do.
    """
    start, stride = (whole_number(n, MOST_RANKS) for n in (operator.start, operator.stride))
    text = ranks[: 1 << 20] if isinstance(ranks, str) else ""
    before, _, after = text.partition(_ELLIPSIS)
    first, last = _numbers(before), _numbers(after)
    if not (start >= 0 and stride > 0) and len(first) > 1 and last:
        start, stride = first[0], first[1] - first[0]
    if not (start >= 0 and stride > 0 and size):
        return ()
    members = tuple(range(start, start + stride * size, stride))
    sound = tuple(first) == members[: len(first)] and tuple(last) in ((), members[-1:])
    return members if sound else ()


def _numbers(text: str) -> list[int]:
    return [int(number) for number in _NUMBER.findall(text) if len(number) < 9]


#: More elements than there are.
_MOST_ELEMENTS = 1 << 55
#: Operations whose ``Rank`` is that of the root, or of the peer; else it is the rank's own.
_ROOTED = frozenset(("broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter"))
_COLUMNS = Collectives.column_names()
#: Kernels that carry out sends and receives; names of AMD's do not show it.
_PASSES = re.compile(r"^(?:void )?nccl\w*?(?:SendRecv|Generic)")
#: The argument that holds the peer.
_PEER_FIELDS = {"send": "target", "recv": "origin"}


def collectives_of(
    work: EventRows,
    calls: EventRows,
    collector: EventCollector,
    base_ns: int,
    metadata: Mapping[str, object],
) -> Collectives:
    """Return the collectives that kernels carry out.

    Args:
        work: kernels, then copies; their rows are those of the profile's activities.
        calls: CUDA API calls.
        collector: has read all events.
        base_ns: zero of the times of ``work``.
        metadata: values of the document beside its events.
    """
    of_kernels = {
        (record.correlation, record.start_ns - base_ns): record.args
        for record in collector.collectives
        if record.kind == KERNEL
    }
    of_operators = {
        record.external: record.args
        for record in collector.collectives
        if record.kind == OPERATOR and record.external != NONE
    }
    kernels = np.flatnonzero(work.kind == KERNEL)
    ids = np.array([NONE - 1, *(correlation for correlation, _ in of_kernels)], np.int64)
    described = np.isin(work.correlation[kernels], ids)
    described |= np.isin(work.external[kernels], np.array([*of_operators], np.int64))
    kernels = kernels[described]
    names = ("correlation", "start_ns", "external", "device")
    columns = (getattr(work, name)[kernels].tolist() for name in names)
    table = _CollectiveTable(world_of(metadata))
    for kernel, correlation, start_ns, external, device in zip(
        kernels.tolist(), *columns, strict=True
    ):
        args, operator = of_kernels.get((correlation, start_ns)), of_operators.get(external)
        first, second = args or operator, operator or args
        if first is not None and second is not None:
            table.add(kernel, (external, device), first, second)
    for kernel, record in _batched(work, calls, collector, base_ns, kernels):
        launch = record.external, int(work.device[kernel])
        table.add(kernel, launch, record.args, record.args)
    return table.collectives()


def _batched(
    work: EventRows, calls: EventRows, collector: EventCollector, base_ns: int, described: Ints
) -> Iterator[tuple[int, CollectiveRecord]]:
    """Yield kernels of batches of sends and receives, with each of these.

    Args:
        work: kernels, then copies.
        calls: CUDA API calls.
        collector: has read all events.
        base_ns: zero of the times of ``work``.
        described: kernels that a record describes.
    """
    used = {*work.external[described].tolist()}
    waiting = [
        record
        for record in collector.collectives
        if record.kind == OPERATOR
        and record.external not in used
        and text_of(record.args.collective) in _PEER_FIELDS
    ]
    if not waiting:
        return
    launches = _launches(work, calls, described, collector.names.values)
    events: list[tuple[int, int, int, CollectiveRecord | int]] = [
        (thread, start_ns, 1, kernel) for kernel, thread, start_ns in launches
    ]
    events += [(record.thread, record.end_ns - base_ns, 0, record) for record in waiting]
    known = {*described.tolist()}
    batch: list[CollectiveRecord] = []
    for thread, _, _, event in sorted(events, key=lambda event: event[:3]):
        if isinstance(event, CollectiveRecord):
            if batch and batch[0].thread != thread:
                batch = []
            batch.append(event)
            continue
        if event not in known and batch and batch[0].thread == thread:
            yield from ((event, record) for record in batch)
        # A kernel that was launched by itself ends a batch, too: none is open then.
        batch = []


def _launches(
    work: EventRows, calls: EventRows, described: Ints, names: Sequence[str]
) -> Iterator[tuple[int, int, int]]:
    """Yield kernel, thread and time of the launches of described kernels, sends and receives."""
    passing = np.array([_PASSES.search(name) is not None for name in names], bool)
    graph = np.array(["GraphLaunch" in name for name in names], bool)
    bare = np.flatnonzero((work.kind == KERNEL) & passing[work.name])
    kernels = distinct(bare, described)
    rows = np.flatnonzero((calls.correlation >= 0) & ~graph[calls.name])
    call = looked_up([calls.correlation[rows]], rows, [work.correlation[kernels]])
    kernels, call = kernels[call != NONE], call[call != NONE]
    columns = (kernels, calls.thread[call], calls.start_ns[call])
    yield from zip(*(column.tolist() for column in columns), strict=True)


class _CollectiveTable:
    """Rows of collectives, one by one: they are few."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._names: Numbering[str] = Numbering()
        self._groups: Numbering[Group] = Numbering()
        #: Number of a group, -1 for an unknown one, and the place in it of each of its ranks.
        self._known: dict[str, tuple[int, Mapping[int, int]]] = {}
        self._operations: dict[tuple[int, int], int] = {}
        self._rows: list[tuple[int, ...]] = []

    def add(
        self, kernel: int, launch: tuple[int, int], args: CollectiveArgs, operator: CollectiveArgs
    ) -> None:
        """Add a kernel.

        Args:
            kernel: row of the activities.
            launch: ``External id`` and device.
            args: of the kernel.
            operator: arguments of the operator that launched it.
        """
        name = text_of(either(args, operator, "collective"))
        datatype = text_of(either(args, operator, "datatype"))
        group, places = self._group(args, operator)
        operator_rank = whole_number(operator.rank, MOST_RANKS)
        rank, peer, root = places.get(self._world[0], NONE), NONE, NONE
        if name in _PEER_FIELDS:
            other = whole_number(either(args, operator, _PEER_FIELDS[name]), MOST_RANKS)
            peer = places.get(other, operator_rank)
        elif name in _ROOTED:
            root = operator_rank
        elif rank == NONE:
            rank = operator_rank
        split = either(args, operator, "split")
        sizes = _NUMBER.findall(split[: 1 << 20]) if isinstance(split, str) else split
        # Parts that ranks exchange may differ in size.
        uneven = isinstance(sizes, list) and any(size != sizes[0] for size in sizes)
        number = len(self._rows)
        # A kernel that no operator launched is an operation of its own.
        if launch[0] != NONE:
            number = self._operations.setdefault(launch, number)
        self._rows.append(
            (
                kernel,
                number,
                self._names.number(name),
                group,
                whole_number(either(args, operator, "elements_in"), _MOST_ELEMENTS),
                whole_number(either(args, operator, "elements_out"), _MOST_ELEMENTS),
                self._names.number(datatype) if datatype else NONE,
                int(uneven),
                rank,
                peer,
                root,
                whole_number(either(args, operator, "sequence"), 1 << 62),
            )
        )

    def _group(
        self, args: CollectiveArgs, operator: CollectiveArgs
    ) -> tuple[int, Mapping[int, int]]:
        """Return the number of a kernel's group, -1 for an unknown one, and its ranks' places."""
        values = [either(args, operator, field) for field in _FIELDS]
        # Most kernels are of few groups, and a group may have thousands of ranks.
        key = repr((*values, operator.start, operator.stride))
        if key in self._known:
            return self._known[key]
        name, size, ranks, description = text_of(values[0]), values[1], values[2], values[3]
        count = max(whole_number(size, MOST_RANKS), 0)
        _, world_size, groups = self._world
        members = _members(ranks, count)
        if not members and count and len(groups.get(name, ())) == count:
            members = groups[name]
        elif not members and count == world_size:
            members = tuple(range(count))
        members = members or _strided(operator, ranks, count)
        group = Group(
            name=name,
            ranks_text="" if members else text_of(ranks),
            ranks=members,
            size=count or len(members),
            description=text_of(description),
        )
        number = self._groups.number(group) if group.name or group.ranks else NONE
        self._known[key] = number, {rank: at for at, rank in enumerate(group.ranks)}
        return self._known[key]

    def collectives(self) -> Collectives:
        """Return the table."""
        columns = np.array(self._rows, np.int64).reshape(-1, len(_COLUMNS)).T.copy()
        named = dict(zip(_COLUMNS, columns, strict=True))
        return Collectives(**named, names=self._names.values, groups=self._groups.values)


# Synchronisation in a trace of PyTorch's profiler: recorded events, waits, streams of work.
#
# They are recorded where ``enable_cuda_sync_events`` is set in the profiler's experimental
# configuration (libkineto/src/CuptiActivity.cpp):
#
# ========== ===================================================================================
# category   arguments
# ========== ===================================================================================
# cuda_sync  ``stream`` that waits, or is waited for; ``wait_on_cuda_event_id``, and of its last
#            record known then ``wait_on_stream`` and ``wait_on_cuda_event_record_corr_id``
# cuda_event ``event_id``, ``stream``: a record, of newer versions only
# ========== ===================================================================================
#
# Work has its stream as its thread.


_STREAM = re.compile(r"(?:stream )?([0-9]{1,9})\Z")
_DEVICES = 1 << 22
#: Columns: start, correlation id, device, stream, event, stream and correlation id of its record.
_START, _CORRELATION, _DEVICE, _STREAM_ID, _EVENT, _RECORD_STREAM, _RECORD = range(7)


def synchronisation_of(
    collector: EventCollector, base_ns: int, work: EventRows, calls: EventRows, threads: Ints
) -> Synchronisation | None:
    """Return what a trace holds of waiting; None where that is nothing.

    Args:
        collector: of its events.
        base_ns: when its first event began.
        work: kernels and copies.
        calls: of the CUDA API.
        threads: by the numbers that columns hold.
    """
    if not collector.waits:
        return None
    waits, told = _columns(collector.waits), _columns(collector.records)
    process = process_of(threads[calls.thread])

    def processes(ids: Ints) -> Ints:
        return looked_up((calls.correlation,), process, (ids,))

    # A wait tells its record, too, on its own device: events are looked up by context.
    own = waits[:, (waits[_RECORD_STREAM] != NONE) & (waits[_RECORD] != NONE)]
    device, event, stream, call = (
        np.concatenate(columns)
        for columns in (
            (told[_DEVICE], own[_DEVICE]),
            (told[_EVENT], own[_EVENT]),
            (told[_STREAM_ID], own[_RECORD_STREAM]),
            (told[_CORRELATION], own[_RECORD]),
        )
    )
    unknown = np.full(len(event), NONE, np.int64)
    # A thread of a device stands for a stream.
    named = (_STREAM.match(str(tid)) for _, tid in collector.threads.values)
    streams = [NONE if match is None else int(match[1]) for match in named]
    return Synchronisation(
        EventRecords(processes(call), device, stream, event, unknown, call, unknown.copy()),
        Waits(
            processes(waits[_CORRELATION]),
            waits[_DEVICE].copy(),
            waits[_STREAM_ID].copy(),
            waits[_EVENT].copy(),
            np.full(waits.shape[1], NONE, np.int64),
            waits[_CORRELATION].copy(),
            waits[_START] - base_ns,
        ),
        np.array(streams, np.int64)[work.thread],
    )


def _columns(events: Sequence[KinetoEvent]) -> Ints:
    """Return the columns of waits or records, shape (7, events)."""
    start_ns = times_ns([event.ts for event in events])
    rows = []
    for event in events:
        args = event.args if isinstance(event.args, SynchronisationArgs) else SynchronisationArgs()
        rows.append(
            (
                whole_number(args.correlation, UNCORRELATED),
                whole_number(args.device, _DEVICES),
                whole_number(args.stream, UNCORRELATED),
                whole_number(args.event if args.waited is None else args.waited, UNCORRELATED),
                whole_number(args.recorded_stream, UNCORRELATED),
                whole_number(args.recorded, UNCORRELATED),
            )
        )
    return np.concatenate((start_ns[None], np.array(rows, np.int64).reshape(-1, 6).T))
