"""Plain queries: those of ``sql/`` that give columns of one table, read as columns.

A test holds each against its query, with every variant of its view.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.values import frozen
from bubbleviz.sources.nsys.columnar.tables import Block, Tables
from bubbleviz.sources.sqlite.queries import Query

#: What a variant of a view gives as NULL, though the table may have it.
_NULL = re.compile(r"^ +NULL AS (\w+),?  -- ", re.MULTILINE)
#: CUPTI's number of no stream and no event.
_NOTHING = 4_294_967_295
_KINDS_OF_MIGRATION, _MIGRATION = (11, 12, 13), -3


@frozen
class Column:
    """A column of whole numbers, as a query gives it.

    Attributes:
        name: in the table of nsys; "" for none.
        missing: stands for NULL; None where NULL is damage.
        nothing: values that the view reads as NULL.
        view_name: its name in the view that the query reads.
    """

    name: str
    missing: int | None = None
    nothing: tuple[int, ...] = ()
    view_name: str = ""


@frozen
class PlainQuery:
    """A query that gives columns of one table, in the order of its rows.

    Attributes:
        table: of nsys.
        columns: in the query's order.
        view: that it reads; "" for the table itself.
        needed: a column without which a row is left out; "" for none.
    """

    table: str
    columns: tuple[Column, ...]
    view: str = ""
    needed: str = ""

    def names(self, views: Mapping[str, Query]) -> tuple[str, ...]:
        """Return the columns of the table that are read."""
        nulls = self._nulls(views)
        names = (c.name for c in self.columns if c.name and c.view_name not in nulls)
        return tuple(dict.fromkeys(names))

    def _nulls(self, views: Mapping[str, Query]) -> frozenset[str]:
        view = views.get(self.view)
        return frozenset(_NULL.findall(view.text)) if view else frozenset()

    def values(self, block: Block) -> Ints:
        """Return the query's columns of a block of the columns that are read.

        Raises:
            ValueError: it holds something else than whole numbers, or NULL where one is needed.
        """
        numbers = [block.numbers(c.name).without(c.nothing) for c in self.columns]
        keep = block.numbers(self.needed).mask() if self.needed else None
        values = np.stack(
            [
                column.filled(0 if c.missing is None else c.missing)
                if c.missing is not None or c.name == self.needed
                else column.every()
                for c, column in zip(self.columns, numbers, strict=True)
            ]
        )
        return values if keep is None or keep.all() else values[:, keep]

    def joined(self, blocks: Iterable[Block]) -> Ints:
        """Return the query's columns of some blocks; see :meth:`values`."""
        parts = [self.values(block) for block in blocks]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([np.empty((len(self.columns), 0), np.int64), *parts], axis=1)


_START, _END = Column("start", view_name="start_ns"), Column("end", view_name="end_ns")
_DEVICE = Column("deviceId", view_name="device_id")
_PROCESS = Column("globalPid", NONE, view_name="process")
_CORRELATION = Column("correlationId", NONE, view_name="correlation_id")
_THREAD = Column("globalTid", NONE)
_STREAM = Column("streamId")
_KERNEL, _MEMCPY = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
_MEMSET, _GRAPH = "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"


class _Copies(PlainQuery):
    """Copies, of which pages of managed memory that move have a name."""

    def values(self, block: Block) -> Ints:
        """Return the query's columns; see :meth:`PlainQuery.values`."""
        values = super().values(block)
        values[5] = np.where(np.isin(values[5], _KINDS_OF_MIGRATION), _MIGRATION, NONE)
        return values


PLAIN: Mapping[str, PlainQuery] = {
    "gpu_work/kernels": PlainQuery(
        _KERNEL,
        (
            _START, _END, _DEVICE, _PROCESS, _CORRELATION,
            Column("demangledName", NONE, view_name="name_id"),
        ),
        view="kernels",
    ),
    "gpu_work/kernel_streams": PlainQuery(_KERNEL, (_START, _END, _STREAM)),
    "gpu_work/copies": _Copies(
        _MEMCPY,
        (
            _START, _END, _DEVICE, _PROCESS, _CORRELATION,
            Column("copyKind", NONE, view_name="kind"),
        ),
        view="copies",
    ),
    "gpu_work/copy_streams": PlainQuery(_MEMCPY, (_START, _END, _STREAM)),
    "gpu_work/memsets": PlainQuery(_MEMSET, (_START, _END, _DEVICE, _PROCESS, _CORRELATION)),
    "gpu_work/memset_streams": PlainQuery(_MEMSET, (_START, _END, _STREAM)),
    "gpu_work/graphs": PlainQuery(
        _GRAPH, (_START, _END, _DEVICE, _PROCESS, _CORRELATION, Column("", -2))
    ),
    "gpu_work/graph_streams": PlainQuery(_GRAPH, (_START, _END, _STREAM)),
    "calls/all": PlainQuery(
        CALLS, (_START, _END, _THREAD, Column("correlationId", -(1 << 40)))
    ),
    "memory/usage": PlainQuery(
        "CUDA_GPU_MEMORY_USAGE_EVENTS",
        (
            _START, Column("globalPid", view_name="process"), _DEVICE, Column("address"),
            Column("bytes"), Column("memKind", view_name="kind"),
            Column("memoryOperationType", view_name="operation"),
        ),
    ),
    "synchronisation/waits": PlainQuery(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        (
            _PROCESS,
            Column("deviceId", NONE, (_NOTHING,), "device_id"),
            Column("streamId", NONE, (_NOTHING,), "stream_id"),
            Column("eventId", NONE, (_NOTHING,), "event_id"),
            Column("eventSyncId", NONE, (_NOTHING, 0), "pairing"),
            _CORRELATION,
            _START,
        ),
        view="waits",
        needed="start",
    ),
    "synchronisation/event_records": PlainQuery(
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
        (
            _PROCESS,
            Column("deviceId", NONE, (), "device_id"),
            Column("streamId", NONE, (), "stream_id"),
            Column("eventId", NONE, (), "event_id"),
            Column("eventSyncId", NONE, (_NOTHING, 0), "pairing"),
            _CORRELATION,
            Column("timestamp", NONE, (0,), "completed_ns"),
        ),
        view="event_records",
    ),
}  # fmt: skip


def plain_columns(tables: Tables, views: Mapping[str, Query], name: str) -> Ints:
    """Return the columns of a plain query.

    Raises:
        ProfileError: a file is damaged.
        ValueError: it holds something else than whole numbers.
    """
    plain = PLAIN[name]
    return plain.joined(tables.blocks(plain.table, plain.names(views)))
