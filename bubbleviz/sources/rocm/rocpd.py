"""rocpd: the SQLite file of ``rocprofv3``, ROCm 7's default, of one or several processes.

What launched a kernel is told by its event's ``stack_id``, which the launching call's event shares:
``generateRocpd.cpp`` of rocprofiler-sdk (ROCm/rocm-systems) writes the internal correlation id
there, and an id that the program gives into ``correlation_id``. Times are nanoseconds of the node's
``CLOCK_BOOTTIME`` (``rocprofiler_get_timestamp``), so that all files of a node share one clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import distinct, found_in
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import PID_MASK, Device, Thread
from bubbleviz.model.texts import counted, listed
from bubbleviz.progress import Watch
from bubbleviz.sources.rocm.database_parts import Part, PartTables, opened_part, parts_in
from bubbleviz.sources.rocm.queries import ROCPD, ROCPD_QUERIES, RPD, RPD_QUERIES
from bubbleviz.sources.rocm.recording import RocmRecording
from bubbleviz.sources.rocm.tables import (
    Kind,
    RocmTables,
    fits,
    is_roctx,
    kinds_of,
    mapped,
    named,
    narrowed,
    processes_of,
    threads_of,
)
from bubbleviz.sources.sqlite.database import columns_of_tables, opened_database
from bubbleviz.sources.sqlite.queries import Schema

#: Hosts that a message names.
_NAMED = 4
#: The loss where a query lacks a column, or cannot run.
_LOSSES = {
    "target/threads": "names of threads, which tell loaders and watchdogs from backward threads",
    "target/nodes": "the hostname; the file stands for a host of its own, --same-clock joins files",
    "target/agents": "what the GPUs are",
    "target/processes": "process ids",
    "calls/all": "kinds of calls, or what launched what",
    "ranges/text_ids": "names of ranges",
    "gpu_work/kernel_names": "names of kernels",
    "gpu_work/copies": "copies",
}


@dataclass
class _Reading:
    """A file that is being read, part by part.

    Attributes:
        path: of the file.
        tables: what it holds so far.
        parts_of_pid: how many parts so far had a process id.
        hosts: names and ids of machines.
        versions: of the schema.
    """

    path: str
    tables: RocmTables = field(default_factory=RocmTables)
    parts_of_pid: dict[int, int] = field(default_factory=dict)
    hosts: dict[tuple[str, str], None] = field(default_factory=dict)
    versions: dict[str, None] = field(default_factory=dict)

    @property
    def losses(self) -> list[Limitation]:
        """What the file lacks."""
        return self.tables.limitations

    def lose(self, what: str, reason: str, count: int = 1) -> None:
        """Note what the file lacks, once."""
        note = Limitation(what, f"{self.path} {reason}", count, LimitationKind.OTHER)
        if note not in self.tables.limitations:
            self.tables.limitations.append(note)


def read_rocpd(path: str, watch: Watch) -> RocmRecording:
    """Return what a file holds.

    Raises:
        ProfileError: it is damaged, or of several hosts.
        SchemaError: it lacks a table or a column that is needed.
    """
    reading = _Reading(path)
    with opened_database(path, ROCPD) as catalogue:
        columns = columns_of_tables(catalogue)
    if not parts_in(columns, ROCPD_QUERIES):
        raise ProfileError(
            f"{path}: an SQLite database, but no profile of rocprofv3: it has none of the tables "
            f"rocpd_region, rocpd_kernel_dispatch; {ROCPD.again}"
        )
    parts = _parts(path, columns)
    for number, tables in enumerate(parts):
        with opened_part(path, tables, ROCPD_QUERIES) as part:
            _read_part(reading, part)
        watch((number + 1) / len(parts))
    host, machine = _host(reading)
    if host is None and not any(note.what == _LOSSES["target/nodes"] for note in reading.losses):
        reading.lose(_LOSSES["target/nodes"], "has none in rocpd_info_node")
    return RocmRecording(
        path=path,
        format="rocpd",
        tables=reading.tables,
        host=host,
        machine=machine,
        schema_version=", ".join(reading.versions) or None,
    )


def _parts(path: str, columns: Schema) -> tuple[PartTables, ...]:
    """Return the parts of a file; tables without a GUID behind their names may hold several."""
    parts = []
    for tables in parts_in(columns, ROCPD_QUERIES):
        with opened_part(path, tables, ROCPD_QUERIES) as part:
            guids = [str(guid) for (guid,) in part.rows("target/guids")]
        if len(guids) < 2:
            parts.append(tables)
            continue
        lacking = [base for base, own in tables.schema.items() if "guid" not in own]
        lacking = [base for base in lacking if base != "rocpd_metadata"]
        if lacking:
            raise ProfileError(
                f"{path}: holds {counted(len(guids), 'process', 'processes')} in one table, and "
                f"{lacking[0]} lacks the column guid, so rows cannot be told apart; {ROCPD.again}"
            )
        parts.extend(replace(tables, guid=guid) for guid in guids)
    return tuple(parts)


def _host(reading: _Reading) -> tuple[str | None, str | None]:
    """Return the hostname and the machine of a file, where these are recorded.

    Raises:
        ProfileError: it is a merge of files of several hosts, whose clocks differ.
    """
    if len(reading.hosts) > 1:
        names = listed(sorted(host or "without a name" for host, _ in reading.hosts), _NAMED)
        raise ProfileError(
            f"{reading.path}: merges processes of {len(reading.hosts)} hosts ({names}), and one "
            "profile has one clock; give the files that were merged, or merge those of each host"
        )
    for host, machine in reading.hosts:
        return host or None, machine or None
    return None, None


def _read_part(reading: _Reading, part: Part) -> None:
    """Read the tables of one part."""
    for name, what in _LOSSES.items():
        if lacks := part.lacks(name):
            reading.lose(what, f"lacks {', '.join(lacks)}")
    reading.versions.update({str(v): None for (v,) in part.rows("target/metadata")})
    pids = {int(str(i)): int(str(pid)) for i, pid, _ in _whole(reading, part, "target/processes")}
    if part.has("target/processes") and not pids:
        reading.lose("process ids", "has none in rocpd_info_process")
    _note_hosts(reading, part)
    agents = _whole(reading, part, "target/agents")
    threads = _whole(reading, part, "target/threads", 3)
    tids = {int(str(i)): int(str(tid)) for i, tid, *_ in threads}
    work, copies = _work(part, agents)
    events = part.columns("calls/all") if part.has("calls/all") else np.empty((9, 0), np.int64)
    of_work = _Process(reading, pids)
    processes = of_work.of(work[2]), of_work.of(copies[2]), of_work.of(events[2])
    correlations = _correlations(work[5:7], copies[4:6], events[7:9])
    device, lost = _devices(agents, work[3])
    if part.has("target/agents") and work.shape[1] and not agents:
        reading.lose("what the GPUs are", "has none in rocpd_info_agent")
    elif lost and agents:
        reading.lose("which GPU is which", "has none for some kernels in rocpd_info_agent", lost)
    block = np.stack((work[0], work[1], device, _above(processes[0]), correlations[0]))
    kernel_names, kernel_name = _kernel_names(reading, part, work[4])
    reading.tables.add_work(block, kernel_names, kernel_name)
    device, _ = _devices(agents, copies[3])
    reading.tables.copied += copies.shape[1]
    reading.tables.copies.append(
        np.stack((copies[0], copies[1], device, _above(processes[1]), correlations[1]))
    )
    tid, unknown = mapped(events[3], tids)
    if unknown and tids:
        reading.lose("thread ids", "has none for some calls in rocpd_info_thread", unknown)
    _check(reading, tid)
    thread = threads_of(processes[2], tid)
    launching = np.isin(correlations[2], np.concatenate(correlations[:2])) & (
        correlations[2] != NONE
    )
    _host_events(reading, part, events, thread, correlations[2], launching)
    _threads(reading, threads, of_work)
    own_pids = {*pids.values(), *(distinct(processes[0]) & PID_MASK).tolist()}
    _note_devices(reading, agents, sorted(own_pids), work[3])
    for pid in distinct(np.array(list(pids.values()) or [0], np.int64)).tolist():
        reading.parts_of_pid[pid] = reading.parts_of_pid.get(pid, 0) + 1


def _whole(reading: _Reading, part: Part, name: str, columns: int = 2) -> list[tuple[object, ...]]:
    """Return the rows of a query, of which so many first columns are whole numbers.

    Raises:
        ProfileError: there is something else.
    """
    rows = part.rows(name)
    if any(not isinstance(value, int) for row in rows for value in row[:columns]):
        raise ProfileError(
            f"{reading.path}: sql/rocpd/{name}.sql gives something else than a whole number where "
            f"one belongs, so the file is damaged or was edited; {ROCPD.again}"
        )
    return rows


def _check(reading: _Reading, numbers: Ints) -> None:
    """Raise ProfileError where processes or threads have numbers that none can have."""
    if not fits(numbers):
        raise ProfileError(
            f"{reading.path}: a process or thread has a number below 0 or above 16,777,215, so "
            f"the file is damaged or was edited; {ROCPD.again}"
        )


def _note_hosts(reading: _Reading, part: Part) -> None:
    """Note the nodes that the processes of a part ran on."""
    used = {node for _, _, node in part.rows("target/processes")} - {NONE}
    for node, hostname, machine in part.rows("target/nodes"):
        if (not used or node in used) and (hostname or machine):
            reading.hosts[str(hostname or ""), str(machine or "")] = None


@dataclass(frozen=True)
class _Process:
    """The processes of a part, by their numbers in the file."""

    reading: _Reading
    pids: Mapping[int, int]

    def of(self, numbers: Ints) -> Ints:
        """Return the process of each row; the number itself where no process has it."""
        pid, unknown = mapped(numbers, self.pids)
        if unknown and self.pids:
            self.reading.lose("process ids", "has none for some rows in rocpd_info_process")
        _check(self.reading, pid)
        return processes_of(pid, self.reading.parts_of_pid)


def _above(process: Ints) -> Ints:
    """Return processes as nsys numbers them: above the bits of threads."""
    return np.where(process == NONE, NONE, process << 24)


def _work(part: Part, agents: list[tuple[object, ...]]) -> tuple[Ints, Ints]:
    """Return the kernels, and the copies: start, end, process, agent, stack and correlation ids.

    A copy is one of the GPU that it goes to, else of that it comes from; those between hosts are
    none of any.
    """
    work = np.empty((7, 0), np.int64)
    if "rocpd_kernel_dispatch" in part.tables.schema:
        work = part.columns("gpu_work/kernels")
    if not part.has("gpu_work/copies"):
        return work, np.empty((6, 0), np.int64)
    copied = part.columns("gpu_work/copies")
    gpus = np.array([agent for agent, *_ in agents], np.int64) if agents else distinct(work[3])
    into, out_of = np.isin(copied[3], gpus), np.isin(copied[4], gpus)
    copies = np.stack((*copied[:3], np.where(into, copied[3], copied[4]), copied[5], copied[6]))
    return work, copies[:, into | out_of]


def _devices(agents: list[tuple[object, ...]], agent: Ints) -> tuple[Ints, int]:
    """Return the number of each agent among the GPUs, its own where that is not known."""
    numbers = {int(str(own)): int(str(number)) for own, number, _ in agents if number != NONE}
    return mapped(agent, numbers)


def _correlations(work: Ints, copies: Ints, events: Ints) -> tuple[Ints, ...]:
    """Return what kernels, copies and events of the host share where one launched the other.

    Args:
        work: stack and correlation ids of kernels, shape (2, kernels).
        copies: the same of copies.
        events: the same of events.

    These are stack ids; where none of these fits, correlation ids, if no two calls share one.
    """
    launched = np.concatenate((work, copies), axis=1)
    of_calls = events[1][events[1] > 0]
    stacked = np.isin(launched[0], events[0][events[0] > 0]).any()
    alone = len(distinct(of_calls)) == len(of_calls)
    by = 1 if not stacked and alone and np.isin(launched[1], of_calls).any() else 0
    return narrowed(work[by], copies[by], events[by])


def _kernel_names(reading: _Reading, part: Part, kernel: Ints) -> tuple[tuple[str, ...], Ints]:
    """Return distinct names of kernels, and the row of each kernel's name among them."""
    texts = part.texts("gpu_work/kernel_names")
    lost = int((~np.isin(kernel, np.array(list(texts), np.int64))).sum())
    if lost and part.has("gpu_work/kernel_names"):
        reading.lose("names of kernels", "has none for some in rocpd_info_kernel_symbol", lost)
    return named(kernel, texts, lambda number: f"<kernel {number}>")


def _host_events(
    reading: _Reading, part: Part, events: Ints, thread: Ints, correlation: Ints, launching: Ints
) -> None:
    """Add the calls and the ranges of a part.

    Args:
        reading: the file.
        part: its open part.
        events: the columns of calls/all.sql.
        thread: of each event.
        correlation: of each event; -1 none.
        launching: whether each launched something.
    """
    tables = reading.tables
    functions, name = named(events[4], part.texts("calls/names"), lambda _: "")
    categories, category = named(events[5], part.texts("calls/categories"), lambda _: "")
    names = list(functions)
    kind = kinds_of(category, name, list(categories), names)
    tables.unnamed_calls += int((np.array([not n for n in names], bool)[name]).sum())
    is_call = (kind == Kind.CALL) | ((kind == Kind.COLLECTIVE) & (launching != 0))
    _, own = _renumbered(name[is_call])
    used = distinct(name[is_call])
    number = tables.call_names.numbers(names[place] for place in used.tolist())
    tables.calls.append(
        np.stack((*events[:2, is_call], thread[is_call], correlation[is_call], number[own]))
    )
    ranged = np.isin(kind, (Kind.COLLECTIVE, Kind.PUSHED, Kind.STARTED, Kind.FUNCTION))
    texts, text = _range_texts(part, events[6, ranged])
    lacking = text == NONE
    # A function of ROCTx without a text is a range without a name; others name their ranges.
    nameless = np.zeros(len(text), bool)
    nameless[is_roctx(names, name[ranged])] = True
    nameless &= lacking
    tables.nameless += int(nameless.sum())
    rows = np.flatnonzero(ranged)
    all_texts = (*texts, *names)
    own_text = np.where(lacking, len(texts) + name[ranged], text)[~nameless]
    used = distinct(own_text)
    number = tables.range_names.numbers(all_texts[place] for place in used.tolist())
    rows = rows[~nameless]
    tables.ranges.append(
        np.stack(
            (
                *events[:2, rows],
                thread[rows],
                (kind[rows] == Kind.STARTED).astype(np.int64),
                number[found_in(used, own_text)] if len(used) else own_text,
            )
        )
    )


def _renumbered(numbers: Ints) -> tuple[Ints, Ints]:
    """Return the distinct numbers, and the place of each among them."""
    values = distinct(numbers)
    return values, found_in(values, numbers)


def _range_texts(part: Part, event: Ints) -> tuple[tuple[str, ...], Ints]:
    """Return distinct texts of ranges, and the row of each event's text; -1 none."""
    if not part.has("ranges/text_ids") or not part.has("ranges/texts"):
        return (), np.full(len(event), NONE, np.int64)
    events, text_ids = part.columns("ranges/text_ids")
    at = found_in(events, event)
    text_id = np.where(at == NONE, NONE, text_ids[at] if len(text_ids) else NONE)
    texts = part.texts("ranges/texts", distinct(text_id[text_id != NONE]))
    known, number = named(text_id, texts, lambda _: "")
    nothing = np.array([not text for text in known], bool)
    return known, np.where(nothing[number], NONE, number) if len(known) else number


def _threads(reading: _Reading, recorded: list[tuple[object, ...]], processes: _Process) -> None:
    """Add the threads that have names."""
    rows = [row for row in recorded if row[3]]
    if not rows:
        return
    numbers = np.array([[int(str(v)) for v in row[1:3]] for row in rows], np.int64).T
    _check(reading, numbers[0])
    threads = threads_of(processes.of(numbers[1]), numbers[0]).tolist()
    reading.tables.threads.extend(
        Thread(thread, str(row[3])) for thread, row in zip(threads, rows, strict=True)
    )


def _note_devices(
    reading: _Reading, agents: list[tuple[object, ...]], pids: Iterable[int], agent: Ints
) -> None:
    """Add the GPUs that the processes of a part used, as these number them."""
    used = set(distinct(agent).tolist())
    for own, number, name in agents:
        if own in used and isinstance(number, int):
            shown = int(str(own)) if number == NONE else number
            reading.tables.devices.extend(Device(pid, shown, str(name), None) for pid in pids)


# rpd: the SQLite file of rocmProfileData's tracer, ROCm's older one, of one or several processes.
#
# ``rocpd_api`` holds calls and ranges of hosts, ``rocpd_op`` work of devices, ``rocpd_api_ops``
# which
# call launched which work: ``rocpd_python/rocpd/schema_data/tableSchema.cmd`` of
# ROCm/rocmProfileData. A range of ROCTx is a row named ``UserMarker``, of which the arguments are
# its
# text (``rpd_tracer/RoctxDataSource.cpp``), in ``rocpd_ustring`` since its third schema. Times are
# nanoseconds of the node's ``CLOCK_MONOTONIC`` (``clocktime_ns`` in ``rpd_tracer/Utility.h``); no
# host is recorded.


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
    with opened_database(path, RPD) as catalogue:
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
            _rpd_check(path, numbers)
        of_work, of_calls = narrowed(work[4] + 1, calls[0] + 1)
        _add_work(path, part, tables, work, of_work)
        _add_calls(part, tables, calls, of_calls)
    watch(1.0)
    return RocmRecording(
        path=path, format="rpd", tables=tables, schema_version=", ".join(versions) or None
    )


def _rpd_check(path: str, numbers: Ints) -> None:
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
