"""Files of ROCm's profilers: those of ``rocprofv3`` (rocpd) and of rocmProfileData (rpd).

What launched a kernel is told by its event's ``stack_id``, which the launching call's event shares:
``generateRocpd.cpp`` of rocprofiler-sdk (ROCm/rocm-systems) writes the internal correlation id
there, and an id that the program gives into ``correlation_id``. Times are nanoseconds of the node's
``CLOCK_BOOTTIME`` (``rocprofiler_get_timestamp``), so that all files of a node share one clock.

rpd is older: ``rocpd_api`` holds calls and ranges of hosts, ``rocpd_op`` work of devices,
``rocpd_api_ops`` which call launched which work (``rocpd_python/rocpd/schema_data/tableSchema.cmd``
of ROCm/rocmProfileData). A range of ROCTx is a row named ``UserMarker``, whose arguments are its
text (``rpd_tracer/RoctxDataSource.cpp``), in ``rocpd_ustring`` since its third schema. Times are
those of the node's ``CLOCK_MONOTONIC`` (``clocktime_ns`` in ``rpd_tracer/Utility.h``); no host is
recorded. Its queries in ``sql/rpd`` give the columns of those in ``sql/rocpd``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

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
from bubbleviz.sources.sqlite.database import open_database
from bubbleviz.sources.sqlite.pages import PackedRows, Pages, open_pages
from bubbleviz.sources.sqlite.queries import Queries

#: Bits of a thread's number below that of its process, and of a process's below that of its part.
_TID_BITS, _PID_BITS = 24, 24
#: Correlation ids take 32 bits, of which the largest stands for none.
_MOST_IDS = (1 << 32) - 1
#: How the runtime (ROCm/clr) names the kernels by which it copies and fills.
BLIT_KERNELS = "__amd_rocclr_"
_FILL_KERNELS = f"{BLIT_KERNELS}fill"
#: Index of the first of the columns of gpu_work/copies that only some formats have: the number of
#: bytes and the direction.
_SIZE_COLUMN = 6


@dataclass
class RocmRecording:
    """What a file of ROCm's profilers holds; blocks of columns, one for each of its parts.

    Attributes:
        path: as given.
        format: name of the input format.
        kernels: start_ns, end_ns, device, process, correlation id, row of ``kernel_names``, number
            of the stream.
        copies: The same columns of copies and fills, without the name; the stream is -1 if unknown.
        moved: For each block of ``copies``, the number of bytes, or -1 if unknown, and the code of
            the direction, or -1 for fills.
        calls: start_ns, end_ns, thread, correlation id, row of ``call_names``.
        ranges: start_ns, end_ns, thread, :class:`HostEventKind`, row of ``range_texts``.
        kernel_names: distinct names of kernels.
        call_names: distinct names of functions.
        range_texts: texts of ranges, event by event.
        copied: how many copies were recorded as such.
        nameless: how many ranges were left out as they have no text.
        unnamed_calls: how many calls and ranges have functions without a name.
        threads: named threads.
        devices: the GPUs.
        limitations: what the file lacks.
        host: hostname; None where the file does not record it.
        machine: id of the machine; likewise.
        schema_version: version of the file's schema; None unknown.
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

    def add_limitation(self, what: str, reason: str, count: int = 1) -> None:
        """Note what the file lacks, once."""
        note = Limitation(what, f"{self.path} {reason}", count, LimitationKind.OTHER)
        if note not in self.limitations:
            self.limitations.append(note)

    def add_kernels(self, work: Ints, names: Sequence[str], name: Ints, stream: Ints) -> None:
        """Add kernels; those by which the runtime copies and fills are copies.

        Args:
            work: start_ns, end_ns, device, process, correlation id.
            names: of kernels.
            name: row of them of each kernel.
            stream: Number of the stream of each kernel, or -1 if unknown.
        """
        blit = mask_texts(names, lambda text: text.startswith(BLIT_KERNELS))
        number = np.full(len(names), NONE, np.int64)
        number[~blit] = self.kernel_names.numbers(np.array(names, object)[~blit].tolist())
        rows = np.vstack((work, number[name], stream))
        self.kernels.append(rows.compress(~blit[name], axis=1))
        fills = mask_texts(names, lambda text: text.startswith(_FILL_KERNELS))[name[blit[name]]]
        direction = np.where(fills, NONE, Direction.UNKNOWN)
        moved = np.stack((np.full(len(direction), NONE), direction))
        self.add_copies(np.vstack((work, stream)).compress(blit[name], axis=1), moved)

    def add_copies(self, block: Ints, moved: Ints) -> None:
        """Add copies and fills.

        Args:
            block: A block of ``copies``.
            moved: The block of ``moved`` with the same rows.
        """
        self.copies.append(block)
        self.copy_details.append(moved)

    def check_ids(self, numbers: Ints, again: str) -> None:
        """Raise ProfileError where processes or threads have numbers that none can have."""
        if len(numbers) and not NONE <= numbers.min() <= numbers.max() <= PID_MASK:
            raise ProfileError(
                f"{self.path}: a process or thread has a number below 0 or above 16,777,215, so "
                f"the file is damaged or was edited; {again}"
            )


def mask_texts(texts: Sequence[str], test: Callable[[str], object]) -> Bools:
    """Tell of which texts a test holds."""
    return np.array([bool(test(text)) for text in texts], bool)


def translate_ids(values: Ints, table: Mapping[int, int]) -> tuple[Ints, Bools]:
    """Return what a table gives for each value, itself where nothing, and where that is so."""
    keys, results = np.array([*sorted(table.items()), (0, NONE)], np.int64).T
    # Behind the last key, where -1 leads, is none.
    at = find_positions(keys[:-1], values)
    unknown = at == NONE
    return np.where(unknown, values, results[at]), unknown & (values != NONE)


def number_threads(process: Ints, tid: Ints) -> Ints:
    """Return the numbers of threads; -1 where the process is unknown."""
    return np.where(process == NONE, NONE, (process << _TID_BITS) + (tid & PID_MASK))


def narrow_ids(column: Ints) -> Ints:
    """Return ids (0 for none) that fit into 32 bits, with -1 for none; equal ones stay equal."""
    ids = np.where(column > 0, column, NONE)
    if ids.max(initial=0) >= _MOST_IDS:
        groups = group_rows(ids)
        # The lowest is that of none, where there is one.
        ids = groups.of_row + (0 if (ids == NONE).any() else 1)
        ids[column <= 0] = NONE
    return ids


_Rows = Sequence[tuple[Any, ...]]
#: Hosts that a message names.
_NAMED = 4
#: Rows of more processes in one table are found faster by their numbers, once these are known.
_MANY = 8
#: The loss where a query lacks a column, or cannot run.
_LOSSES = {
    "target/threads": "thread names, which separate loaders and watchdogs from backward threads",
    "target/nodes": "the hostname; the file stands for a host of its own, --same-clock joins files",
    "target/agents": "GPU models",
    "target/processes": "process ids",
    "calls/all": "kinds of calls, or what launched what",
    "ranges/texts": "names of ranges",
    "gpu_work/kernel_names": "names of kernels",
    "gpu_work/copies": "copies",
}


#: Of each kind of file its queries, and the tables of which it has one, of kernels and of calls.
_FORMATS: Mapping[str, tuple[Queries, tuple[str, str]]] = {
    "rocpd": (ROCPD, ("rocpd_kernel_dispatch", "rocpd_region")),
    "rpd": (RPD, ("rocpd_op", "rocpd_api")),
}


def read_recording(path: str, kind: str, watch: Watch) -> RocmRecording:
    """Return what a file of a kind holds.

    Raises:
        ProfileError: it is damaged, or of several hosts.
        SchemaError: it lacks a table or a column that is needed.
    """
    maker, tables = _FORMATS[kind]
    with open_database(path, maker) as database, open_pages(path) as opened:
        stored = read_stored_tables(database)
        every = group_tables_by_part(stored, maker)
        if not every or (kind == "rpd" and not any({*tables} & {*names} for names in every)):
            raise ProfileError(
                f"{path}: an SQLite database, but no {maker.noun}: it has none of the tables "
                f"{', '.join(tables)}; {maker.again}"
            )
        recording = RocmRecording(path, kind)
        # How many parts so far had a process id; names and ids of machines; versions of the schema.
        parts_of_pid: dict[int, int] = {}
        hosts: dict[tuple[str, str], None] = {}
        versions: dict[str, None] = {}
        pages = opened if isinstance(opened, Pages) else None
        for number, names in enumerate(every):
            part = Part(database, maker, names, stored, pages=pages)
            versions.update({str(v): None for (v,) in part.query_rows("target/metadata")})
            guids = _guids(part, maker.again)
            # Else each of very many would be looked for in all rows.
            extents = {
                table: database.find_extents(table, "guid")
                for base, table in names.items()
                if len(guids) > _MANY and "guid" in part.schema[base]
            }
            for place, guid in enumerate(guids, 1):
                rows = {table: of[guid] for table, of in extents.items() if guid in of}
                own = Part(database, maker, names, stored, guid, rows) if guid else part
                hosts.update(_hosts(own))
                _read_part(recording, own, parts_of_pid)
                watch((number + place / len(guids)) / len(every))
    if len(hosts) > 1:
        # Of several hosts, whose clocks differ.
        told = list_first(sorted(host or "without a name" for host, _ in hosts), _NAMED)
        raise ProfileError(
            f"{path}: merges processes of {len(hosts)} hosts ({told}), but a profile has one "
            "clock; give the files that were merged, or merge those of each host",
            hosts=[host for host, _ in hosts],
        )
    host, machine = next(iter(hosts), ("", ""))
    hostless = _LOSSES["target/nodes"]
    known = kind == "rpd" or any(note.what == hostless for note in recording.limitations)
    if not host and not known:
        recording.add_limitation(hostless, "has none in rocpd_info_node")
    recording.host, recording.machine = host or None, machine or None
    recording.schema_version = ", ".join(versions) or None
    return recording


def _guids(part: Part, again: str) -> Sequence[str]:
    """Return the GUIDs of the processes whose rows one set of tables holds; "" for all its rows."""
    guids = [str(guid) for (guid,) in part.query_rows("target/guids")]
    if len(guids) < 2:
        return ("",)
    lacking = [base for base, own in part.schema.items() if "guid" not in own]
    lacking = [base for base in lacking if base != "rocpd_metadata"]
    if lacking:
        raise ProfileError(
            f"{part.path}: holds {format_count(len(guids), 'process', 'processes')} in one table, "
            f"and {lacking[0]} lacks the column guid, so rows cannot be told apart; {again}"
        )
    return guids


def _hosts(part: Part) -> Mapping[tuple[str, str], None]:
    """Return name and machine of the nodes that the processes of a part ran on."""
    used = {node for _, _, node in part.query_rows("target/processes")} - {NONE}
    return {
        (str(hostname or ""), str(machine or "")): None
        for node, hostname, machine in part.query_rows("target/nodes")
        if (not used or node in used) and (hostname or machine)
    }


def _read_part(recording: RocmRecording, part: Part, parts_of_pid: dict[int, int]) -> None:
    """Read the tables of one part.

    Raises:
        ProfileError: A table is damaged, or contains something other than whole numbers.
        SchemaError: A required table or column is missing.
    """
    lose, (maker, tables) = recording.add_limitation, _FORMATS[recording.format]
    for name, what in _LOSSES.items():
        if maker.exists(name) and (lacks := part.find_missing(name)):
            lose(what, f"lacks {', '.join(lacks)}")
    pids = {number: pid for number, pid, _ in part.query_rows("target/processes", 2)}
    if part.has("target/processes") and not pids:
        lose("process ids", "has none in rocpd_info_process")
    agents = part.query_rows("target/agents", 2)
    threads = part.query_rows("target/threads", 3)

    processes = partial(_processes, recording, pids, parts_of_pid)
    has_events = part.has("calls/events")
    packed = part.read_events() if has_events else (np.empty((5, 0), np.int64), b"")
    events = packed[0]
    work, copies, moved, stream, copy_stream = _work(part, agents, tables[0])
    none = np.empty((6, 0), np.int64)
    calls = part.query_columns("calls/all") if part.has("calls/all") and has_events else none
    at = find_positions(
        events[0], np.concatenate([columns[-1] for columns in (work, copies, calls)])
    )
    kernels, launched = work.shape[1], work.shape[1] + copies.shape[1]
    correlation, launching = _correlations(events[2:4], at, launched)
    # Calls differ in little beside their times.
    at, own = at[launched:], correlation[launched:]
    alike = group_rows(calls[4], _of_events(events[1], at, NONE), *calls[2:4])
    process = [processes(own) for own in (work[2], copies[2], calls[2, alike.first])]
    above = [np.where(own == NONE, NONE, own << _TID_BITS) for own in process]
    # The number of each agent among the GPUs, its own where that is not known.
    numbers = {own: number for own, number, _ in agents if number != NONE}
    device, lost = translate_ids(work[3], numbers)
    if part.has("target/agents") and kernels and not agents:
        lose("GPU models", "has none in rocpd_info_agent")
    elif agents and lost.any():
        lose("GPU ids", "has none for some kernels in rocpd_info_agent", int(lost.sum()))
    block = np.stack((*work[:2], device, above[0], correlation[:kernels]))
    recording.add_kernels(block, *_kernel_names(recording, part, work[4]), stream)
    device, _ = translate_ids(copies[3], numbers)
    recording.n_copies += copies.shape[1]
    launcher = correlation[kernels:launched]
    recording.add_copies(np.stack((*copies[:2], device, above[1], launcher, copy_stream)), moved)
    tid, unknown = translate_ids(
        calls[3, alike.first], {number: tid for number, tid, *_ in threads}
    )
    if threads and unknown.any():
        lost = unknown[alike.of_row]
        lose("thread ids", "has none for some calls in rocpd_info_thread", int(lost.sum()))
    recording.check_ids(tid, maker.again)
    thread = number_threads(process[2], tid)
    _host_events(recording, part, calls, packed, at, alike, thread, own, launching)
    if rows := [row for row in threads if row[3]]:
        tid, owner = np.array([row[1:3] for row in rows], np.int64).T
        recording.check_ids(tid, maker.again)
        numbered = zip(number_threads(processes(owner), tid).tolist(), rows, strict=True)
        recording.threads.extend(Thread(number, str(row[3])) for number, row in numbered)
    users = {*pids.values(), *(find_distinct(process[0]) & PID_MASK).tolist()}
    recording.devices.extend(_devices(agents, sorted(users), set(find_distinct(work[3]).tolist())))
    for pid in set(pids.values()) or {0}:
        parts_of_pid[pid] = parts_of_pid.get(pid, 0) + 1


def _processes(
    recording: RocmRecording, pids: Mapping[int, int], parts_of_pid: Mapping[int, int], own: Ints
) -> Ints:
    """Return the process of each row by its number in the file, itself where none has that.

    Above its id stands the number of the parts before that had it, too.
    """
    pid, unknown = translate_ids(own, pids)
    if pids and unknown.any():
        recording.add_limitation("process ids", "has none for some rows in rocpd_info_process")
    recording.check_ids(pid, _FORMATS[recording.format][0].again)
    before, _ = translate_ids(pid, {p: parts_of_pid.get(p, 0) for p in find_distinct(pid).tolist()})
    return np.where(pid == NONE, NONE, (before << _PID_BITS) + pid)


def _kernel_names(recording: RocmRecording, part: Part, kernel: Ints) -> tuple[list[str], Ints]:
    """Return names of kernels, and the row of each kernel's name among them."""
    texts, used = part.query_texts("gpu_work/kernel_names"), find_distinct(kernel)
    names = [texts.get(number, f"<kernel {number}>") for number in used.tolist()]
    row = find_positions(used, kernel)
    lost = int((~np.isin(used, np.array([*texts], np.int64)))[row].sum())
    if lost and part.has("gpu_work/kernel_names"):
        recording.add_limitation("names of kernels", "has none for some", lost)
    return names, row


def _devices(agents: _Rows, pids: Sequence[int], used: set[int]) -> Iterator[Device]:
    """Yield the GPUs that processes used, as these number them."""
    for own, number, name in agents:
        if own in used and name:
            shown = own if number == NONE else number
            yield from (Device(pid, shown, str(name), None) for pid in pids)


def _of_events(column: Ints, at: Ints, missing: int) -> Ints:
    """Return a column of events by their rows, of which -1 is none."""
    # A value behind the last row stands for it.
    return np.append(column, missing)[at]


def _work(part: Part, agents: _Rows, table: str) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Read the kernels and copies of a part, sorted by start.

    A copy belongs to the GPU that it goes to, or else to the GPU that it comes from. Copies between
    hosts are left out.

    Returns:
        kernels: Start, end, process, agent, further columns and the event of each kernel.
        copies: Start, end, process, agent and event of each copy.
        moved: Number of bytes and direction of each copy.
        stream: Stream of each kernel, or -1 if unknown.
        copy_stream: Stream of each copy, or -1 if unknown.
    """
    work = part.query_columns("gpu_work/kernels", table=table)
    order = np.argsort(work[0], kind="stable")
    kernel_streams = _read_streams(part, "gpu_work/kernel_streams", work.shape[1])
    stream = _number_kernel_streams(kernel_streams)[order]
    # Unlike an index, this gives columns one behind the other.
    work = work.take(order, axis=1)
    if not part.has("gpu_work/copies"):
        no_copies, no_sizes, no_streams = (
            np.empty(shape, np.int64) for shape in ((5, 0), (2, 0), 0)
        )
        return work, no_copies, no_sizes, stream, no_streams
    copied = part.query_columns("gpu_work/copies")
    gpus = np.array([agent for agent, *_ in agents], np.int64) if agents else find_distinct(work[3])
    into, out_of = np.isin(copied[3], gpus), np.isin(copied[4], gpus)
    copies = np.stack((*copied[:3], np.where(into, copied[3], copied[4]), copied[5]))
    moved = _moved(part, copied, into, out_of).compress(into | out_of, axis=1)
    copy_streams = _read_streams(part, "gpu_work/copy_streams", copied.shape[1])
    copy_stream = _number_copy_streams(kernel_streams, copy_streams)[into | out_of]
    copies = copies.compress(into | out_of, axis=1)
    order = np.argsort(copies[0], kind="stable")
    return work, copies.take(order, axis=1), moved.take(order, axis=1), stream, copy_stream[order]


def _moved(part: Part, copied: Ints, into: Bools, out_of: Bools) -> Ints:
    """Return the number of bytes and the direction of copies, shape (2, copies).

    Args:
        part: Part of a recording.
        copied: Columns of its copies, with their target and source agents.
        into: Mask of the copies to a GPU.
        out_of: Mask of the copies from a GPU.
    """
    size = np.full(copied.shape[1], NONE, np.int64)
    direction = np.zeros(copied.shape[1], np.int64)
    if len(copied) > _SIZE_COLUMN:
        size, direction = copied[_SIZE_COLUMN:]
    elif part.has("gpu_work/copy_sizes"):
        (column,) = part.query_columns("gpu_work/copy_sizes")
        size = column if len(column) == len(size) else size
    has_source = copied[4] != NONE
    is_within_gpu = into & out_of & (copied[3] == copied[4])
    by_agents = np.select(
        [~has_source, is_within_gpu, into & out_of, into, out_of],
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
    """Read the stream and queue of kernels or copies, or -1 if unknown, shape (2, count).

    Args:
        part: Part of a recording.
        name: Name of the query that returns them.
        count: Number of kernels or copies.
    """
    if count and part.has(name):
        streams = part.query_columns(name)
        if streams.shape[1] == count:
            return streams
    return np.full((2, count), NONE, np.int64)


def _number_kernel_streams(recorded: Ints) -> Ints:
    """Number the streams of kernels, or return -1 for unknown streams.

    Kernels of one stream that went to different queues get different numbers, because some
    recordings give every kernel the same stream.

    Args:
        recorded: Stream and queue of each kernel.
    """
    if recorded.shape[1] == 0:
        return np.empty(0, np.int64)
    return np.where((recorded == NONE).all(axis=0), NONE, group_rows(*recorded).of_row)


def _number_copy_streams(kernels: Ints, copies: Ints) -> Ints:
    """Return the number of each copy's stream among the kernels' streams, or -1 if unknown.

    Profilers write 0 for a stream or queue of a copy that was not recorded. A copy without a queue
    runs on the queue of its stream's kernels if they have only one queue.

    Args:
        kernels: Stream and queue of each kernel.
        copies: Stream and queue of each copy.
    """
    if kernels.shape[1] == 0 or copies.shape[1] == 0:
        return np.full(copies.shape[1], NONE, np.int64)
    pairs = kernels[:, group_rows(*kernels).first]
    by_queue = _find_unique_keys(pairs, copies)
    by_stream = _find_unique_keys(pairs[:1], copies[:1])
    has_stream, has_queue = copies > 0
    return np.where(has_queue, by_queue, np.where(has_stream, by_stream, NONE))


def _find_unique_keys(keys: Ints, wanted: Ints) -> Ints:
    """Return the index of the key that equals each wanted key, or -1 if none or several do.

    Args:
        keys: Keys, one per column.
        wanted: Keys to look up, one per column.
    """
    n_keys = keys.shape[1]
    group = group_rows(*np.hstack((keys, wanted))).of_row
    count = np.bincount(group[:n_keys], minlength=int(group.max()) + 1)
    index = np.full(len(count), NONE, np.int64)
    index[group[:n_keys]] = np.arange(n_keys)
    index[count != 1] = NONE
    return index[group[n_keys:]]


def _correlations(events: Ints, at: Ints, launched: int) -> tuple[Ints, Bools]:
    """Return what work and calls share where one launched the other, and which calls did.

    Args:
        events: stack and correlation ids of events, shape (2, events).
        at: the event of each kernel and copy, then of each call; -1 none.
        launched: how many kernels and copies there are.

    These are stack ids; where none of these fits, correlation ids, if no two calls share one.
    """
    by_stack, launching = _launching(events[0], at, launched)
    if launching.any():
        return by_stack, launching
    by_tool, of_tool = _launching(events[1], at, launched)
    of_calls = by_tool[launched:][by_tool[launched:] != NONE]
    alone = len(find_distinct(of_calls)) == len(of_calls)
    return (by_tool, of_tool) if alone and of_tool.any() else (by_stack, launching)


def _launching(ids: Ints, at: Ints, launched: int) -> tuple[Ints, Bools]:
    """Return such ids of events for work and calls, and which calls share one with work."""
    of_rows = narrow_ids(_of_events(ids, at, 0))
    of_calls = of_rows[launched:]
    return of_rows, np.isin(of_calls, of_rows[:launched]) & (of_calls != NONE)


def _host_events(
    recording: RocmRecording,
    part: Part,
    calls: Ints,
    events: PackedRows,
    event: Ints,
    alike: Groups,
    thread: Ints,
    correlation: Ints,
    launching: Bools,
) -> None:
    """Add the calls and the ranges of a part.

    Args:
        recording: takes them.
        part: its open part.
        calls: the columns of calls/all.sql.
        events: as the part gives them.
        event: row of the event of each call.
        alike: calls of one thread, category and function.
        thread: of each group of these.
        correlation: of each call; -1 none.
        launching: whether each launched something.
    """
    category, number = _of_events(events[0][1], event[alike.first], NONE), calls[4, alike.first]
    texts = part.query_texts("calls/names", find_distinct(number))
    functions = [texts.get(name, "") for name in number.tolist()]
    texts = part.query_texts("calls/categories", find_distinct(category))
    categories = [texts.get(name, "") for name in category.tolist()]
    group = alike.of_row
    recording.n_unnamed_calls += int(mask_texts(functions, lambda text: not text)[group].sum())
    kind = np.array([*map(classify_host_event, categories, functions)], np.int64)[group]
    rows = np.flatnonzero(
        (kind == HostEventKind.CALL) | ((kind == HostEventKind.COLLECTIVE) & launching)
    )
    used = find_distinct(group[rows])
    number[used] = recording.call_names.numbers(functions[place] for place in used.tolist())
    of_row = group[rows]
    times = calls[:2].take(rows, axis=1)
    recording.calls.append((*times, thread[of_row], correlation[rows], number[of_row]))
    rows = np.flatnonzero(kind >= HostEventKind.COLLECTIVE)
    of_row, number = group[rows], _range_texts(recording.range_texts, part, events, event[rows])
    lacking = number == NONE
    # A function of ROCTx without a text is a range without a name; others name their ranges.
    nameless = lacking & mask_texts(functions, lambda name: name.startswith("roctx"))[of_row]
    recording.n_unnamed_ranges += int(nameless.sum())
    every, names = np.arange(len(functions)), [*map(replace_surrogates, functions)]
    by_function = recording.range_texts.add(np.zeros_like(every), b"", every, names, of_row)
    number = np.where(lacking, by_function, number)
    if nameless.any():
        rows, of_row, number = (column[~nameless] for column in (rows, of_row, number))
    times = calls[:2].take(rows, axis=1)
    recording.ranges.append((*times, thread[of_row], kind[rows], number))


def _range_texts(texts: PackedNames, part: Part, events: PackedRows, row: Ints) -> Ints:
    """Return the number of each range's text, -1 for none; ``row`` is that of its event."""
    (event, *_, length), packed = events
    # At the end, where -1 leads, is none.
    wanted = np.zeros(len(event) + 1, bool)
    wanted[row] = True
    odd = event[wanted[:-1] & (length == NONE)]
    ids, others = part.query_texts_of_rows("ranges/texts", odd, every=not packed)
    event_row = find_positions(event, ids)
    if (event_row == NONE).any():
        # Some texts belong to events that are missing.
        kept = np.flatnonzero(event_row != NONE)
        event_row, others = event_row[kept], [others[index] for index in kept.tolist()]
    return texts.add(length, packed, event_row, others, row)
