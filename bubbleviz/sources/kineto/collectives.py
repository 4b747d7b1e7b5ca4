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

import numpy as np

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import distinct, looked_up
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.process_groups import Collectives
from bubbleviz.sources.kineto.event_columns import (
    CORRELATION,
    DEVICE,
    EXTERNAL,
    NAME,
    START,
    THREAD,
    CollectiveRecord,
    EventCollector,
    EventRows,
)
from bubbleviz.sources.kineto.events import (
    KERNEL,
    OPERATOR,
    CollectiveArgs,
    either,
    text_of,
    whole_number,
)
from bubbleviz.sources.kineto.process_groups import MOST_RANKS, GroupNumbering, World, world_of

#: More elements than there are.
_MOST_ELEMENTS = 1 << 55
_NUMBER = re.compile(r"-?\d+")
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
    described = np.isin(work[CORRELATION][kernels], ids)
    described |= np.isin(work[EXTERNAL][kernels], np.array([*of_operators], np.int64))
    kernels = kernels[described]
    columns = (work[c][kernels].tolist() for c in (CORRELATION, START, EXTERNAL, DEVICE))
    table = _CollectiveTable(world_of(metadata))
    for kernel, correlation, start_ns, external, device in zip(
        kernels.tolist(), *columns, strict=True
    ):
        args, operator = of_kernels.get((correlation, start_ns)), of_operators.get(external)
        first, second = args or operator, operator or args
        if first is not None and second is not None:
            table.add(kernel, (external, device), first, second)
    for kernel, record in _batched(work, calls, collector, base_ns, kernels):
        launch = record.external, int(work[DEVICE][kernel])
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
    used = {*work[EXTERNAL][described].tolist()}
    waiting = [
        record
        for record in collector.collectives
        if record.kind == OPERATOR and record.external not in used and _is_passing(record.args)
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
    bare = np.flatnonzero((work.kind == KERNEL) & passing[work[NAME]])
    kernels = distinct(bare, described)
    rows = np.flatnonzero((calls[CORRELATION] >= 0) & ~graph[calls[NAME]])
    call = looked_up([calls[CORRELATION][rows]], rows, [work[CORRELATION][kernels]])
    kernels, call = kernels[call != NONE], call[call != NONE]
    columns = (kernels, calls[THREAD][call], calls[START][call])
    yield from zip(*(column.tolist() for column in columns), strict=True)


def _is_passing(args: CollectiveArgs) -> bool:
    return isinstance(args.collective, str) and args.collective in _PEER_FIELDS


class _CollectiveTable:
    """Rows of collectives, one by one: they are few."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._names: Numbering[str] = Numbering()
        self._groups = GroupNumbering(world)
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
        group, places = self._groups.number(args, operator)
        operator_rank = whole_number(operator.rank, MOST_RANKS)
        rank, peer, root = places.get(self._world.rank, NONE), NONE, NONE
        if name in _PEER_FIELDS:
            other = whole_number(either(args, operator, _PEER_FIELDS[name]), MOST_RANKS)
            peer = places.get(other, operator_rank)
        elif name in _ROOTED:
            root = operator_rank
        elif rank == NONE:
            rank = operator_rank
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
                int(_is_uneven(either(args, operator, "split"))),
                rank,
                peer,
                root,
                whole_number(either(args, operator, "sequence"), 1 << 62),
            )
        )

    def collectives(self) -> Collectives:
        """Return the table."""
        columns = np.array(self._rows, np.int64).reshape(-1, len(_COLUMNS)).T.copy()
        named = dict(zip(_COLUMNS, columns, strict=True))
        return Collectives(**named, names=self._names.values, groups=self._groups.groups)


def _is_uneven(split: object) -> bool:
    """Tell whether the parts that ranks exchange differ in size."""
    numbers = _NUMBER.findall(split[: 1 << 20]) if isinstance(split, str) else split
    sizes: Sequence[object] = numbers if isinstance(numbers, list) else []
    return any(size != sizes[0] for size in sizes)
