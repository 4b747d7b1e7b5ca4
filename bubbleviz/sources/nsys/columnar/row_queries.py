"""Row queries: those of ``sql/`` that look for some rows of a large table, as columns.

Each function gives what the query of its name gives; a test holds each against it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct
from bubbleviz.sources.nsys.columnar.plain_queries import CALLS
from bubbleviz.sources.nsys.columnar.tables import Block, Tables, kept, present, texts_of
from bubbleviz.sources.sqlite.queries import Binds, Query

Rows = list[tuple[object, ...]]
_Answer = Callable[[Tables, Mapping[str, Query], Binds], Rows]

#: The parameters of queries for the four kinds of ranges.
KINDS = ("push_pop", "start_end", "nvtxt_push_pop", "nvtxt_start_end")


def _array(binds: Binds, name: str) -> Ints:
    """Return a parameter that is a JSON array of numbers."""
    return np.array(json.loads(str(binds[name])), np.int64)


def _number(binds: Binds, name: str) -> int:
    return int(binds[name] or 0)


def texts_by_number(tables: Tables, wanted: Ints) -> dict[int, str]:
    """Return the texts of some numbers of StringIds, ascending."""
    texts: dict[int, str] = {}
    for ids, column in tables.strings() if len(wanted) else ():
        chosen = np.isin(ids, wanted)
        found = zip(ids[chosen].tolist(), texts_of(kept(column, chosen)), strict=True)
        texts.update((number, str(text)) for number, text in found if text is not None)
    return dict(sorted(texts.items()))


def _by_id(tables: Tables, _: Mapping[str, Query], binds: Binds) -> Rows:
    return list(texts_by_number(tables, _array(binds, "ids")).items())


def _bounds(table: str) -> _Answer:
    """Return the answer to a query for bounds; of the last row only its number is given."""

    def answer(tables: Tables, _: Mapping[str, Query], __: Binds) -> Rows:
        rows = tables.rows(table)
        return [(1, rows, None)] if rows else []

    return answer


def _kernel_count(tables: Tables, _: Mapping[str, Query], __: Binds) -> Rows:
    blocks = tables.blocks("CUPTI_ACTIVITY_KIND_KERNEL", ("deviceId",))
    devices = [block.numbers("deviceId").filled(NONE) for block in blocks]
    if not devices:
        return []
    found, counts = np.unique(np.concatenate(devices), return_counts=True)
    return list(zip(found.tolist(), counts.tolist(), strict=True))


def _calls(tables: Tables, columns: Sequence[str]) -> Iterator[Block]:
    return tables.blocks(CALLS, columns)


def _of_rows(tables: Tables, binds: Binds, columns: Sequence[str]) -> Iterator[tuple[Ints, Block]]:
    """Yield blocks of the calls whose rows are given, and the numbers of these rows."""
    wanted = np.unique(_array(binds, "rows"))
    if not len(wanted):
        return
    for block in tables.blocks(CALLS, columns, int(wanted[0])):
        begin, end = np.searchsorted(wanted, [block.first, block.first + len(block)])
        if end > begin:
            numbers = wanted[begin:end]
            mask = np.zeros(len(block), bool)
            mask[numbers - block.first] = True
            yield numbers, block.take(mask)
        if end == len(wanted):
            return


def _any_call(tables: Tables, _: Mapping[str, Query], __: Binds) -> Rows:
    for block in _calls(tables, ("correlationId",)):
        numbers = block.numbers("correlationId")
        if (at := np.flatnonzero(numbers.mask())).size:
            return [(int(numbers.values[at[0]]),)]
    return []


def _any_named(tables: Tables, _: Mapping[str, Query], binds: Binds) -> Rows:
    ids = _array(binds, "name_ids")
    for block in _calls(tables, ("nameId",)):
        numbers = block.numbers("nameId")
        if (at := np.flatnonzero(numbers.mask() & np.isin(numbers.values, ids))).size:
            return [(int(numbers.values[at[0]]),)]
    return []


def _at(tables: Tables, _: Mapping[str, Query], binds: Binds) -> Rows:
    columns = ("start", "end", "globalTid", "correlationId")
    rows: Rows = []
    for _numbers, block in _of_rows(tables, binds, columns):
        start, end = block.numbers("start").every(), block.numbers("end").every()
        thread = block.numbers("globalTid").filled(NONE)
        correlation_id = block.numbers("correlationId").every()
        values = (start, end, thread, correlation_id)
        rows.extend(zip(*(column.tolist() for column in values), strict=True))
    return rows


def _chosen(row: Ints, value: Ints, chosen: Bools) -> Iterator[tuple[int, int]]:
    return zip(row[chosen].tolist(), value[chosen].tolist(), strict=True)


def _failed(tables: Tables, _: Mapping[str, Query], binds: Binds) -> Rows:
    rows: Rows = []
    for row, block in _of_rows(tables, binds, ("returnValue",)):
        value = block.numbers("returnValue")
        rows.extend(_chosen(row, value.values, value.mask() & (value.values != 0)))
    return rows


def _named_among(tables: Tables, _: Mapping[str, Query], binds: Binds) -> Rows:
    ids = _array(binds, "name_ids")
    rows: Rows = []
    for row, block in _of_rows(tables, binds, ("nameId",)):
        name = block.numbers("nameId")
        rows.extend(_chosen(row, name.values, name.mask() & np.isin(name.values, ids)))
    return rows


def _names(tables: Tables, _: Mapping[str, Query], binds: Binds) -> Rows:
    found: list[tuple[int, int]] = []
    for row, block in _of_rows(tables, binds, ("nameId",)):
        name = block.numbers("nameId")
        found.extend(_chosen(row, name.values, name.mask()))
    texts = texts_by_number(tables, np.array(sorted({n for _, n in found}), np.int64))
    return [(number, texts[name_id]) for number, name_id in found if name_id in texts]


def _containing(tables: Tables, _: Mapping[str, Query], binds: Binds) -> Rows:
    # The letters may be a pattern of GLOB for SQLite; those that are given are none.
    letters = str(binds["letters"])
    ids = np.array(
        [
            number
            for numbers, column in tables.strings()
            for number, text in zip(numbers.tolist(), texts_of(column), strict=True)
            if text is not None and letters in str(text)
        ],
        np.int64,
    )
    rows: Rows = []
    for block in _calls(tables, ("correlationId", "nameId")) if len(ids) else ():
        name = block.numbers("nameId")
        chosen = name.mask() & np.isin(name.values, ids) & block.numbers("correlationId").mask()
        numbers = np.arange(block.first, block.first + len(block))
        rows.extend(_chosen(numbers, name.values, chosen))
    return rows


def _graph_launches(tables: Tables, _: Mapping[str, Query], binds: Binds) -> Rows:
    ids = _array(binds, "name_ids")
    rows: Rows = []
    for block in _calls(tables, ("globalTid", "correlationId", "nameId")):
        thread, correlation = block.numbers("globalTid"), block.numbers("correlationId")
        name = block.numbers("nameId")
        chosen = name.mask() & np.isin(name.values, ids) & thread.mask() & correlation.mask()
        rows.extend(_chosen(thread.values >> 24, correlation.values, chosen))
    return rows


def _latest_end(tables: Tables, _: Mapping[str, Query], binds: Binds) -> Rows:
    latest, most = _number(binds, "latest"), None
    for block in _calls(tables, ("start", "end", "correlationId")):
        start, end = block.numbers("start"), block.numbers("end")
        known = start.mask() & end.mask() & block.numbers("correlationId").mask()
        possible = (start.values <= end.values) & (end.values <= latest)
        possible &= (start.values >= -latest) & (start.values <= latest)
        if (ends := end.values[known & possible]).size:
            most = int(ends.max()) if most is None else max(most, int(ends.max()))
    return [] if most is None else [(most,)]


def _processes(tables: Tables, _: Mapping[str, Query], __: Binds) -> Rows:
    processes: set[int] = set()
    for block in _calls(tables, ("globalTid", "correlationId")):
        known = block.numbers("correlationId").mask()
        processes.update(distinct(block.numbers("globalTid").filled(NONE)[known] >> 24).tolist())
    return [(process,) for process in sorted(processes)]


def _system_calls(tables: Tables, _: Mapping[str, Query], binds: Binds) -> Rows:
    threads = _array(binds, "threads")
    since, until = _number(binds, "since"), _number(binds, "until")
    found = [np.empty((4, 0), np.int64)]
    for block in tables.blocks("OSRT_API", ("start", "end", "globalTid", "nameId")):
        start, end = block.numbers("start"), block.numbers("end")
        thread = block.numbers("globalTid")
        known = start.mask() & end.mask() & thread.mask()
        long = end.values - start.values >= _number(binds, "shortest")
        near = (start.values < until) & (end.values > since)
        keep = known & long & near & np.isin(thread.values, threads)
        names = block.numbers("nameId").filled(NONE)
        found.append(np.stack((start.values, end.values, thread.values, names))[:, keep])
    start_ns, end_ns, thread_of, name = np.concatenate(found, axis=1).tolist()
    texts = texts_by_number(tables, np.array(sorted(set(name)), np.int64)) if name else {}
    return list(zip(start_ns, end_ns, thread_of, map(texts.get, name), strict=True))


def _threads(tables: Tables, _: Mapping[str, Query], __: Binds) -> Rows:
    found: list[tuple[int, int]] = []
    for block in tables.blocks("ThreadNames", ("nameId", "globalTid")):
        name, thread = block.numbers("nameId"), block.numbers("globalTid")
        known = name.mask() & thread.mask()
        pairs = zip(thread.values[known].tolist(), name.values[known].tolist(), strict=True)
        found.extend(pairs)
    texts = texts_by_number(tables, np.array(sorted({n for _, n in found}), np.int64))
    return [(thread, texts[name]) for thread, name in found if name in texts]


def _any_range(tables: Tables, _: Mapping[str, Query], binds: Binds) -> Rows:
    kinds = [_number(binds, kind) for kind in KINDS]
    for block in tables.blocks("NVTX_EVENTS", ("eventType",)):
        kind = block.numbers("eventType")
        if (at := np.flatnonzero(kind.mask() & np.isin(kind.values, kinds))).size:
            return [(int(kind.values[at[0]]),)]
    return []


def _payloads(tables: Tables, _: Mapping[str, Query], binds: Binds) -> Rows:
    first, last = _number(binds, "first"), _number(binds, "last")
    rows: Rows = []
    for block in tables.blocks("NVTX_EVENTS", ("start", "globalTid", "binaryData"), first):
        if block.first > last:
            break
        part = block.rows(first, last)
        part = part.take(present(part.column("binaryData")))
        if not len(part):
            continue
        start, thread = part.numbers("start"), part.numbers("globalTid").filled(NONE)
        starts = [
            s if k else None for s, k in zip(start.values.tolist(), start.mask(), strict=True)
        ]
        rows.extend(zip(starts, thread.tolist(), map(_hexadecimal, _raw(part)), strict=True))
    return rows


def _raw(block: Block) -> list[Any]:
    column = block.column("binaryData")
    if hasattr(column, "dictionary"):
        column = column.dictionary_decode()
    return list(column.to_pylist())


def _hexadecimal(value: object) -> str:
    return value.hex().upper() if isinstance(value, bytes) else str(value)


#: By the name of the query.
ROW_QUERIES: Mapping[str, _Answer] = {
    "strings/by_id": _by_id,
    "gpu_work/kernel_bounds": _bounds("CUPTI_ACTIVITY_KIND_KERNEL"),
    "gpu_work/kernel_count": _kernel_count,
    "calls/bounds": _bounds(CALLS),
    "ranges/bounds": _bounds("NVTX_EVENTS"),
    "calls/any": _any_call,
    "calls/any_named": _any_named,
    "calls/at": _at,
    "calls/failed": _failed,
    "calls/named_among": _named_among,
    "calls/names": _names,
    "calls/containing": _containing,
    "calls/graph_launches": _graph_launches,
    "calls/latest_end": _latest_end,
    "calls/processes": _processes,
    "calls/system": _system_calls,
    "target/threads": _threads,
    "ranges/any": _any_range,
    "ranges/payloads": _payloads,
}
