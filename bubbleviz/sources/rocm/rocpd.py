"""Reads the files written by ROCm's profilers, ``rocprofv3`` (rocpd) and rocmProfileData (rpd).

In rocpd, the event of a kernel and the event of the call that launched it have the same
``stack_id``. ``generateRocpd.cpp`` of rocprofiler-sdk (ROCm/rocm-systems) stores its internal
correlation id in ``stack_id``. ``correlation_id`` contains an id supplied by the program. Times are
in nanoseconds on the node's ``CLOCK_BOOTTIME`` (``rocprofiler_get_timestamp``), so all files from a
node share one clock.

rpd is an older format. ``rocpd_api`` contains host calls and ranges, ``rocpd_op`` contains device
work, and ``rocpd_api_ops`` links each call to the work that it launched
(``rocpd_python/rocpd/schema_data/tableSchema.cmd`` of ROCm/rocmProfileData). A ROCTx range is a row
named ``UserMarker`` whose arguments are its text (``rpd_tracer/RoctxDataSource.cpp``). Since the
third version of the schema, the text is in ``rocpd_ustring``. Times are on the node's
``CLOCK_MONOTONIC`` (``clocktime_ns`` in ``rpd_tracer/Utility.h``). The host is not recorded. The
queries in ``sql/rpd`` return the same columns as the queries in ``sql/rocpd``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from bubbleviz.conventions.globs import PackedNames
from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.copies import Direction
from bubbleviz.model.grouping import Groups, find_distinct, find_positions, group_rows
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.profile import PID_MASK, Device, Thread
from bubbleviz.model.texts import format_count, list_first, replace_surrogates
from bubbleviz.progress import Watch
from bubbleviz.sources.rocm.database_parts import (
    ROCPD,
    RPD,
    Part,
    group_tables_by_part,
    read_stored_tables,
)
from bubbleviz.sources.rocm.host_events import HostEventKind, classify_host_event
from bubbleviz.sources.sqlite.database import Database, open_database
from bubbleviz.sources.sqlite.pages import PackedRows, Pages, open_pages
from bubbleviz.sources.sqlite.queries import Queries

#: Number of bits for the thread id and for the process id in a thread number. From the lowest bits
#: up, a thread number consists of thread id, process id, and part number.
_TID_BITS, _PID_BITS = 24, 24
#: Largest 32-bit value. As a correlation id, this value means that there is no id.
_MAX_CORRELATION_ID = (1 << 32) - 1
#: Name prefix of the kernels that the runtime (ROCm/clr) uses to copy and fill memory.
BLIT_KERNELS = "__amd_rocclr_"
_FILL_KERNELS = f"{BLIT_KERNELS}fill"
#: Index of the size column in gpu_work/copies.
#: The next column contains the direction. Only the query for rpd returns these two columns.
_SIZE_COLUMN = 6


@dataclass
class RocmRecording:
    """The contents of a file written by one of ROCm's profilers.

    Kernels, copies, calls and ranges are lists of blocks. A block is a sequence of columns with one
    row per event. Each process (part of the file) adds its own blocks.

    Attributes:
        path: Path to the file, as given by the user.
        format: Name of the input format.
        kernels: Blocks with the columns start, end, device, process, correlation id, index into
            ``kernel_names``, and stream (-1 if unknown).
        copies: Blocks of copies and fills, with the same columns as ``kernels`` except the name.
        copy_details: For each block of ``copies``, a block with the columns number of bytes (-1 if
            unknown) and :class:`Direction` (-1 for fills).
        calls: Blocks with the columns start, end, thread, correlation id, and index into
            ``call_names``.
        ranges: Blocks with the columns start, end, thread, :class:`HostEventKind`, and index into
            ``range_texts``.
        kernel_names: Distinct kernel names.
        call_names: Distinct names of the called functions.
        range_texts: Range texts. Equal texts from different events are stored separately.
        n_copies: Number of copies in the copy tables, excluding kernels that copy memory.
        n_unnamed_ranges: Number of ranges that were left out because they have no text.
        n_unnamed_calls: Number of calls and ranges whose function has no name.
        threads: The threads whose names are known.
        devices: GPUs.
        limitations: Limitations for data that the file lacks.
        host: Hostname, or None if it was not recorded.
        machine: Machine id, or None if it was not recorded.
        schema_version: Version of the file's schema, or None if unknown.
    """

    path: str
    format: str
    kernels: list[Ints] = field(default_factory=list)
    copies: list[Ints] = field(default_factory=list)
    copy_details: list[Ints] = field(default_factory=list)
    calls: list[tuple[Ints, ...]] = field(default_factory=list)
    ranges: list[tuple[Ints, ...]] = field(default_factory=list)
    kernel_names: Numbering[str] = field(default_factory=Numbering)
    call_names: Numbering[str] = field(default_factory=Numbering)
    range_texts: PackedNames = field(default_factory=PackedNames)
    n_copies: int = 0
    n_unnamed_ranges: int = 0
    n_unnamed_calls: int = 0
    threads: list[Thread] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    limitations: list[Limitation] = field(default_factory=list)
    host: str | None = None
    machine: str | None = None
    schema_version: str | None = None

    def add_limitation(self, subject: str, reason: str, count: int = 1) -> None:
        """Add a limitation, unless an equal limitation was already added.

        Args:
            subject: Subject of the limitation.
            reason: Reason for the limitation, shown after the file's path in the message.
            count: Number of affected items.
        """
        is_detail = subject == _GPU_MODELS
        kind = LimitationKind.DETAILS if is_detail else LimitationKind.OTHER
        note = Limitation(subject, f"{self.path} {reason}", count, kind)
        if note not in self.limitations:
            self.limitations.append(note)

    def add_kernels(self, work: Ints, names: Sequence[str], name: Ints, stream: Ints) -> None:
        """Add kernels. Kernels that the runtime uses to copy or fill memory are added as copies.

        The sizes of these copies are unknown. The direction is -1 for a fill and
        ``Direction.UNKNOWN`` for a copy.

        Args:
            work: Start, end, device, process and correlation id of each kernel, shape (5, kernels).
            names: Distinct kernel names.
            name: For each kernel, the index of its name in ``names``.
            stream: Stream number of each kernel, or -1 if unknown.
        """
        is_blit_name = mask_texts(names, lambda text: text.startswith(BLIT_KERNELS))
        number = np.full(len(names), NONE, np.int64)
        other_names = np.array(names, object)[~is_blit_name].tolist()
        number[~is_blit_name] = self.kernel_names.numbers(other_names)
        is_blit = is_blit_name[name]
        rows = np.vstack((work, number[name], stream))
        self.kernels.append(rows.compress(~is_blit, axis=1))

        is_fill = mask_texts(names, lambda text: text.startswith(_FILL_KERNELS))[name[is_blit]]
        direction = np.where(is_fill, NONE, Direction.UNKNOWN)
        details = np.stack((np.full(len(direction), NONE), direction))
        self.add_copies(np.vstack((work, stream)).compress(is_blit, axis=1), details)

    def add_copies(self, block: Ints, details: Ints) -> None:
        """Add a block of copies and fills.

        Args:
            block: The same columns as in the attribute ``copies``.
            details: The same columns as in the attribute ``copy_details``, for the same rows.
        """
        self.copies.append(block)
        self.copy_details.append(details)

    def check_ids(self, ids: Ints, remedy: str) -> None:
        """Check that every process or thread id is -1 or fits in 24 bits.

        Raises:
            ProfileError: An id is out of range. The message ends with ``remedy``.
        """
        if len(ids) and not NONE <= ids.min() <= ids.max() <= PID_MASK:
            raise ProfileError(
                f"{self.path}: a process or thread id is below 0 or above 16,777,215, so the "
                f"file is damaged or was edited; {remedy}"
            )


def mask_texts(texts: Sequence[str], test: Callable[[str], object]) -> Bools:
    """Return a mask of the texts that satisfy a predicate, which is called once per text."""
    return np.array([bool(test(text)) for text in texts], bool)


def translate_ids(values: Ints, table: Mapping[int, int]) -> tuple[Ints, Bools]:
    """Replace ids with the values that a table assigns to them.

    Args:
        values: Ids to replace.
        table: The new value of each known id.

    Returns:
        translated: The new value of each id. Ids that are not in the table are returned unchanged.
        is_unknown: Mask of the ids that are not in the table, except -1.
    """
    # The index -1, for an id that is not in the table, selects the dummy entry at the end.
    keys, results = np.array([*sorted(table.items()), (0, NONE)], np.int64).T
    index = find_positions(keys[:-1], values)
    is_missing = index == NONE
    return np.where(is_missing, values, results[index]), is_missing & (values != NONE)


def number_threads(process: Ints, tid: Ints) -> Ints:
    """Combine process numbers and thread ids into thread numbers, or -1 for unknown processes."""
    return np.where(process == NONE, NONE, (process << _TID_BITS) + (tid & PID_MASK))


def narrow_ids(column: Ints) -> Ints:
    """Convert correlation ids to values that fit in 32 bits.

    If all ids are below ``_MAX_CORRELATION_ID``, they are returned unchanged. Otherwise, all ids
    are renumbered from 1 in ascending order. Equal ids stay equal.

    Args:
        column: Correlation ids. Values of 0 or less mean that there is no id.

    Returns:
        The converted id of each row, or -1 if there is no id.
    """
    ids = np.where(column > 0, column, NONE)
    if ids.max(initial=0) >= _MAX_CORRELATION_ID:
        groups = group_rows(ids)
        # Groups are sorted, so all rows without an id (-1) are in group 0.
        ids = groups.of_row + (0 if (ids == NONE).any() else 1)
        ids[column <= 0] = NONE
    return ids


_Rows = Sequence[tuple[Any, ...]]
#: Maximum number of hosts that a message names.
_MAX_NAMED_HOSTS = 4
#: Maximum number of processes in a table for which every query scans the whole table. For more
#: processes, it is faster to determine each process's row numbers first.
_MAX_SCANNED_PROCESSES = 8
#: Subject of the limitation to report if no GPU model is known.
_GPU_MODELS = "GPU models"
#: Subject of the limitation to report if a table or column is missing, keyed by query.
_LIMITATION_OF_QUERY = {
    "target/threads": "thread names, which separate loaders and watchdogs from backward threads",
    "target/nodes": (
        "the hostname, which shows which files share a clock (to join files, pass --same-clock)"
    ),
    "target/agents": _GPU_MODELS,
    "target/processes": "process ids",
    "calls/all": "the kinds of calls, or which call launched which work",
    "ranges/texts": "names of ranges",
    "gpu_work/kernel_names": "names of kernels",
    "gpu_work/copies": "copies",
}


#: (queries, (name of the kernel table, name of the call table)), keyed by format.
_FORMATS: Mapping[str, tuple[Queries, tuple[str, str]]] = {
    "rocpd": (ROCPD, ("rocpd_kernel_dispatch", "rocpd_region")),
    "rpd": (RPD, ("rocpd_op", "rocpd_api")),
}


def read_recording(path: str, kind: str, watch: Watch) -> RocmRecording:
    """Read a ROCm profiler's file, which may contain several processes on one host.

    In the format "rocpd", an unknown hostname is reported as a limitation.

    Args:
        path: Path to the file.
        kind: File format, "rocpd" or "rpd".
        watch: Function that is called with the fraction of the file that has been read.

    Raises:
        ProfileError: The file is damaged or contains processes from several hosts.
        SchemaError: A required table or column is missing.
    """
    queries, _ = _FORMATS[kind]
    recording = RocmRecording(path, kind)
    with open_database(path, queries) as database, open_pages(path) as opened:
        pages = opened if isinstance(opened, Pages) else None
        hosts = _read_parts(recording, database, pages, watch)
    if len(hosts) > 1:
        # A profile has a single clock, but each host has a different clock.
        names = sorted(host or "without a name" for host, _ in hosts)
        raise ProfileError(
            f"{path}: the file contains processes from {len(hosts)} hosts "
            f"({list_first(names, _MAX_NAMED_HOSTS)}), but a profile has only one clock; pass the "
            "original files, or merge the files of each host separately",
            hosts=[host for host, _ in hosts],
        )
    host, machine = next(iter(hosts), ("", ""))
    no_hostname = _LIMITATION_OF_QUERY["target/nodes"]
    is_reported = any(note.what == no_hostname for note in recording.limitations)
    if not host and kind != "rpd" and not is_reported:
        recording.add_limitation(no_hostname, "has no hostname in rocpd_info_node")
    recording.host, recording.machine = host or None, machine or None
    return recording


def _read_parts(
    recording: RocmRecording, database: Database, pages: Pages | None, watch: Watch
) -> Mapping[tuple[str, str], None]:
    """Read the tables of all processes into a recording, and set its ``schema_version``.

    Returns:
        Dictionary whose keys are (hostname, machine id) pairs, one per host, in order of first
        occurrence. All values are None.

    Raises:
        ProfileError: The file has no table of its format, or is damaged.
        SchemaError: A required table or column is missing.
    """
    queries, _ = _FORMATS[recording.format]
    stored = read_stored_tables(database)
    table_sets = group_tables_by_part(stored, queries)
    _check_tables(recording, table_sets)
    parts_of_pid: dict[int, int] = {}
    hosts: dict[tuple[str, str], None] = {}
    versions: dict[str, None] = {}
    for n_read, names in enumerate(table_sets):
        tables_of_part = Part(database, queries, names, stored, pages=pages)
        metadata = tables_of_part.query_rows("target/metadata")
        versions.update({str(version): None for (version,) in metadata})
        for fraction, part in _iter_processes(tables_of_part):
            hosts.update(_find_hosts(part))
            _PartReader(recording, part, parts_of_pid).read()
            watch((n_read + fraction) / len(table_sets))
    recording.schema_version = ", ".join(versions) or None
    return hosts


def _check_tables(recording: RocmRecording, table_sets: Sequence[Mapping[str, str]]) -> None:
    """Check that a file contains tables of its format.

    A file in the format "rpd" must contain the kernel table or the call table. In the format
    "rocpd", any table that a query reads is sufficient.

    Args:
        recording: Recording that contains the file's format and path.
        table_sets: Table names in each part, as returned by :func:`group_tables_by_part`.

    Raises:
        ProfileError: The file contains none of the expected tables.
    """
    queries, tables = _FORMATS[recording.format]
    has_tables = any({*tables} & {*names} for names in table_sets)
    if not table_sets or (recording.format == "rpd" and not has_tables):
        raise ProfileError(
            f"{recording.path}: the file is an SQLite database but not a {queries.noun}, because "
            f"it has none of the tables {', '.join(tables)}; {queries.again}"
        )


def _iter_processes(part: Part) -> Iterator[tuple[float, Part]]:
    """Divide one set of tables into processes, and yield each process's rows.

    Args:
        part: Tables that may contain rows of several processes.

    Yields:
        fraction: Fraction of all processes that have been yielded, including this one.
        part: The same tables, limited to the process's rows.

    Raises:
        ProfileError: The tables contain several processes, but a table lacks the GUIDs that assign
            rows to processes.
    """
    guids = _read_guids(part)
    has_many = len(guids) > _MAX_SCANNED_PROCESSES
    extents = part.find_extents_by_guid() if has_many else {}
    for n_yielded, guid in enumerate(guids, 1):
        rows = {table: by_guid[guid] for table, by_guid in extents.items() if guid in by_guid}
        yield n_yielded / len(guids), part.select_process(guid, rows) if guid else part


def _read_guids(part: Part) -> Sequence[str]:
    """Return the process GUIDs in one set of tables, or ("",) if there is at most one process.

    Raises:
        ProfileError: There are several processes, and a table lacks the column ``guid``.
    """
    guids = [str(guid) for (guid,) in part.query_rows("target/guids")]
    if len(guids) < 2:
        return ("",)
    tables_without_guid = [
        base
        for base, columns in part.schema.items()
        if "guid" not in columns and base != "rocpd_metadata"
    ]
    if tables_without_guid:
        raise ProfileError(
            f"{part.path}: the file contains {format_count(len(guids), 'process', 'processes')} "
            f"in one table, but {tables_without_guid[0]} lacks the column guid, so its rows cannot "
            f"be assigned to processes; {part.remedy}"
        )
    return guids


def _find_hosts(part: Part) -> Mapping[tuple[str, str], None]:
    """Return the hosts on which the processes in a set of tables ran.

    The hosts are listed in the order of the node table. Only nodes that occur in the process table
    are included. If no process is assigned to a node, all nodes are included. A node is left out if
    both its hostname and its machine id are unknown.

    Args:
        part: Tables of one or several processes.

    Returns:
        Dictionary whose keys are (hostname, machine id) pairs, one per host. Unknown texts are "".
        All values are None.
    """
    used_nodes = {node for _, _, node in part.query_rows("target/processes")} - {NONE}
    return {
        (str(hostname or ""), str(machine or "")): None
        for node, hostname, machine in part.query_rows("target/nodes")
        if (not used_nodes or node in used_nodes) and (hostname or machine)
    }


class _Copies(NamedTuple):
    """A process's copies that involve a GPU, sorted by start.

    Attributes:
        columns: Start, end, process, agent and event of each copy, shape (5, copies). The agent is
            the GPU to which the copy is attributed.
        details: Number of bytes (-1 if unknown) and :class:`Direction`, shape (2, copies).
        stream: Stream of each copy, or -1 if unknown.
    """

    columns: Ints
    details: Ints
    stream: Ints


@dataclass(frozen=True)
class _HostEvents:
    """The calls and ranges of a process.

    Attributes:
        columns: Columns returned by the query calls/all, shape (6, calls and ranges): start, end,
            process, thread, function and event.
        event_row: Row of each call or range in the event table, or -1 if the table does not contain
            it.
        category: Category id of each call or range, or -1 if unknown.
        correlation: Correlation id of each call or range, or -1 for none.
        has_launched: Mask of the calls and ranges that launched a kernel or a copy.
    """

    columns: Ints
    event_row: Ints
    category: Ints
    correlation: Ints
    has_launched: Bools

    @cached_property
    def groups(self) -> Groups:
        """Groups of calls and ranges that share a function, category, process and thread.

        Names are looked up once per group, because there are far fewer groups than events.
        """
        return group_rows(self.columns[4], self.category, *self.columns[2:4])


class _PartReader:
    """Reads the tables of one process into a recording.

    Args:
        recording: The recording to which rows are added.
        part: The process's tables.
        parts_of_pid: Number of parts read so far, keyed by process id. :meth:`read` updates it.

    Raises:
        ProfileError: A table is damaged, or contains a value that is not an integer.
    """

    def __init__(self, recording: RocmRecording, part: Part, parts_of_pid: dict[int, int]) -> None:
        self._recording, self._part, self._parts_of_pid = recording, part, parts_of_pid
        queries, self._tables = _FORMATS[recording.format]
        for name, subject in _LIMITATION_OF_QUERY.items():
            if queries.exists(name) and (missing := part.find_missing(name)):
                recording.add_limitation(subject, f"lacks {', '.join(missing)}")
        processes = part.query_rows("target/processes", 2)
        self._pid_of_process = {number: pid for number, pid, _ in processes}
        if part.has("target/processes") and not processes:
            recording.add_limitation("process ids", "has no rows in rocpd_info_process")
        self._agents = part.query_rows("target/agents", 2)
        self._threads = part.query_rows("target/threads", 3)

    def read(self) -> None:
        """Add the kernels, copies, calls, ranges, threads and devices of the process.

        Kernels and copies are linked to calls by their event ids, see
        :func:`_choose_correlation_ids`.

        Raises:
            ProfileError: A table is damaged, or contains a value that is not an integer.
            SchemaError: A required table or column is missing.
        """
        part, has_events = self._part, self._part.has("calls/events")
        events = part.read_events() if has_events else (np.empty((5, 0), np.int64), b"")
        kernels, streams = _read_kernels(part, self._tables[0])
        copies = _read_copies(part, self._agents, kernels, streams)
        has_calls = has_events and part.has("calls/all")
        calls = part.query_columns("calls/all") if has_calls else np.empty((6, 0), np.int64)

        event_ids = np.concatenate((kernels[-1], copies.columns[-1], calls[-1]))
        event_row = find_positions(events[0][0], event_ids)
        n_kernels = kernels.shape[1]
        n_work = n_kernels + copies.columns.shape[1]
        correlation, has_launched = _choose_correlation_ids(events[0][2:4], event_row, n_work)
        host_events = _HostEvents(
            calls,
            event_row[n_work:],
            _lookup(events[0][1], event_row[n_work:], NONE),
            correlation[n_work:],
            has_launched,
        )

        call_processes = calls[2, host_events.groups.first]
        columns = (kernels[2], copies.columns[2], call_processes)
        kernel_process, copy_process, call_process = map(self._number_processes, columns)
        self._add_kernels(kernels, kernel_process, correlation[:n_kernels], streams)
        self._add_copies(copies, copy_process, correlation[n_kernels:n_work])
        self._add_host_events(host_events, events, call_process)
        self._add_threads()
        self._add_devices(kernel_process, kernels[3])
        for pid in set(self._pid_of_process.values()) or {0}:
            self._parts_of_pid[pid] = self._parts_of_pid.get(pid, 0) + 1

    def _number_processes(self, process: Ints) -> Ints:
        """Convert the database ids of processes to numbers that are unique within the file.

        Processes in different parts of a file may have the same process id. The lowest
        ``_PID_BITS`` bits of a number are the process id. The higher bits are the number of earlier
        parts that contain the same process id.

        Args:
            process: Id of each row's process in the process table, or -1 if unknown. Unknown
                processes stay -1. If an id is not in the table, the id itself is used as the
                process id.

        Raises:
            ProfileError: A process id is out of range.
        """
        pid, is_unknown = translate_ids(process, self._pid_of_process)
        if self._pid_of_process and is_unknown.any():
            reason = "has rows whose process is not in rocpd_info_process"
            self._recording.add_limitation("process ids", reason)
        self._recording.check_ids(pid, self._part.remedy)
        n_parts = {p: self._parts_of_pid.get(p, 0) for p in find_distinct(pid).tolist()}
        n_earlier, _ = translate_ids(pid, n_parts)
        return np.where(pid == NONE, NONE, (n_earlier << _PID_BITS) + pid)

    def _number_devices(self, agent: Ints) -> tuple[Ints, Bools]:
        """Return the device number of each agent, and a mask of the agents whose number is unknown.

        If the number is unknown, the agent itself is used as the device number.
        """
        return translate_ids(
            agent, {row: number for row, number, _ in self._agents if number != NONE}
        )

    def _add_kernels(self, kernels: Ints, process: Ints, correlation: Ints, streams: Ints) -> None:
        """Add the process's kernels.

        Device numbers are looked up in the agent table. A limitation is added if the table is empty
        or lacks a kernel's agent.

        Args:
            kernels: Start, end, process, agent, symbol and event of each kernel, shape
                (6, kernels).
            process: Process number of each kernel.
            correlation: Correlation id of each kernel, or -1 for none.
            streams: Stream and queue of each kernel, or -1 if unknown, shape (2, kernels).
        """
        device, is_unknown = self._number_devices(kernels[3])
        n_unknown = int(is_unknown.sum())
        if self._part.has("target/agents") and kernels.shape[1] and not self._agents:
            self._recording.add_limitation(_GPU_MODELS, "has no rows in rocpd_info_agent")
        elif self._agents and n_unknown:
            reason = "has kernels whose GPU is not in rocpd_info_agent"
            self._recording.add_limitation("GPU ids", reason, n_unknown)
        block = np.stack((*kernels[:2], device, _to_global_pids(process), correlation))
        names, name = self._read_kernel_names(kernels[4])
        self._recording.add_kernels(block, names, name, _number_kernel_streams(streams))

    def _read_kernel_names(self, kernel: Ints) -> tuple[list[str], Ints]:
        """Read the kernel names. Kernels without a name are counted in a limitation.

        Args:
            kernel: Symbol id of each kernel.

        Returns:
            names: The name of each distinct symbol, in ascending order of symbol ids. A symbol
                without a name is called ``<kernel ID>``.
            row: For each kernel, the index of its name in ``names``.
        """
        texts = self._part.query_texts("gpu_work/kernel_names")
        symbols = find_distinct(kernel)
        names = [texts.get(symbol, f"<kernel {symbol}>") for symbol in symbols.tolist()]
        row = find_positions(symbols, kernel)
        has_no_name = ~np.isin(symbols, np.array([*texts], np.int64))
        n_unnamed = int(has_no_name[row].sum())
        if n_unnamed and self._part.has("gpu_work/kernel_names"):
            self._recording.add_limitation(
                "names of kernels", "has kernels without a name", n_unnamed
            )
        return names, row

    def _add_copies(self, copies: _Copies, process: Ints, correlation: Ints) -> None:
        """Add the process's copies.

        Args:
            copies: The process's copies.
            process: Process number of each copy.
            correlation: Correlation id of each copy, or -1 for none.
        """
        device, _ = self._number_devices(copies.columns[3])
        self._recording.n_copies += len(device)
        pids = _to_global_pids(process)
        block = np.stack((*copies.columns[:2], device, pids, correlation, copies.stream))
        self._recording.add_copies(block, copies.details)

    def _add_host_events(self, host_events: _HostEvents, events: PackedRows, process: Ints) -> None:
        """Add the process's calls and ranges.

        Names and ids are looked up once for each group of events with the same function, category
        and thread (``host_events.groups``). :func:`classify_host_event` determines the kind of each
        group. A limitation reports calls whose thread is missing from the thread table.

        Args:
            host_events: Calls and ranges of the process.
            events: Event table with texts, as returned by :meth:`Part.read_events`.
            process: Process number of each group in ``host_events.groups``.

        Raises:
            ProfileError: A thread id is out of range.
        """
        groups = host_events.groups
        tids = {number: tid for number, tid, *_ in self._threads}
        tid, is_unknown = translate_ids(host_events.columns[3, groups.first], tids)
        if self._threads and is_unknown.any():
            n_unknown = int(is_unknown[groups.of_row].sum())
            reason = "has calls whose thread is not in rocpd_info_thread"
            self._recording.add_limitation("thread ids", reason, n_unknown)
        self._recording.check_ids(tid, self._part.remedy)
        thread = number_threads(process, tid)

        functions = self._read_names("calls/names", host_events.columns[4, groups.first])
        categories = self._read_names("calls/categories", host_events.category[groups.first])
        is_unnamed = mask_texts(functions, lambda text: not text)
        self._recording.n_unnamed_calls += int(is_unnamed[groups.of_row].sum())
        kinds = np.array([*map(classify_host_event, categories, functions)], np.int64)
        self._add_calls(host_events, thread, functions, kinds[groups.of_row])
        self._add_ranges(host_events, events, thread, functions, kinds[groups.of_row])

    def _read_names(self, query: str, ids: Ints) -> list[str]:
        """Return each id's name according to a query, or "" for an id without a name."""
        texts = self._part.query_texts(query, find_distinct(ids))
        return [texts.get(number, "") for number in ids.tolist()]

    def _add_calls(
        self, host_events: _HostEvents, thread: Ints, functions: Sequence[str], kind: Ints
    ) -> None:
        """Add the process's calls, including RCCL calls that launched work themselves.

        Args:
            host_events: Calls and ranges of the process.
            thread: Thread number of each group in ``host_events.groups``.
            functions: Function name of each group.
            kind: :class:`HostEventKind` of each call or range.
        """
        is_launching = (kind == HostEventKind.COLLECTIVE) & host_events.has_launched
        rows = np.flatnonzero((kind == HostEventKind.CALL) | is_launching)
        group = host_events.groups.of_row[rows]
        used_groups = find_distinct(group)
        name_of_group = np.full(len(functions), NONE, np.int64)
        names = (functions[index] for index in used_groups.tolist())
        name_of_group[used_groups] = self._recording.call_names.numbers(names)
        times = host_events.columns[:2].take(rows, axis=1)
        correlation = host_events.correlation[rows]
        self._recording.calls.append((*times, thread[group], correlation, name_of_group[group]))

    def _add_ranges(
        self,
        host_events: _HostEvents,
        events: PackedRows,
        thread: Ints,
        functions: Sequence[str],
        kind: Ints,
    ) -> None:
        """Add the process's ranges.

        A range without a text is named after its function. A ROCTx range without a text is left out
        and counted instead.

        Args:
            host_events: Calls and ranges of the process.
            events: Event table with texts, as returned by :meth:`Part.read_events`.
            thread: Thread number of each group in ``host_events.groups``.
            functions: Function name of each group.
            kind: :class:`HostEventKind` of each call or range.
        """
        rows = np.flatnonzero(kind >= HostEventKind.COLLECTIVE)
        group = host_events.groups.of_row[rows]
        texts = self._recording.range_texts
        name = _add_range_texts(texts, self._part, events, host_events.event_row[rows])
        has_no_text = name == NONE
        is_roctx = mask_texts(functions, lambda function: function.startswith("roctx"))
        is_unnamed = has_no_text & is_roctx[group]
        self._recording.n_unnamed_ranges += int(is_unnamed.sum())

        indices = np.arange(len(functions))
        no_lengths, names = np.zeros_like(indices), [*map(replace_surrogates, functions)]
        function_name = texts.add(no_lengths, b"", indices, names, group)
        name = np.where(has_no_text, function_name, name)
        if is_unnamed.any():
            rows, group, name = (column[~is_unnamed] for column in (rows, group, name))
        times = host_events.columns[:2].take(rows, axis=1)
        self._recording.ranges.append((*times, thread[group], kind[rows], name))

    def _add_threads(self) -> None:
        """Add the threads whose names are known.

        Raises:
            ProfileError: A thread id is out of range.
        """
        named_rows = [row for row in self._threads if row[3]]
        if not named_rows:
            return
        tid, process = np.array([row[1:3] for row in named_rows], np.int64).T
        self._recording.check_ids(tid, self._part.remedy)
        numbers = number_threads(self._number_processes(process), tid).tolist()
        self._recording.threads.extend(
            Thread(number, str(row[3])) for number, row in zip(numbers, named_rows, strict=True)
        )

    def _add_devices(self, kernel_process: Ints, agent: Ints) -> None:
        """Add the GPUs that ran kernels and have a name, once for each process.

        The device number of a GPU comes from the agent table. If it is unknown, the GPU's row in
        the agent table is used instead.

        Args:
            kernel_process: Process number of each kernel.
            agent: Agent of each kernel, which is its GPU's row in the agent table.
        """
        pids_of_kernels = (find_distinct(kernel_process) & PID_MASK).tolist()
        pids = sorted({*self._pid_of_process.values(), *pids_of_kernels})
        used_agents = set(find_distinct(agent).tolist())
        for row, number, name in self._agents:
            if row in used_agents and name:
                device = row if number == NONE else number
                self._recording.devices.extend(Device(pid, device, str(name), None) for pid in pids)


def _to_global_pids(process: Ints) -> Ints:
    """Shift process numbers to their position in a thread number. Unknown processes stay -1."""
    return np.where(process == NONE, NONE, process << _TID_BITS)


def _lookup(column: Ints, rows: Ints, missing: int) -> Ints:
    """Return a column's values in the given rows, or ``missing`` for row -1."""
    # Row -1 selects the appended value.
    return np.append(column, missing)[rows]


def _read_kernels(part: Part, table: str) -> tuple[Ints, Ints]:
    """Read a process's kernels, sorted by start.

    Args:
        part: Tables of one process.
        table: Name of the kernel table. If the file lacks it, no kernels are returned.

    Returns:
        kernels: Start, end, process, agent, symbol and event of each kernel, shape (6, kernels).
        streams: Stream and queue of each kernel, or -1 if unknown, shape (2, kernels).
    """
    kernels = part.query_columns("gpu_work/kernels", table=table)
    streams = _read_streams(part, "gpu_work/kernel_streams", kernels.shape[1])
    order = np.argsort(kernels[0], kind="stable")
    # Unlike indexing, take() returns columns that are contiguous in memory.
    return kernels.take(order, axis=1), streams.take(order, axis=1)


def _read_copies(part: Part, agents: _Rows, kernels: Ints, kernel_streams: Ints) -> _Copies:
    """Read the copies of a process. Copies that do not involve a GPU are left out.

    A copy is attributed to its target GPU. If the target is not a GPU, the copy is attributed to
    its source GPU.

    Args:
        part: Tables of one process.
        agents: Rows of the GPUs in the agent table. If there are none, the agents that ran kernels
            are assumed to be the GPUs.
        kernels: The process's kernels, as returned by :func:`_read_kernels`.
        kernel_streams: Stream and queue of each kernel.
    """
    if not part.has("gpu_work/copies"):
        no_rows = np.empty(0, np.int64)
        return _Copies(np.empty((5, 0), np.int64), np.empty((2, 0), np.int64), no_rows)
    recorded = part.query_columns("gpu_work/copies")
    if agents:
        gpus = np.array([agent for agent, *_ in agents], np.int64)
    else:
        gpus = find_distinct(kernels[3])
    to_gpu, from_gpu = np.isin(recorded[3], gpus), np.isin(recorded[4], gpus)
    agent = np.where(to_gpu, recorded[3], recorded[4])
    columns = np.stack((*recorded[:3], agent, recorded[5]))
    details = _describe_copies(part, recorded, to_gpu, from_gpu)
    copy_streams = _read_streams(part, "gpu_work/copy_streams", recorded.shape[1])
    stream = _number_copy_streams(kernel_streams, copy_streams)

    rows = np.flatnonzero(to_gpu | from_gpu)
    rows = rows[np.argsort(columns[0, rows], kind="stable")]
    return _Copies(columns.take(rows, axis=1), details.take(rows, axis=1), stream[rows])


def _describe_copies(part: Part, copies: Ints, to_gpu: Bools, from_gpu: Bools) -> Ints:
    """Return the size in bytes and the direction of each copy, shape (2, copies).

    An unknown size is -1. If the direction was not recorded but the source agent is known, the
    direction is derived from the source and target agents. An agent that is not a GPU is considered
    a host. A copy between two GPUs is PEER_TO_PEER, and a copy within a GPU is DEVICE_TO_DEVICE.

    Args:
        part: Tables of one process.
        copies: Columns returned by the query gpu_work/copies, which include the agents.
        to_gpu: Mask of the copies whose target is a GPU.
        from_gpu: Mask of the copies whose source is a GPU.
    """
    size = np.full(copies.shape[1], NONE, np.int64)
    direction = np.zeros(copies.shape[1], np.int64)
    if len(copies) > _SIZE_COLUMN:
        size, direction = copies[_SIZE_COLUMN:]
    elif part.has("gpu_work/copy_sizes"):
        (column,) = part.query_columns("gpu_work/copy_sizes")
        size = column if len(column) == len(size) else size
    has_source = copies[4] != NONE
    is_within_gpu = to_gpu & from_gpu & (copies[3] == copies[4])
    by_agents = np.select(
        [~has_source, is_within_gpu, to_gpu & from_gpu, to_gpu, from_gpu],
        [
            Direction.UNKNOWN,
            Direction.DEVICE_TO_DEVICE,
            Direction.PEER_TO_PEER,
            Direction.HOST_TO_DEVICE,
            Direction.DEVICE_TO_HOST,
        ],
        Direction.UNKNOWN,
    )
    is_recorded = direction != Direction.UNKNOWN
    return np.stack((np.maximum(size, NONE), np.where(is_recorded, direction, by_agents)))


def _read_streams(part: Part, name: str, count: int) -> Ints:
    """Read the stream and queue of each kernel or copy, shape (2, count).

    All values are -1 (unknown) if the query cannot run, or if it does not return exactly ``count``
    rows.

    Args:
        part: Tables of one process.
        name: Name of the query that returns streams and queues.
        count: Number of kernels or copies.
    """
    if count and part.has(name):
        streams = part.query_columns(name)
        if streams.shape[1] == count:
            return streams
    return np.full((2, count), NONE, np.int64)


def _number_kernel_streams(recorded: Ints) -> Ints:
    """Return a stream number for each kernel, or -1 if both its stream and queue are unknown.

    Some recordings contain the same stream for all kernels. Therefore, each distinct (stream,
    queue) pair gets its own number. The numbers follow the lexicographic order of the pairs.

    Args:
        recorded: Stream and queue of each kernel, shape (2, kernels).
    """
    if recorded.shape[1] == 0:
        return np.empty(0, np.int64)
    return np.where((recorded == NONE).all(axis=0), NONE, group_rows(*recorded).of_row)


def _number_copy_streams(kernels: Ints, copies: Ints) -> Ints:
    """Return the stream number of each copy, or -1 if unknown.

    A copy gets the stream number of certain kernels (see :func:`_number_kernel_streams`):

    - If the copy's queue is known (greater than 0), the kernels with the same stream and queue
      determine the number.
    - If only the copy's stream is known, the kernels with the same stream determine the number. If
      these kernels ran on several queues, the number is unknown.

    Args:
        kernels: Stream and queue of each kernel, shape (2, kernels).
        copies: Stream and queue of each copy, shape (2, copies).
    """
    if kernels.shape[1] == 0 or copies.shape[1] == 0:
        return np.full(copies.shape[1], NONE, np.int64)
    pairs = kernels[:, group_rows(*kernels).first]
    by_queue = _find_unique_keys(pairs, copies)
    by_stream = _find_unique_keys(pairs[:1], copies[:1])
    has_stream, has_queue = copies > 0
    return np.where(has_queue, by_queue, np.where(has_stream, by_stream, NONE))


def _find_unique_keys(keys: Ints, queries: Ints) -> Ints:
    """Look up each query among the keys, and return the index of the matching key.

    The index is -1 unless exactly one key equals the query.

    Args:
        keys: Keys, one per column, shape (fields, keys).
        queries: Keys to look up, one per column, shape (fields, queries).
    """
    n_keys = keys.shape[1]
    group = group_rows(*np.hstack((keys, queries))).of_row
    count = np.bincount(group[:n_keys], minlength=int(group.max()) + 1)
    index = np.full(len(count), NONE, np.int64)
    index[group[:n_keys]] = np.arange(n_keys)
    index[count != 1] = NONE
    return index[group[n_keys:]]


def _choose_correlation_ids(ids: Ints, event_row: Ints, n_work: int) -> tuple[Ints, Bools]:
    """Choose the ids that link kernels and copies to the calls that launched them.

    The first rule that applies determines the kind of id:

    1. If any call has the same stack id as a kernel or copy, stack ids are used.
    2. If any call has the same correlation id as a kernel or copy, and the correlation ids of the
       calls are unique, correlation ids are used.
    3. In all other cases, stack ids are used, although they do not link any work.

    Args:
        ids: Stack ids and correlation ids of events, shape (2, events).
        event_row: Row of each kernel's or copy's event, followed by the row of each call's event,
            or -1 if the event is missing.
        n_work: Number of kernels and copies.

    Returns:
        correlation: The chosen ids of all kernels and copies, followed by the chosen ids of all
            calls, or -1 for none.
        has_launched: Mask of the calls that have the same id as a kernel or copy.
    """
    stack_id, by_stack = _match_ids(ids[0], event_row, n_work)
    if by_stack.any():
        return stack_id, by_stack
    correlation_id, by_correlation = _match_ids(ids[1], event_row, n_work)
    ids_of_calls = correlation_id[n_work:][correlation_id[n_work:] != NONE]
    is_unique = len(find_distinct(ids_of_calls)) == len(ids_of_calls)
    if is_unique and by_correlation.any():
        return correlation_id, by_correlation
    return stack_id, by_stack


def _match_ids(ids: Ints, event_row: Ints, n_work: int) -> tuple[Ints, Bools]:
    """Look up the ids of kernels, copies and calls, and find the calls that launched work.

    Args:
        ids: Id of each event. Values of 0 or less mean that the event has no id.
        event_row: Row of each kernel's or copy's event, followed by the row of each call's event,
            or -1 if the event is missing.
        n_work: Number of kernels and copies.

    Returns:
        narrow_id: The 32-bit ids of all kernels and copies, followed by the 32-bit ids of all
            calls, or -1 for none.
        has_launched: Mask of the calls that have the same id as a kernel or copy.
    """
    narrow_id = narrow_ids(_lookup(ids, event_row, 0))
    call_id = narrow_id[n_work:]
    return narrow_id, np.isin(call_id, narrow_id[:n_work]) & (call_id != NONE)


def _add_range_texts(texts: PackedNames, part: Part, events: PackedRows, row: Ints) -> Ints:
    """Add event texts to ``texts``, and return the index of each range's text.

    The index is -1 for a range without a text. All texts that ``events`` contains are added, even
    texts that do not belong to a range. Missing texts are queried, but only for ranges.

    Args:
        texts: Range texts. Changed in place.
        part: Tables of one process.
        events: Event table with texts, as returned by :meth:`Part.read_events`.
        row: Row of each range in the event table, or -1 if the table does not contain it.
    """
    (event, *_, length), packed = events
    # The last element is for row -1.
    is_range = np.zeros(len(event) + 1, bool)
    is_range[row] = True
    unpacked_events = event[is_range[:-1] & (length == NONE)]
    ids, unpacked = part.query_texts_of_rows("ranges/texts", unpacked_events, read_all=not packed)
    event_row = find_positions(event, ids)
    if (event_row == NONE).any():
        # Some texts belong to events that are missing from the event table.
        present = np.flatnonzero(event_row != NONE)
        event_row, unpacked = event_row[present], [unpacked[index] for index in present.tolist()]
    return texts.add(length, packed, event_row, unpacked, row)
