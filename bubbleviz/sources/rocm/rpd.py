"""rpd: the SQLite file of rocmProfileData's tracer, ROCm's older one, of one or several processes.

``rocpd_api`` holds calls and ranges of hosts, ``rocpd_op`` work of devices, ``rocpd_api_ops`` which
call launched which work: ``rocpd_python/rocpd/schema_data/tableSchema.cmd`` of
ROCm/rocmProfileData. A range of ROCTx is a row named ``UserMarker``, of which the arguments are its
text (``rpd_tracer/RoctxDataSource.cpp``), in ``rocpd_ustring`` since its third schema. Times are
nanoseconds of the node's ``CLOCK_MONOTONIC`` (``clocktime_ns`` in ``rpd_tracer/Utility.h``); no
host is recorded.
"""

from __future__ import annotations

import re

import numpy as np

from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import distinct, found_in
from bubbleviz.model.limitations import Limitation
from bubbleviz.progress import Watch
from bubbleviz.sources.rocm.database_parts import (
    Part,
    opened,
    opened_part,
    parts_in,
)
from bubbleviz.sources.rocm.queries import RPD, RPD_QUERIES
from bubbleviz.sources.rocm.recording import RocmRecording
from bubbleviz.sources.rocm.tables import RocmTables, fits, named, narrowed, threads_of
from bubbleviz.sources.sqlite.relations import columns_of_tables

#: Of these tables every file has one; rocpd's files have none.
_OWN = frozenset(("rocpd_api", "rocpd_op", "rocpd_api_ops"))
#: Functions of an API; what else is recorded of a host is a range.
_CALL = re.compile(r"(?:__)?(?:hip|hsa|cuda|cu)[A-Z_]")
#: How ranges of ROCTx are named, of which the arguments are the text.
_MARKER = re.compile(r"UserMarker\Z|roctx")
#: Kinds of work that are kernels, where these have no name.
_KERNEL = re.compile(r"Kernel|Task")


def read_rpd(path: str, watch: Watch) -> RocmRecording:
    """Return what a file holds.

    Raises:
        ProfileError: it is damaged.
        SchemaError: it lacks a table or a column that is needed.
    """
    with opened(path, RPD_QUERIES) as catalogue:
        columns = columns_of_tables(catalogue)
    if not _OWN & set(columns):
        raise ProfileError(
            f"{path}: an SQLite database, but no trace of rocmProfileData: it has none of the "
            f"tables rocpd_api, rocpd_op; {RPD.again}"
        )
    tables = RocmTables()
    # Tables with a GUID behind their names come after those of a trace, and are none of its.
    own = next(part for part in parts_in(columns, RPD_QUERIES) if _OWN & set(part.names))
    with opened_part(path, own, RPD_QUERIES) as part:
        versions = [str(version) for (version,) in part.rows("target/metadata")]
        work = np.empty((7, 0), np.int64)
        if "rocpd_op" in own.names:
            work = part.columns("gpu_work/all")
        watch(0.5)
        calls = part.columns("calls/all") if "rocpd_api" in own.names else np.empty((7, 0), int)
        for numbers in (work[2], calls[3], calls[4]):
            _check(path, numbers)
        of_work, of_calls = narrowed(work[4] + 1, calls[0] + 1)
        _add_work(path, part, tables, work, of_work)
        _add_calls(part, tables, calls, of_calls)
    watch(1.0)
    return RocmRecording(
        path=path, format="rpd", tables=tables, schema_version=", ".join(versions) or None
    )


def _check(path: str, numbers: Ints) -> None:
    if not fits(numbers):
        raise ProfileError(
            f"{path}: a process or thread has a number below 0 or above 16,777,215, so the file "
            f"is damaged or was edited; {RPD.again}"
        )


def _add_work(path: str, part: Part, tables: RocmTables, work: Ints, correlation: Ints) -> None:
    """Add kernels, which have names, and copies and fills, which have none.

    Args:
        path: of the file.
        part: its open tables.
        tables: takes them.
        work: the columns of gpu_work/all.sql.
        correlation: of each row; -1 none.
    """
    texts = part.texts("gpu_work/names")
    names, name = named(work[5], texts, lambda _: "")
    kinds, kind = named(work[6], texts, lambda _: "")
    without_name = np.array([not text for text in names], bool)[name] if len(name) else name > 0
    of_kernels = np.array([_KERNEL.search(text) is not None for text in kinds], bool)
    is_kernel = ~without_name | (of_kernels[kind] if len(kind) else kind > 0)
    process = np.where(work[2] == NONE, NONE, work[2] << 24)
    block = np.stack((work[0], work[1], work[3], process, correlation))
    shown = [text or "<kernel NULL>" for text in names]
    lost = int((is_kernel & without_name).sum())
    if lost:
        reason = f"{path} has none for some in rocpd_string"
        tables.limitations.append(Limitation("names of kernels", reason, lost))
    tables.add_work(block[:, is_kernel], shown, name[is_kernel])
    tables.copied += int((~is_kernel).sum())
    tables.copies.append(block[:, ~is_kernel])


def _add_calls(part: Part, tables: RocmTables, calls: Ints, correlation: Ints) -> None:
    """Add calls and ranges.

    Args:
        part: the open tables of a file.
        tables: takes them.
        calls: the columns of calls/all.sql.
        correlation: of each row; -1 none.
    """
    functions, name = named(calls[5], part.texts("calls/names"), lambda _: "")
    is_call = np.array([not text or _CALL.match(text) is not None for text in functions], bool)
    marks = np.array([_MARKER.match(text) is not None for text in functions], bool)
    of_call = is_call[name] if len(name) else name > 0
    of_mark = marks[name] if len(name) else name > 0
    tables.unnamed_calls += int((np.array([not f for f in functions], bool)[name]).sum())
    thread = threads_of(calls[3], calls[4])
    numbers = tables.call_names.numbers(functions)
    tables.calls.append(
        np.stack(
            (*calls[1:3, of_call], thread[of_call], correlation[of_call], numbers[name[of_call]])
        )
    )
    rows = np.flatnonzero(~of_call)
    texts = part.texts("ranges/texts", distinct(calls[6, of_mark]))
    known, text = named(calls[6, rows], texts, lambda _: "")
    # A mark of ROCTx has no length; what is no range of ROCTx is named by its function.
    nothing = np.array([not own for own in known], bool)
    lacking = nothing[text] if len(text) else text > 0
    nameless = lacking & of_mark[rows]
    place = np.where(of_mark[rows], text, len(known) + name[rows])
    tables.nameless += int(nameless.sum())
    keep = ~nameless & ((calls[2, rows] > calls[1, rows]) | ~of_mark[rows])
    rows, place = rows[keep], place[keep]
    used = distinct(place)
    both = (*known, *functions)
    numbers = tables.range_names.numbers(both[own] for own in used.tolist())
    none = np.zeros(len(rows), np.int64)
    number = numbers[found_in(used, place)] if len(used) else place
    tables.ranges.append(np.stack((*calls[1:3, rows], thread[rows], none, number)))
