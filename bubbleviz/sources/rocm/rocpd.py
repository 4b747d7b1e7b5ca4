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

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np

from bubbleviz.conventions.globs import PackedNames
from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import Numbering, distinct, found_in, groups_of
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import PID_MASK, Device, Thread
from bubbleviz.model.texts import counted, encodable, listed
from bubbleviz.model.values import dataclass, field
from bubbleviz.progress import Watch
from bubbleviz.sources.rocm.database_parts import ROCPD, RPD, Part, parts_in, tables_in
from bubbleviz.sources.sqlite.database import StoredColumns
from bubbleviz.sources.sqlite.pages import PackedRows, Pages, opened_pages
from bubbleviz.sources.sqlite.queries import Queries

#: Bits of a thread's number below that of its process, and of a process's below that of its part.
_TID_BITS, _PID_BITS = 24, 24
#: Correlation ids take 32 bits, of which the largest stands for none.
_MOST_IDS = (1 << 32) - 1
#: How the runtime (ROCm/clr) names the kernels by which it copies and fills.
BLIT_KERNELS = "__amd_rocclr_"


@dataclass
class RocmRecording:
    """What a file of ROCm's profilers holds; blocks of columns, one for each of its parts.

    Attributes:
        path: as given.
        format: name of the input format.
        kernels: start_ns, end_ns, device, process, correlation id, row of ``kernel_names``.
        copies: the same without a name, of copies and fills.
        calls: start_ns, end_ns, thread, correlation id, row of ``call_names``.
        ranges: start_ns, end_ns, thread, :class:`Kind`, row of ``range_texts``.
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
    calls: list[Ints] = field(default_factory=list)
    ranges: list[Ints] = field(default_factory=list)
    kernel_names: Numbering[str] = field(default_factory=Numbering)
    call_names: Numbering[str] = field(default_factory=Numbering)
    range_texts: PackedNames = field(default_factory=PackedNames)
    copied: int = 0
    nameless: int = 0
    unnamed_calls: int = 0
    threads: list[Thread] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    limitations: list[Limitation] = field(default_factory=list)
    host: str | None = None
    machine: str | None = None
    schema_version: str | None = None

    def lose(self, what: str, reason: str, count: int = 1) -> None:
        """Note what the file lacks, once."""
        note = Limitation(what, f"{self.path} {reason}", count, LimitationKind.OTHER)
        if note not in self.limitations:
            self.limitations.append(note)

    def add_work(self, work: Ints, names: Sequence[str], name: Ints) -> None:
        """Add kernels; those by which the runtime copies and fills are copies.

        Args:
            work: start_ns, end_ns, device, process, correlation id.
            names: distinct names.
            name: row of them of each kernel.
        """
        blit = flags(names, lambda text: text.startswith(BLIT_KERNELS))
        number = np.full(len(names), NONE, np.int64)
        number[~blit] = self.kernel_names.numbers(np.array(names, object)[~blit].tolist())
        self.kernels.append(np.vstack((work, number[name]))[:, ~blit[name]])
        self.copies.append(work[:, blit[name]])

    def check(self, numbers: Ints, again: str) -> None:
        """Raise ProfileError where processes or threads have numbers that none can have."""
        if len(numbers) and not NONE <= numbers.min() <= numbers.max() <= PID_MASK:
            raise ProfileError(
                f"{self.path}: a process or thread has a number below 0 or above 16,777,215, so "
                f"the file is damaged or was edited; {again}"
            )


def flags(texts: Sequence[str], test: Callable[[str], object]) -> Bools:
    """Tell of which texts a test holds."""
    return np.array([bool(test(text)) for text in texts], bool)


def renumbered(numbering: Numbering[str], texts: Sequence[str], text: Ints) -> Ints:
    """Return the number of each row's text in a numbering, to which those are added.

    Args:
        numbering: of texts.
        texts: distinct ones.
        text: row of them of each row.
    """
    used = distinct(text)
    numbers = numbering.numbers(texts[place] for place in used.tolist())
    return numbers[found_in(used, text)] if len(used) else text


def mapped(values: Ints, table: Mapping[int, int]) -> tuple[Ints, int]:
    """Return what a table gives for each value, itself where it gives nothing, and how often."""
    keys, results = np.array([*sorted(table.items()), (0, NONE)], np.int64).T
    # Behind the last key, where -1 leads, is none.
    at = found_in(keys[:-1], values)
    found = np.where(at == NONE, values, results[at])
    return found, int(((at == NONE) & (values != NONE)).sum())


def named(
    ids: Ints, texts: Mapping[int, str], unknown: Callable[[int], str]
) -> tuple[tuple[str, ...], Ints]:
    """Return distinct names, and the row of each id's name among them."""
    values = distinct(ids)
    numbering = Numbering[str]()
    number = numbering.numbers(
        texts[value] if value in texts else unknown(value) for value in values.tolist()
    )
    return numbering.values, number[found_in(values, ids)] if len(values) else ids


def threads_of(process: Ints, tid: Ints) -> Ints:
    """Return the numbers of threads; -1 where the process is unknown."""
    return np.where(process == NONE, NONE, (process << _TID_BITS) + (tid & PID_MASK))


def narrowed(*columns: Ints) -> tuple[Ints, ...]:
    """Return ids (0 for none) that fit into 32 bits, with -1 for none; equal ones stay equal."""
    together = np.concatenate(columns)
    ids = np.where(together > 0, together, NONE)
    if ids.max(initial=0) >= _MOST_IDS:
        groups = groups_of(ids)
        # The lowest is that of none, where there is one.
        ids = groups.of_row + (0 if (ids == NONE).any() else 1)
        ids[together <= 0] = NONE
    ends = np.cumsum([len(column) for column in columns])[:-1]
    return tuple(np.split(ids, ends))


# Host events of rocpd: which are calls, which are ranges, and what these are named.
#
# A range of ROCTx is recorded under the name of a function (``roctxThreadRangeA``, or
# ``roctxRangePushA`` before ROCm 7), and its text stands in its event's ``extdata``, which is JSON
# with the key ``message``: ``insert_api_data`` in ``generateRocpd.cpp``, and ``marker_views.sql``,
# both of rocprofiler-sdk in ROCm/rocm-systems. Its category is ``MARKER_CORE_API`` in ROCm 6.4 and
# ``MARKER_CORE_RANGE_API`` from 7 on; ``rocprof-sys`` writes functions of the program, too, under
# categories of its own, and their names are those of ranges.


#: Functions of libraries below the program: HIP, HSA, RCCL, and what else calls itself an API.
_CALL_OF_LIBRARY = re.compile(r"(?:__)?(?:hip|hsa|cuda|cu|amd_|nccl|mscclpp|roc)[A-Z_]")
#: Functions of RCCL, which other calls are nested in.
_COLLECTIVE = re.compile(r"nccl[A-Z]|mscclpp")
#: Functions of ROCTx that open ranges which need not nest (roctxRangeStartA).
_START_STOP = re.compile(r"roctx(?:ProcessRange|RangeStart)")
_ROCTX_RANGE = re.compile(r"roctx\w*Range")


class Kind(IntEnum):
    """What a host event is."""

    LEFT_OUT = 0  # marks, controls of the profiler, events of the driver
    CALL = 1
    COLLECTIVE = 2  # a call of RCCL, that names what its kernels do
    PUSHED = 3  # a range of ROCTx
    STARTED = 4  # one that need not nest
    FUNCTION = 5  # a range that is named as the function


def kinds_of(category: Ints, name: Ints, categories: Sequence[str], names: Sequence[str]) -> Ints:
    """Return what each event is, shape (events,).

    Args:
        category: row of ``categories`` of each event.
        name: row of ``names`` of each event.
        categories: names of kinds of events.
        names: of functions.
    """
    groups = groups_of(category, name)
    pairs = zip(category[groups.first].tolist(), name[groups.first].tolist(), strict=True)
    kinds = [_kind(categories[of], names[number]) for of, number in pairs]
    return np.array(kinds, np.int64)[groups.of_row]


def _kind(category: str, name: str) -> Kind:
    category = category.lower()
    if "marker" in category or name.startswith("roctx"):
        if name.startswith("roctx") and not _ROCTX_RANGE.match(name):
            return Kind.LEFT_OUT
        return Kind.STARTED if _START_STOP.match(name) else Kind.PUSHED
    if category.startswith("kfd"):
        return Kind.LEFT_OUT
    if _COLLECTIVE.match(name):
        return Kind.COLLECTIVE
    if not name or _CALL_OF_LIBRARY.match(name) or "api" in category.split("_"):
        return Kind.CALL
    return Kind.FUNCTION


# rocpd: parts of a file, read one after the other.


_Rows = Sequence[tuple[Any, ...]]
#: Hosts that a message names.
_NAMED = 4
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
    stored = tables_in(path, maker)
    every = parts_in(stored, maker)
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
    parts = _parts(path, stored, maker, every)
    with opened_pages(path) as opened:
        pages = opened if isinstance(opened, Pages) else None
        for number, (names, guid) in enumerate(parts):
            with closing(Part(path, maker, names, stored, guid, pages)) as part:
                versions.update({str(v): None for (v,) in part.rows("target/metadata")})
                hosts.update(_hosts(part))
                _read_part(recording, part, parts_of_pid)
            watch((number + 1) / len(parts))
    if len(hosts) > 1:
        # Of several hosts, whose clocks differ.
        told = listed(sorted(host or "without a name" for host, _ in hosts), _NAMED)
        raise ProfileError(
            f"{path}: merges processes of {len(hosts)} hosts ({told}), but a profile has one "
            "clock; give the files that were merged, or merge those of each host"
        )
    host, machine = next(iter(hosts), ("", ""))
    hostless = _LOSSES["target/nodes"]
    known = kind == "rpd" or any(note.what == hostless for note in recording.limitations)
    if not host and not known:
        recording.lose(hostless, "has none in rocpd_info_node")
    recording.host, recording.machine = host or None, machine or None
    recording.schema_version = ", ".join(versions) or None
    return recording


def _parts(
    path: str, stored: Mapping[str, StoredColumns], maker: Queries, every: Sequence[dict[str, str]]
) -> list[tuple[dict[str, str], str]]:
    """Return the tables and the GUID of each part, of which tables without one may hold several."""
    parts = []
    for names in every:
        with closing(Part(path, maker, names, stored)) as part:
            guids = [str(guid) for (guid,) in part.rows("target/guids")]
        if len(guids) < 2:
            parts.append((names, ""))
            continue
        lacking = [base for base, own in part.schema.items() if "guid" not in own]
        lacking = [base for base in lacking if base != "rocpd_metadata"]
        if lacking:
            raise ProfileError(
                f"{path}: holds {counted(len(guids), 'process', 'processes')} in one table, and "
                f"{lacking[0]} lacks the column guid, so rows cannot be told apart; {maker.again}"
            )
        parts.extend((names, guid) for guid in guids)
    return parts


def _hosts(part: Part) -> Mapping[tuple[str, str], None]:
    """Return name and machine of the nodes that the processes of a part ran on."""
    used = {node for _, _, node in part.rows("target/processes")} - {NONE}
    return {
        (str(hostname or ""), str(machine or "")): None
        for node, hostname, machine in part.rows("target/nodes")
        if (not used or node in used) and (hostname or machine)
    }


def _read_part(recording: RocmRecording, part: Part, parts_of_pid: dict[int, int]) -> None:
    """Read the tables of one part."""
    lose, (maker, tables) = recording.lose, _FORMATS[recording.format]
    for name, what in _LOSSES.items():
        if maker.exists(name) and (lacks := part.lacks(name)):
            lose(what, f"lacks {', '.join(lacks)}")
    pids = {number: pid for number, pid, _ in part.rows("target/processes", 2)}
    if part.has("target/processes") and not pids:
        lose("process ids", "has none in rocpd_info_process")
    agents = part.rows("target/agents", 2)
    threads = part.rows("target/threads", 3)

    processes = partial(_processes, recording, pids, parts_of_pid)
    has_events = part.has("calls/events")
    packed = part.events() if has_events else (np.empty((5, 0), np.int64), b"")
    events = packed[0]
    work, copies = _work(part, agents, tables[0])
    none = np.empty((6, 0), np.int64)
    calls = part.columns("calls/all") if part.has("calls/all") and has_events else none
    process = [processes(columns[2]) for columns in (work, copies, calls)]
    above = [np.where(own == NONE, NONE, own << _TID_BITS) for own in process]
    at = [found_in(events[0], columns[-1]) for columns in (work, copies, calls)]
    correlations = _correlations(*(_of_events(events[2:4], rows, 0) for rows in at))
    # The number of each agent among the GPUs, its own where that is not known.
    numbers = {own: number for own, number, _ in agents if number != NONE}
    device, lost = mapped(work[3], numbers)
    if part.has("target/agents") and work.shape[1] and not agents:
        lose("GPU models", "has none in rocpd_info_agent")
    elif lost and agents:
        lose("GPU ids", "has none for some kernels in rocpd_info_agent", lost)
    block = np.stack((work[0], work[1], device, above[0], correlations[0]))
    recording.add_work(block, *_kernel_names(recording, part, work[4]))
    device, _ = mapped(copies[3], numbers)
    recording.copied += copies.shape[1]
    recording.copies.append(np.stack((copies[0], copies[1], device, above[1], correlations[1])))
    tid, unknown = mapped(calls[3], {number: tid for number, tid, *_ in threads})
    if unknown and threads:
        lose("thread ids", "has none for some calls in rocpd_info_thread", unknown)
    recording.check(tid, maker.again)
    launching = np.isin(correlations[2], np.concatenate(correlations[:2]))
    launching &= correlations[2] != NONE
    thread = threads_of(process[2], tid)
    _host_events(recording, part, calls, packed, at[2], thread, correlations[2], launching)
    if rows := [row for row in threads if row[3]]:
        tid, owner = np.array([row[1:3] for row in rows], np.int64).T
        recording.check(tid, maker.again)
        numbered = zip(threads_of(processes(owner), tid).tolist(), rows, strict=True)
        recording.threads.extend(Thread(number, str(row[3])) for number, row in numbered)
    users = {*pids.values(), *(distinct(process[0]) & PID_MASK).tolist()}
    recording.devices.extend(_devices(agents, sorted(users), set(distinct(work[3]).tolist())))
    for pid in set(pids.values()) or {0}:
        parts_of_pid[pid] = parts_of_pid.get(pid, 0) + 1


def _processes(
    recording: RocmRecording, pids: Mapping[int, int], parts_of_pid: Mapping[int, int], own: Ints
) -> Ints:
    """Return the process of each row by its number in the file, itself where none has that.

    Above its id stands the number of the parts before that had it, too.
    """
    pid, unknown = mapped(own, pids)
    if unknown and pids:
        recording.lose("process ids", "has none for some rows in rocpd_info_process")
    recording.check(pid, _FORMATS[recording.format][0].again)
    before, _ = mapped(pid, {p: parts_of_pid.get(p, 0) for p in distinct(pid).tolist()})
    return np.where(pid == NONE, NONE, (before << _PID_BITS) + pid)


def _kernel_names(
    recording: RocmRecording, part: Part, kernel: Ints
) -> tuple[tuple[str, ...], Ints]:
    """Return distinct names of kernels, and the row of each kernel's name among them."""
    texts = part.texts("gpu_work/kernel_names")
    lost = int((~np.isin(kernel, np.array(list(texts), np.int64))).sum())
    if lost and part.has("gpu_work/kernel_names"):
        recording.lose("names of kernels", "has none for some", lost)
    return named(kernel, texts, lambda number: f"<kernel {number}>")


def _devices(agents: _Rows, pids: Sequence[int], used: set[int]) -> Iterator[Device]:
    """Yield the GPUs that processes used, as these number them."""
    for own, number, name in agents:
        if own in used and name:
            shown = own if number == NONE else number
            yield from (Device(pid, shown, str(name), None) for pid in pids)


def _of_events(columns: Ints, at: Ints, missing: int) -> Ints:
    """Return columns of events by their rows, of which -1 is none."""
    # A value behind the last row stands for it.
    return np.pad(columns, ((0, 0), (0, 1)), constant_values=missing)[:, at]


def _work(part: Part, agents: _Rows, table: str) -> tuple[Ints, Ints]:
    """Return the kernels, and the copies, by start: start, end, process, agent, ... and event.

    A copy is one of the GPU that it goes to, else of that it comes from; those between hosts are
    none of any.
    """
    work = part.columns("gpu_work/kernels", table=table)
    work = work[:, np.argsort(work[0], kind="stable")]
    if not part.has("gpu_work/copies"):
        return work, np.empty((5, 0), np.int64)
    copied = part.columns("gpu_work/copies")
    gpus = np.array([agent for agent, *_ in agents], np.int64) if agents else distinct(work[3])
    into, out_of = np.isin(copied[3], gpus), np.isin(copied[4], gpus)
    copies = np.stack((*copied[:3], np.where(into, copied[3], copied[4]), copied[5]))
    copies = copies[:, into | out_of]
    return work, copies[:, np.argsort(copies[0], kind="stable")]


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


def _host_events(
    recording: RocmRecording,
    part: Part,
    calls: Ints,
    events: PackedRows,
    event: Ints,
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
        thread: of each call.
        correlation: of each call; -1 none.
        launching: whether each launched something.
    """
    functions, name = named(calls[4], part.texts("calls/names", distinct(calls[4])), lambda _: "")
    category = _of_events(events[0][1:2], event, NONE)[0]
    texts = part.texts("calls/categories", distinct(category))
    categories, category = named(category, texts, lambda _: "")
    kind = kinds_of(category, name, categories, functions)
    recording.unnamed_calls += int(flags(functions, lambda text: not text)[name].sum())
    is_call = (kind == Kind.CALL) | ((kind == Kind.COLLECTIVE) & launching)
    number = renumbered(recording.call_names, functions, name[is_call])
    launched = correlation[is_call]
    recording.calls.append(np.stack((*calls[:2, is_call], thread[is_call], launched, number)))
    rows = np.flatnonzero(kind >= Kind.COLLECTIVE)
    number = _range_texts(recording.range_texts, part, events, event[rows])
    lacking = number == NONE
    # A function of ROCTx without a text is a range without a name; others name their ranges.
    of_roctx = flags(functions, lambda function: function.startswith("roctx"))[name[rows]]
    nameless = lacking & of_roctx
    recording.nameless += int(nameless.sum())
    by_function = lacking & ~nameless
    every, names = np.arange(len(functions)), [*map(encodable, functions)]
    of_name = recording.range_texts.add(np.zeros_like(every), b"", every, names)
    number[by_function] = of_name[name[rows[by_function]]]
    rows, number = rows[~nameless], number[~nameless]
    recording.ranges.append(np.stack((*calls[:2, rows], thread[rows], kind[rows], number)))


def _range_texts(texts: PackedNames, part: Part, events: PackedRows, row: Ints) -> Ints:
    """Return the number of each range's text, -1 for none; ``row`` is that of its event."""
    (event, *_, length), packed = events
    own = distinct(row[row != NONE])
    odd = event[own[length[own] == NONE]]
    ids, others = part.texts_of_rows("ranges/texts", odd, every=not packed)
    return texts.add(length, packed, found_in(event, ids), others)[row]
