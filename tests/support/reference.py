"""A second implementation of the analysis: slow, plain, and independent of the package.

Every rule is one function whose docstring states it; ``bubbleviz guide ratios``, ``attribution``
and ``limits`` state the same rules for users. Nothing here is clever:
rows are Python objects, time is cut at every boundary that occurs and each piece is looked at on
its own. The package's results are compared with these.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from math import atan as arc_tangent
from math import exp, lgamma, log, pi, sqrt
from math import tan as tangent
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intervaltree import Interval, IntervalTree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

#: A piece of time, end exclusive.
Span = tuple[int, int]
#: (process, device): a profile holds one host, so this is a rank.
Rank = tuple[int, int]

WORK = ("F", "B", "W", "BW", "R", "FB")
COMPUTE = (*WORK, "Optimizer")
COUNTED = ("F", "B", "W", "BW", "FB")
BACKWARD = ("B", "BW", "W", "R")
WINDOWS = ("schedule", "stage", "step", "period")


# --- What a profile holds -----------------------------------------------------------------------


#: Start and end of work for which CUPTI could collect no timestamps.
NO_TIMESTAMP = (0, 0)
#: A call from 0 on that ends later than this lacks its start.
LATE_END_NS = 1_000_000_000


@dataclass(frozen=True)
class Work:
    """GPU work: a kernel, a copy or a fill. ``row`` is its rowid in its table."""

    kind: str
    row: int
    start: int
    end: int
    device: int
    process: int | None
    correlation: int | None
    name: str = ""


@dataclass(frozen=True)
class Call:
    """A row of the runtime table."""

    row: int
    start: int
    end: int
    thread: int
    correlation: int | None

    @property
    def process(self) -> int:
        """The global id of its process."""
        return process_of(self.thread)


@dataclass(frozen=True)
class Range:
    """An NVTX range. ``wide``: a start/end range that ends on another thread than it starts."""

    row: int
    start: int
    end: int
    name: str
    thread: int
    push_pop: bool
    wide: bool
    cut: bool


@dataclass(frozen=True)
class Capture:
    """Everything the rules need of one file."""

    kernels: tuple[Work, ...]
    copies: tuple[Work, ...]
    calls: tuple[Call, ...]
    ranges: tuple[Range, ...]
    thread_names: dict[int, tuple[str, ...]]
    host: str | None
    end: int

    @property
    def work(self) -> tuple[Work, ...]:
        """Kernels, then copies and fills."""
        return self.kernels + self.copies


def process_of(global_id: int) -> int:
    """The process is the global id with the thread's 24 bits cleared."""
    return global_id >> 24 << 24


def process_number(global_id: int) -> int:
    """``pid = g >> 24 & 0xFFFFFF``."""
    return global_id >> 24 & 0xFFFFFF


def _table(
    db: sqlite3.Connection, table: str, needed: Sequence[str], optional: Sequence[str]
) -> list[tuple[Any, ...]]:
    """Return (rowid, needed..., optional...) in row order; absent optional columns are NULL.

    Columns are probed like tables, and a needed one that is missing is an error.
    """
    present = {row[1] for row in db.execute(f'PRAGMA table_info("{table}")')}
    if not present:
        return []
    for column in needed:
        if column not in present:
            raise ValueError(f"{table} lacks the column {column}")
    chosen = [f'"{c}"' for c in needed] + [f'"{c}"' if c in present else "NULL" for c in optional]
    return list(db.execute(f'SELECT rowid, {", ".join(chosen)} FROM "{table}" ORDER BY rowid'))


def _event_types(db: sqlite3.Connection) -> tuple[set[int], set[int]]:
    """Ids of push/pop and of start/end ranges, from the enumeration if there is one."""
    named = {
        str(name): int(number)
        for _, number, name in _table(db, "ENUM_NSYS_EVENT_TYPE", ("id", "name"), ())
    }
    push_pop = {named.get("NvtxPushPopRange", 59), named.get("NvtxtPushPopRange", 70)}
    start_end = {named.get("NvtxStartEndRange", 60), named.get("NvtxtStartEndRange", 71)}
    return push_pop, start_end


def _once(work: Iterable[Work]) -> tuple[Work, ...]:
    """Work without rows that equal an earlier one in call, name, device and times."""
    seen: set[object] = set()
    kept = []
    for one in work:
        key = (one.process, one.correlation, one.device, one.start, one.end, one.name)
        if one.correlation is None or key not in seen:
            kept.append(one)
        seen.add(key)
    return tuple(kept)


def read(path: Path | str) -> Capture:
    """The rows of a profile.

    A name is ``text``, or ``StringIds[textId]`` where ``text`` is NULL; a range without a name is
    left out. A range that is still open ends with the capture (the latest end of any kernel, call,
    copy, fill or range), but never before it starts, and is marked.
    """
    uri = f"{Path(path).resolve().as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as db:
        # Exports hold strings that are no UTF-8; such a one names nothing, and stops nothing.
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        strings = {int(r[1]): str(r[2]) for r in _table(db, "StringIds", ("id", "value"), ())}
        kernels = tuple(
            Work(
                *("kernel", r[0], r[1], r[2], r[3], r[4], r[5]),
                name=strings.get(r[6], strings.get(r[7], "")),
            )
            for r in _table(
                db,
                "CUPTI_ACTIVITY_KIND_KERNEL",
                ("start", "end", "deviceId"),
                ("globalPid", "correlationId", "demangledName", "shortName"),
            )
            if (r[1], r[2]) != NO_TIMESTAMP
        )
        copies = tuple(
            Work(kind, r[0], r[1], r[2], r[3], r[4], r[5])
            for kind, table in (
                ("copy", "CUPTI_ACTIVITY_KIND_MEMCPY"),
                ("fill", "CUPTI_ACTIVITY_KIND_MEMSET"),
            )
            for r in _table(db, table, ("start", "end", "deviceId"), ("globalPid", "correlationId"))
            if (r[1], r[2]) != NO_TIMESTAMP
        )
        kernels, copies = _once(kernels), _once(copies)
        calls = tuple(
            Call(r[0], r[1], r[2], r[3], r[4])
            for r in _table(
                db,
                "CUPTI_ACTIVITY_KIND_RUNTIME",
                ("start", "end", "globalTid", "correlationId"),
                (),
            )
            if r[3] is not None and not (r[1] == 0 and (r[2] == 0 or r[2] > LATE_END_NS))
        )
        push_pop, start_end = _event_types(db)
        rows = [
            r
            for r in _table(
                db,
                "NVTX_EVENTS",
                ("start", "end", "eventType", "globalTid"),
                ("text", "textId", "endGlobalTid"),
            )
            if r[3] in push_pop | start_end and r[4] is not None
        ]
        ends = [w.end for w in kernels + copies] + [c.end for c in calls]
        ends += [r[2] for r in rows if r[2] is not None]
        capture_end = max(ends, default=0)
        ranges = []
        for row, start, end, kind, thread, text, text_id, end_thread in rows:
            name = text if text is not None else strings.get(text_id)
            if name is None:
                continue
            wide = kind in start_end and end_thread is not None and end_thread != thread
            stop = max(start, capture_end) if end is None else end
            ranges.append(
                Range(row, start, stop, str(name), thread, kind in push_pop, wide, end is None)
            )
        threads: dict[int, tuple[str, ...]] = {}
        for _, name_id, thread in _table(db, "ThreadNames", ("nameId", "globalTid"), ()):
            if name_id in strings:
                threads[thread] = (*threads.get(thread, ()), strings[name_id])
        hosts = [
            str(r[2])
            for r in _table(db, "TARGET_INFO_SYSTEM_ENV", ("name", "value"), ())
            if str(r[1]) == "Hostname"
        ]
    return Capture(
        kernels, copies, calls, tuple(ranges), threads, hosts[0] if hosts else None, capture_end
    )


# --- Names --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Named:
    """What a range's name says. A range that names two things has two of each coordinate.

    ``receives``: communication of which some part is a receive. ``validates``: an Optimizer range
    that belongs to the iteration before it.
    """

    phase: str
    microbatches: tuple[int, ...] = ()
    chunks: tuple[int, ...] = ()
    sequences: tuple[int, ...] = ()
    receives: bool = False
    validates: bool = False


@dataclass(frozen=True)
class Mark:
    """An explicit iteration: ``iter_{rank}_{n}``."""

    rank: int
    number: int


_MARK = re.compile(r"iter_([0-9]+)_([0-9]+)")
_OPERATION = re.compile(r"([FBWR])([0-9]+)\.([0-9]+)\.([0-9]+)")
_CLEAR = re.compile(r"W_clear\.([0-9]+)\.([0-9]+)")
_COMMUNICATION = re.compile(
    r"(?:SEND|RECV)_(?:FORWARD|BACKWARD|POST_VALIDATION)(?:\.[0-9]+\.[0-9]+\.[0-9]+)?"
    r"(?:_(?:SEND|RECV)_(?:FORWARD|BACKWARD)\.[0-9]+\.[0-9]+\.[0-9]+)*"
)
_PART = re.compile(
    r"(SEND|RECV)_(FORWARD|BACKWARD|POST_VALIDATION)(?:\.([0-9]+)\.([0-9]+)\.([0-9]+))?"
)
_COMMUNICATION_PHASES = {
    ("SEND", "FORWARD"): "SEND_F",
    ("RECV", "FORWARD"): "RECV_F",
    ("SEND", "BACKWARD"): "SEND_B",
    ("RECV", "BACKWARD"): "RECV_B",
    ("SEND", "POST_VALIDATION"): "COLLECTIVE",
    ("RECV", "POST_VALIDATION"): "COLLECTIVE",
}


def parse(name: str) -> Named | Mark | None:
    """The zero-bubble convention: whole names only, ASCII digits only.

    ``W_clear`` is a W of a chunk without a microbatch. Fused communication is ``SEND_RECV``.
    Auxiliary names (``pre_step``, ``pre_send``, bare ``F``, ``Offload``...) name nothing.
    """
    found: Named | Mark | None = None
    if match := _MARK.fullmatch(name):
        found = Mark(int(match[1]), int(match[2]))
    elif match := _OPERATION.fullmatch(name):
        found = Named(match[1], (int(match[2]),), (int(match[3]),), (int(match[4]),))
    elif match := _CLEAR.fullmatch(name):
        found = Named("W", (), (int(match[1]),), (int(match[2]),))
    elif name == "Optimizer":
        found = Named("Optimizer")
    elif name in ("POST_VALIDATION", "post_validation_phase"):
        found = Named("Optimizer", validates=True)
    elif _COMMUNICATION.fullmatch(name):
        parts = [m.groups() for m in _PART.finditer(name)]
        placed = [p for p in parts if p[2] is not None]
        found = Named(
            _COMMUNICATION_PHASES[parts[0][0], parts[0][1]] if len(parts) == 1 else "SEND_RECV",
            tuple(int(p[2]) for p in placed),
            tuple(int(p[3]) for p in placed),
            tuple(int(p[4]) for p in placed),
            receives=any(p[0] == "RECV" for p in parts),
        )
    return found


#: Libraries whose kernels are communication.
COMMUNICATION_KERNELS = re.compile(r"^nccl|rccl|msccl|deep_?ep|nvshmem", re.IGNORECASE)
#: The kernel that NCCL runs for a send, a receive, or both.
POINT_TO_POINT_KERNELS = re.compile(r"sendrecv", re.IGNORECASE)
#: Threads of loaders, watchdogs and profilers.
EXCLUDED_THREADS = re.compile(
    r"pt_data|pin_mem|loader|watchd|heartb|profil|kineto|cupti|nsys|\[ns", re.IGNORECASE
)


def is_communication(kernel: Work) -> bool:
    """Communication is matched on the demangled name."""
    return kernel.kind == "kernel" and COMMUNICATION_KERNELS.search(kernel.name) is not None


def is_compute(work: Work) -> bool:
    """Every kernel that is not communication."""
    return work.kind == "kernel" and not is_communication(work)


# --- From kernel to range -----------------------------------------------------------------------


@dataclass(frozen=True)
class Attribution:
    """Where one piece of GPU work comes from.

    ``how`` is ``unlinked`` (no call), ``range`` (rule 2), ``cross`` (rule 3), ``ambiguous``
    (rule 3 with several candidate threads) or ``none``.
    """

    work: Work
    call: Call | None
    range: Range | None
    how: str


def launching_calls(capture: Capture) -> dict[tuple[int, int], Call]:
    """Of the rows that share (process, correlation), the one started first.

    Of several that started at once, the first row.
    """
    chosen: dict[tuple[int, int], Call] = {}
    for call in capture.calls:
        if call.correlation is None:
            continue
        key = (call.process, call.correlation)
        if key not in chosen or (call.start, call.row) < (chosen[key].start, chosen[key].row):
            chosen[key] = call
    return chosen


def launching_call(work: Work, calls: dict[tuple[int, int], Call]) -> Call | None:
    """The call with the work's process and correlation id."""
    if work.process is None or work.correlation is None:
        return None
    return calls.get((process_of(work.process), work.correlation))


def contains(found: Range, call: Call) -> bool:
    """Contains, on the same thread, or in the same process for a wide range."""
    here = process_of(found.thread) == call.process if found.wide else found.thread == call.thread
    return here and found.start <= call.start and call.end <= found.end


def innermost(candidates: Iterable[Range]) -> Range | None:
    """Push/pop first; then shortest; tie: later start, then later row."""
    ordered = sorted(candidates, key=lambda r: (not r.push_pop, r.end - r.start, -r.start, -r.row))
    return ordered[0] if ordered else None


class _Open:
    """Ranges by the time at which they are open, both ends included."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._tree = IntervalTree(
            Interval(r.start, r.end + 1, r) for r in ranges if r.start <= r.end
        )

    def at(self, time: int) -> list[Range]:
        return [found.data for found in self._tree[time]]


def operation_ranges(capture: Capture) -> dict[Range, Named]:
    """The ranges that name an operation."""
    named = {r: parse(r.name) for r in capture.ranges}
    return {r: n for r, n in named.items() if isinstance(n, Named)}


def enclosing(named: dict[Range, Named]) -> Callable[[Call], Range | None]:
    """The innermost of the ranges a convention names that contains a call."""
    trees = _Open(named)

    def find(call: Call) -> Range | None:
        return innermost(r for r in trees.at(call.start) if contains(r, call))

    return find


def may_cross(capture: Capture, named: dict[Range, Named], thread: int) -> bool:
    """Not a thread that opens F or Optimizer, nor one of the excluded names.

    A name that it shares with its process's main thread is inherited, and says nothing.
    """
    if any(r.thread == thread and n.phase in ("F", "FB", "Optimizer") for r, n in named.items()):
        return False
    names = capture.thread_names.get(thread, ())
    main = process_of(thread) | process_number(thread)
    inherited = capture.thread_names.get(main, ()) if thread != main else ()
    return not any(EXCLUDED_THREADS.search(n) for n in names if n not in inherited)


def attribute(capture: Capture, *, cross_thread: bool = True) -> list[Attribution]:
    """From kernel to range: for every kernel, copy and fill in turn.

    Rule 3: open means start <= call start <= end. A candidate thread is one that opened such a
    range; its own kernels are those whose launching call it made.
    """
    calls = launching_calls(capture)
    named = operation_ranges(capture)
    find = enclosing(named)
    backward = _Open(r for r, n in named.items() if n.phase in BACKWARD)
    crossing = {
        thread: cross_thread and may_cross(capture, named, thread)
        for thread in {c.thread for c in capture.calls}
    }
    own_devices: dict[int, set[int]] = {}
    for kernel in capture.kernels:
        call = launching_call(kernel, calls)
        if call is not None:
            own_devices.setdefault(call.thread, set()).add(kernel.device)
    result = []
    for work in capture.work:
        call = launching_call(work, calls)
        if call is None:
            result.append(Attribution(work, None, None, "unlinked"))
            continue
        found = find(call)
        if found is not None:
            result.append(Attribution(work, call, found, "range"))
            continue
        candidates = [
            r
            for r in (backward.at(call.start) if crossing[call.thread] else [])
            if r.thread != call.thread and process_of(r.thread) == call.process
        ]
        threads = {r.thread for r in candidates}
        if len(threads) > 1:
            threads = {t for t in threads if work.device in own_devices.get(t, set())}
        if len(threads) == 1:
            chosen = innermost(r for r in candidates if r.thread in threads)
            result.append(Attribution(work, call, chosen, "cross"))
        else:
            result.append(Attribution(work, call, None, "ambiguous" if candidates else "none"))
    return result


# --- Sets of time -------------------------------------------------------------------------------


def union(spans: Iterable[Span]) -> list[Span]:
    """The same time as disjoint, sorted, non-touching pieces; empty ones vanish."""
    result: list[Span] = []
    for start, end in sorted(s for s in spans if s[0] < s[1]):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def length(spans: Iterable[Span]) -> int:
    """Length of the union."""
    return sum(end - start for start, end in union(spans))


def clip(spans: Iterable[Span], window: Span) -> list[Span]:
    """The union's part inside the window."""
    return union((max(s, window[0]), min(e, window[1])) for s, e in spans)


def layers(window: Span, *sets: Iterable[Span]) -> list[list[Span]]:
    """Give every piece of the window to the first set that holds it; the last list is the rest."""
    pieces = [clip(spans, window) for spans in sets]
    edges = sorted({*window, *(t for spans in pieces for span in spans for t in span)})
    result: list[list[Span]] = [[] for _ in range(len(pieces) + 1)]
    for start, end in pairwise(edges):
        for place, spans in enumerate(pieces):
            if any(s <= start and end <= e for s, e in spans):
                result[place].append((start, end))
                break
        else:
            result[-1].append((start, end))
    return [union(spans) for spans in result]


# --- Ranges of a rank, iterations ---------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A range as one rank sees it, with the coordinates after relabelling and numbering.

    ``iteration``: the number its mark gives, else its place among the rank's iterations; below 0
    where other ranges are marked.
    """

    range: Range
    named: Named
    iteration: int = 0
    alone: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """Operation: the key, without rank and occurrence."""
        n = self.named
        return (self.iteration, n.phase, n.microbatches, n.chunks, n.sequences)


def ranks_of_ranges(
    capture: Capture, named: dict[Range, Named], attributions: Sequence[Attribution]
) -> dict[Range, set[Rank]]:
    """Rank: the ranks on which a range's work ran.

    A range without GPU work belongs to the only device of its process, else to the only device on
    which work of its thread's ranges ran, else to none. A copy to another device than the range's
    kernels ran on makes no operation there.
    """
    result: dict[Range, set[Rank]] = {r: set() for r in named}
    by_process: dict[int, set[int]] = {}
    by_thread: dict[int, set[int]] = {}
    launched: dict[Range, list[Work]] = {}
    for work in capture.work:
        if work.process is not None:
            by_process.setdefault(process_of(work.process), set()).add(work.device)
    for found in attributions:
        if found.range is not None:
            launched.setdefault(found.range, []).append(found.work)
    for range_, works in launched.items():
        kernels = [w for w in works if w.kind == "kernel"]
        devices = {w.device for w in kernels or works}
        result[range_] = {(process_of(range_.thread), device) for device in devices}
        by_thread.setdefault(range_.thread, set()).update(devices)
    for empty in [r for r, ranks in result.items() if not ranks]:
        process = process_of(empty.thread)
        for devices in (by_process.get(process, set()), by_thread.get(empty.thread, set())):
            if len(devices) == 1:
                result[empty] = {(process, next(iter(devices)))}
                break
    return result


def host_order(ranges: Iterable[Range]) -> list[Range]:
    """By start on the host, then by row."""
    return sorted(ranges, key=lambda r: (r.start, r.row))


def relabel(entries: Sequence[Entry]) -> list[Entry]:
    """Phase: a B whose microbatch and chunk never get a W on this rank is BW.

    A ``W_clear`` gives a W to every microbatch of its chunk.
    """
    weights = {(e.named.microbatches, e.named.chunks) for e in entries if e.named.phase == "W"}
    return [
        replace(e, named=replace(e.named, phase="BW"))
        if e.named.phase == "B"
        and (e.named.microbatches, e.named.chunks) not in weights
        and ((), e.named.chunks) not in weights
        else e
        for e in entries
    ]


def is_step(entry: Entry) -> bool:
    """An Optimizer that can end an iteration; post-validation cannot."""
    return entry.named.phase == "Optimizer" and not entry.named.validates


def same_operation(entries: Sequence[Entry], first: int, second: int) -> bool:
    """Operation: whether no other F, B or W (nor BW, FB) lies between two places."""
    return not any(
        e.named.phase in COUNTED and e.key != entries[first].key
        for e in entries[first + 1 : second]
    )


def iterations_by_marks(entries: Sequence[Entry], marks: Sequence[tuple[Range, Mark]]) -> list[int]:
    """Explicit names first; -1 where none holds.

    An iteration lasts from its mark to the next one, or to the first forward behind the end of
    its mark; a mark that holds no forward has no end.
    """
    found: list[tuple[int, int] | None] = []
    for entry in entries:
        before = [i for i, (r, _) in enumerate(marks) if r.start <= entry.range.start]
        found.append((before[-1], entry.range.start) if before else None)
    bounding = {
        at[0]
        for at, entry in zip(found, entries, strict=True)
        if at and entry.named.phase == "F" and at[1] < marks[at[0]][0].end
    }
    result: list[int] = []
    for at, entry in zip(found, entries, strict=True):
        held = at is not None and (at[0] not in bounding or at[1] < marks[at[0]][0].end)
        if at is not None and held:
            result.append(marks[at[0]][1].number)
        else:
            result.append(-1 if entry.named.phase == "F" or not result else result[-1])
    return result


def iterations_between_marks(
    entries: Sequence[Entry], marked: Sequence[int], steps: bool
) -> list[int]:
    """What no mark holds is told apart as without marks; these numbers are below 0."""
    result = list(marked)
    place = 0
    while place < len(entries):
        end = place
        while end < len(entries) and marked[end] == marked[place]:
            end += 1
        if marked[place] < 0:
            loose = entries[place:end]
            own = iterations_by_steps(loose) if steps else iterations_by_keys(loose)
            before = marked[place - 1] if place else -1
            result[place:end] = [-1 - 1000 * (before + 1) - n for n in own]
        place = end
    return result


def order_of(number: int) -> tuple[int, int]:
    """Where an iteration stands: (the marked one it is or follows, how many follow before it)."""
    return (number, 0) if number >= 0 else (-(number + 1) // 1000 - 1, -(number + 1) % 1000 + 1)


def has_constant_names(entries: Sequence[Entry], *, marked: Sequence[int] | None) -> bool:
    """Whether every microbatch has the same number in its names.

    That is: all forwards name one microbatch, and one of them is repeated within an iteration,
    which only marks or Optimizers can tell.
    """
    forwards = [e for e in entries if e.named.phase == "F"]
    if len({e.named.microbatches for e in forwards}) != 1:
        return False
    if marked is None and not any(is_step(e) for e in entries):
        return False
    seen = Counter(
        (number, e.named.chunks, e.named.sequences)
        for e, number in zip(entries, marked or iterations_by_steps(entries), strict=True)
        if e.named.phase == "F" and number >= 0
    )
    return any(count > 1 for count in seen.values())


def iterations_by_steps(entries: Sequence[Entry]) -> list[int]:
    """Constant names: an iteration ends at the last Optimizer before a forward."""
    begins = [0]
    for place, entry in enumerate(entries):
        steps = [i for i in range(begins[-1], place) if is_step(entries[i])]
        if entry.named.phase == "F" and steps:
            begins.append(steps[-1] + 1)
    return _numbers(begins, len(entries))


def iterations_by_keys(entries: Sequence[Entry]) -> list[int]:
    """An iteration ends where a forward comes whose key it already holds.

    Namely after the last Optimizer before that forward, or right before the forward where the
    iteration holds no Optimizer; what then begins must not hold the key either. A further part of
    one operation (no Optimizer between) repeats nothing.
    """
    begins = [0]
    forwards = [i for i, e in enumerate(entries) if e.named.phase == "F"]
    leading = [i for i, e in enumerate(entries) if is_step(e) and forwards and i < forwards[0]]
    if leading:
        # A capture that begins after the last forward of an iteration: its rest is one of its own.
        begins.append(leading[-1] + 1)
    for place, entry in enumerate(entries):
        while entry.named.phase == "F":
            held = [i for i in range(begins[-1], place) if entries[i].key == entry.key]
            steps = [i for i in range(begins[-1], place) if is_step(entries[i])]
            if not held:
                break
            if not any(s > held[-1] for s in steps) and same_operation(entries, held[-1], place):
                break
            begins.append(steps[-1] + 1 if steps else place)
    return _numbers(begins, len(entries))


def _numbers(begins: Sequence[int], count: int) -> list[int]:
    """The number of the iteration at every place, from the places at which they begin."""
    return [sum(begin <= place for begin in begins) - 1 for place in range(count)]


def move_post_validation(entries: Sequence[Entry]) -> list[Entry]:
    """Post-validation belongs to the iteration of the last Optimizer before it."""
    result = []
    last: int | None = None
    for entry in entries:
        if is_step(entry):
            last = entry.iteration
        validated = -1 if last is None else last
        result.append(replace(entry, iteration=validated) if entry.named.validates else entry)
    return result


def number_by_order(entries: Sequence[Entry]) -> list[Entry]:
    """Constant names: the n-th range of a phase, chunk and split is microbatch n."""
    seen: Counter[tuple[object, ...]] = Counter()
    result = []
    for entry in entries:
        if entry.named.phase in WORK and entry.named.microbatches:
            numbered = replace(entry.named, microbatches=(seen[entry.key],))
            seen[entry.key] += 1
            result.append(replace(entry, named=numbered, alone=True))
        else:
            result.append(entry)
    return result


def place_in_iterations(
    entries: Sequence[Entry], marks: Sequence[tuple[Range, Mark]]
) -> list[Entry]:
    """The iteration of every range of a rank, and microbatches numbered if need be."""
    by_mark = iterations_by_marks(entries, marks)
    marked = by_mark if any(number >= 0 for number in by_mark) else None
    constant = has_constant_names(entries, marked=marked)
    if marked is not None:
        numbers = iterations_between_marks(entries, marked, constant)
    elif constant:
        numbers = iterations_by_steps(entries)
    else:
        numbers = iterations_by_keys(entries)
    placed = [replace(e, iteration=n) for e, n in zip(entries, numbers, strict=True)]
    placed = move_post_validation(placed)
    return number_by_order(placed) if constant else placed


# --- Operations ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """One operation of one rank. ``span`` None: it has no GPU work."""

    rank: Rank
    iteration: int
    named: Named
    occurrence: int
    ranges: tuple[Range, ...]
    kernels: tuple[Work, ...]
    communication: tuple[Work, ...]
    copies: tuple[Work, ...]
    span: Span | None
    busy: tuple[Span, ...]

    @property
    def phase(self) -> str:
        """Its phase, after relabelling."""
        return self.named.phase

    @property
    def active(self) -> int:
        """The union of its compute kernels."""
        return length((k.start, k.end) for k in self.kernels)

    @property
    def busy_ns(self) -> int:
        """Length of its busy time."""
        return length(self.busy)

    @property
    def host(self) -> Span:
        """Start of its first range, latest end of its ranges."""
        return self.ranges[0].start, max(r.end for r in self.ranges)

    @property
    def cut(self) -> bool:
        """One of its ranges was still open at the end of the capture."""
        return any(r.cut for r in self.ranges)

    @property
    def name(self) -> str:
        """Text of its first range."""
        return self.ranges[0].name


def group(entries: Sequence[Entry]) -> list[tuple[int, list[Entry]]]:
    """Operation: parts joined, with the number of the occurrence."""
    result: list[tuple[int, list[Entry]]] = []
    latest: dict[tuple[object, ...], tuple[int, int]] = {}
    for place, entry in enumerate(entries):
        known = latest.get(entry.key)
        if known is None:
            result.append((0, [entry]))
            where = len(result) - 1
        elif not entry.alone and same_operation(entries, known[0], place):
            where = known[1]
            result[where][1].append(entry)
        else:
            result.append((result[known[1]][0] + 1, [entry]))
            where = len(result) - 1
        latest[entry.key] = (place, where)
    return result


def span_of(
    named: Named, kernels: Span | None, comm: Span | None, copies: Span | None
) -> Span | None:
    """From the compute kernels; where there are none, from copies and fills.

    An operation that is itself communication has the span of its communication kernels, if any.
    """
    choices = (kernels, copies) if named.phase in COMPUTE else (comm, kernels, copies)
    return next((choice for choice in choices if choice is not None), None)


def extent(work: Sequence[Work]) -> Span | None:
    """First start and last end."""
    return (min(w.start for w in work), max(w.end for w in work)) if work else None


def is_receive(found: Attribution, named: dict[Range, Named]) -> bool:
    """Communication that waits for its peer's data.

    Where a communication range holds the kernel, its name tells; elsewhere the kernel's does.
    """
    if not is_communication(found.work):
        return False
    holder = named.get(found.range) if found.range is not None else None
    if holder is None or holder.phase in COMPUTE:
        return POINT_TO_POINT_KERNELS.search(found.work.name) is not None
    return holder.receives


def own_receives(
    ranges: Sequence[Range],
    rank: Rank,
    attributions: Sequence[Attribution],
    named: dict[Range, Named],
) -> list[Work]:
    """Receives on this rank launched from inside one of the ranges.

    Inside: the range contains the call (whatever is nested between), or rule 3 gave it the call.
    """
    result = []
    for found in attributions:
        call = found.call
        if call is None or (call.process, found.work.device) != rank:
            continue
        inside = found.range in ranges or any(contains(r, call) for r in ranges)
        if inside and is_receive(found, named):
            result.append(found.work)
    return result


def busy_of(span: Span, receives: Sequence[Work], kernels: Sequence[Work]) -> list[Span]:
    """The span, less the time in which a receive runs and no own kernel does."""
    own, _, rest = layers(
        span, [(k.start, k.end) for k in kernels], [(r.start, r.end) for r in receives]
    )
    return union([*own, *rest])


# --- Iterations and their numbers ---------------------------------------------------------------


@dataclass(frozen=True)
class Account:
    """Where a window went; compute first, then own Optimizer, overlap, unattributed."""

    window: Span
    compute: int
    optimizer: int
    overlap: int
    unattributed: int
    bubble: int

    @property
    def window_ns(self) -> int:
        """Length of the window."""
        return self.window[1] - self.window[0]


@dataclass(frozen=True)
class RankIteration:
    """One rank in one iteration."""

    rank: Rank
    busy: dict[str, int]
    compute: int
    active: int
    first: int
    last: int
    accounts: dict[str, Account]
    ratio: dict[str, float | None]
    missing: tuple[str, ...]

    @property
    def hollow(self) -> float | None:
        """(busy - active) / busy."""
        return float(Fraction(self.compute - self.active, self.compute)) if self.compute else None


@dataclass(frozen=True)
class Ratio:
    """One ratio of an iteration; ``window`` is the mean over the ranks for ``period``."""

    value: float | None
    low: float | None
    overhead: float | None
    window: Fraction | None


@dataclass(frozen=True)
class Iteration:
    """One iteration over its ranks; ``number`` is the mark's or the place."""

    number: int
    kind: str
    complete: bool
    microbatches: int
    start: int | None
    end: int | None
    ratios: dict[str, Ratio]
    ranks: tuple[RankIteration, ...]


@dataclass(frozen=True)
class Analysis:
    """All results. ``iterations`` is None where the ranks' iterations cannot be paired."""

    capture: Capture
    attributions: tuple[Attribution, ...]
    named: dict[Range, Named]
    ranks: tuple[Rank, ...]
    operations: tuple[Operation, ...]
    unplaced: tuple[Range, ...]
    unattributed: dict[Rank, tuple[Work, ...]]
    iterations: tuple[Iteration, ...] | None

    def how(self, name: str) -> int:
        """Number of kernels (no copies) attributed in that way."""
        return sum(a.how == name and a.work.kind == "kernel" for a in self.attributions)


def pair(entries: dict[Rank, list[Entry]], marked: dict[Rank, bool]) -> list[int] | None:
    """The iterations of all ranks, or None where they cannot be paired.

    Only ranks with some F, B or W count. Equal marks pair. Without marks, iterations pair by
    order if every rank has as many, with the same microbatches.
    """
    taking_part = [r for r in entries if any(e.named.phase in COUNTED for e in entries[r])]
    if len({marked[r] for r in taking_part}) > 1:
        return None
    numbers = [sorted({e.iteration for e in entries[r]}) for r in taking_part]
    if not taking_part:
        return []
    if marked[taking_part[0]]:
        return sorted({n for one in numbers for n in one}, key=order_of)
    contents = [
        {
            n: {
                e.named.microbatches
                for e in entries[r]
                if e.iteration == n and e.named.phase == "F"
            }
            for n in one
        }
        for r, one in zip(taking_part, numbers, strict=True)
    ]
    return numbers[0] if all(c == contents[0] for c in contents) else None


def is_complete(operations: Sequence[Operation], *, training: bool) -> bool:
    """Whether a rank's part of an iteration was captured whole.

    It is not if its first F, B, W, BW or R is not a forward of the smallest microbatch, or if, in
    training, a forward has no backward.
    """
    work = sorted(
        (o for o in operations if o.phase in WORK),
        key=lambda o: (o.ranges[0].start, o.ranges[0].row),
    )
    if not work:
        return False
    smallest = min((o.named.microbatches for o in work if o.named.microbatches), default=())
    if work[0].phase != "F" or work[0].named.microbatches != smallest:
        return False

    def places(*phases: str) -> set[tuple[object, ...]]:
        return {
            (o.named.microbatches, o.named.chunks, o.named.sequences)
            for o in work
            if o.phase in phases
        }

    return not training or places("F") <= places("B", "BW")


def account(
    window: Span,
    own: Iterable[Span],
    optimizer: Iterable[Span],
    others: Iterable[Span],
    unattributed: Iterable[Span],
) -> Account:
    """The parts of a window; they add up to it exactly."""
    parts = [length(part) for part in layers(window, own, optimizer, others, unattributed)]
    return Account(window, *parts)


def work_in(name: str, found: Account) -> int:
    """What a formula counts as work."""
    if name in ("schedule", "stage"):
        return found.compute
    if name == "step":
        return found.compute + found.optimizer
    return found.compute + found.optimizer + found.overlap


def ratio_of(name: str, accounts: Sequence[Account]) -> Ratio:
    """1 - work / windows; low; overhead = (windows - work) / work; mean window."""
    total = sum(a.window_ns for a in accounts)
    work = sum(work_in(name, a) for a in accounts)
    more = work + sum(a.unattributed for a in accounts)
    return Ratio(
        float(1 - Fraction(work, total)) if total else None,
        float(1 - Fraction(more, total)) if total else None,
        float(Fraction(total - work, work)) if work else None,
        Fraction(total, len(accounts)) if accounts else None,
    )


def missing_of(operations: Sequence[Operation]) -> tuple[str, ...]:
    """What a training rank lacks to have a ratio."""
    phases = {o.phase for o in operations if o.span is not None}
    return tuple(
        label
        for label, enough in (("F", {"F", "FB"}), ("B", {"B", "BW", "FB"}))
        if not phases & enough
    )


@dataclass
class _Part:
    """A rank's operations in one iteration, and what follows from them alone."""

    operations: list[Operation]
    work: list[Operation] = field(init=False)
    first: int = field(init=False)
    last: int = field(init=False)
    step_end: int = field(init=False)

    def __post_init__(self) -> None:
        self.work = [o for o in self.operations if o.phase in WORK and o.span is not None]
        spans = [o.span for o in self.work if o.span is not None]
        self.first = min(s[0] for s in spans)
        self.last = max(s[1] for s in spans)
        steps = [o.span for o in self.operations if o.phase == "Optimizer" and o.span is not None]
        self.step_end = max([self.last, *(s[1] for s in steps)])

    def busy(self, *phases: str) -> list[Span]:
        return union(b for o in self.operations if o.phase in phases for b in o.busy)


def parts_of(operations: Sequence[Operation], number: int) -> dict[Rank, _Part]:
    """The ranks with at least one F, B, W or BW (with a span) in an iteration."""
    result = {}
    for rank in sorted({o.rank for o in operations}):
        own = [o for o in operations if o.rank == rank and o.iteration == number]
        if any(o.phase in COUNTED and o.span is not None for o in own):
            result[rank] = _Part(own)
    return result


def windows_of(
    parts: dict[Rank, _Part], following: dict[Rank, _Part] | None
) -> dict[str, dict[Rank, Span]]:
    """The window of every formula and rank; period only where every rank goes on."""
    begin = min(p.first for p in parts.values())
    end = max(p.last for p in parts.values())
    cost = max(p.last - p.first for p in parts.values())
    step_end = max(p.step_end for p in parts.values())
    result = {
        "schedule": dict.fromkeys(parts, (begin, end)),
        "stage": {r: (p.first, p.first + cost) for r, p in parts.items()},
        "step": dict.fromkeys(parts, (begin, step_end)),
    }
    if following is not None and all(
        r in following and p.first < following[r].first for r, p in parts.items()
    ):
        result["period"] = {r: (p.first, following[r].first) for r, p in parts.items()}
    return result


def numbers_of(
    number: int,
    following: int | None,
    operations: Sequence[Operation],
    unattributed: dict[Rank, tuple[Work, ...]],
) -> Iteration:
    """Everything about one iteration."""
    parts = parts_of(operations, number)
    training = any(o.phase in ("B", "BW", "W", "FB") for p in parts.values() for o in p.operations)
    microbatches = {
        o.named.microbatches for p in parts.values() for o in p.operations if o.phase == "F"
    }
    complete = bool(parts) and all(
        is_complete(p.operations, training=training) for p in parts.values()
    )
    nothing = dict.fromkeys(WINDOWS, Ratio(None, None, None, None))
    kind = "training" if training or not parts else "evaluation"
    if not parts:
        return Iteration(number, kind, complete, 0, None, None, nothing, ())
    windows = windows_of(parts, None if following is None else parts_of(operations, following))
    missing = {r: missing_of(p.operations) if training else () for r, p in parts.items()}
    accounts: dict[str, dict[Rank, Account]] = {}
    for name, by_rank in windows.items():
        accounts[name] = {
            rank: account(
                window,
                parts[rank].busy(*WORK),
                parts[rank].busy("Optimizer"),
                [
                    b
                    for o in operations
                    if o.rank == rank and o.iteration != number and o.phase in COMPUTE
                    for b in o.busy
                ],
                [(k.start, k.end) for k in unattributed.get(rank, ())],
            )
            for rank, window in by_rank.items()
        }
    ratios = dict(nothing)
    for name, found in accounts.items():
        ratio = ratio_of(name, list(found.values()))
        lacking = any(missing.values())
        ratios[name] = replace(ratio, value=None, low=None, overhead=None) if lacking else ratio
    ranks = tuple(
        RankIteration(
            rank,
            {phase: length(p.busy(phase)) for phase in COMPUTE if p.busy(phase)},
            length(p.busy(*WORK)),
            length((k.start, k.end) for o in p.work for k in o.kernels),
            p.first,
            p.last,
            {name: found[rank] for name, found in accounts.items()},
            {
                name: ratio_of(name, [accounts[name][rank]]).value
                if name in accounts and not missing[rank]
                else None
                for name in WINDOWS
            },
            missing[rank],
        )
        for rank, p in parts.items()
    )
    start, end = next(iter(windows["step"].values()))
    return Iteration(number, kind, complete, len(microbatches), start, end, ratios, ranks)


def analyse(path: Path | str, *, cross_thread: bool = True) -> Analysis:
    """The whole analysis of one profile."""
    capture = read(path)
    attributions = attribute(capture, cross_thread=cross_thread)
    named = operation_ranges(capture)
    where = ranks_of_ranges(capture, named, attributions)
    ranks = sorted(
        {(process_of(w.process), w.device) for w in capture.work if w.process is not None}
    )
    marks = [(r, m) for r in host_order(capture.ranges) if isinstance(m := parse(r.name), Mark)]
    entries: dict[Rank, list[Entry]] = {}
    marked: dict[Rank, bool] = {}
    for rank in ranks:
        seen = [Entry(r, named[r]) for r in host_order(named) if rank in where[r]]
        threads = {e.range.thread for e in seen}
        own_marks = [(r, m) for r, m in marks if r.thread in threads]
        entries[rank] = place_in_iterations(relabel(seen), own_marks)
        marked[rank] = bool(own_marks)
    operations = operations_of(entries, attributions, named)
    unattributed = unattributed_of(ranks, attributions, named)
    numbers = pair(entries, marked)
    iterations = None
    if numbers is not None:
        after = dict(pairwise(numbers))
        iterations = tuple(numbers_of(n, after.get(n), operations, unattributed) for n in numbers)
    return Analysis(
        *(capture, tuple(attributions), named, tuple(ranks), tuple(operations)),
        tuple(r for r in host_order(named) if not where[r]),
        unattributed,
        iterations,
    )


def operations_of(
    entries: dict[Rank, list[Entry]],
    attributions: Sequence[Attribution],
    named: dict[Range, Named],
) -> list[Operation]:
    """The operations of every rank, in host order within a rank."""
    result = []
    for rank, seen in entries.items():
        for occurrence, parts in group(seen):
            ranges = tuple(e.range for e in parts)
            held = [a.work for a in attributions if a.range in ranges and a.work.device == rank[1]]
            kernels = [w for w in held if is_compute(w)]
            comm = [w for w in held if is_communication(w)]
            copies = [w for w in held if w.kind != "kernel"]
            span = span_of(parts[0].named, extent(kernels), extent(comm), extent(copies))
            busy: list[Span] = []
            if span is not None and parts[0].named.phase in COMPUTE:
                receives = own_receives(ranges, rank, attributions, named)
                busy = busy_of(span, receives, kernels)
            elif span is not None:
                busy = union([span])
            result.append(
                Operation(
                    *(rank, parts[0].iteration, parts[0].named, occurrence, ranges),
                    *(tuple(kernels), tuple(comm), tuple(copies), span, tuple(busy)),
                )
            )
    return result


def unattributed_of(
    ranks: Iterable[Rank], attributions: Sequence[Attribution], named: dict[Range, Named]
) -> dict[Rank, tuple[Work, ...]]:
    """Compute kernels outside every compute operation, in a RECV range too."""
    return {
        rank: tuple(
            a.work
            for a in attributions
            if a.work.process is not None
            and (process_of(a.work.process), a.work.device) == rank
            and is_compute(a.work)
            and (a.range is None or named[a.range].phase not in COMPUTE)
        )
        for rank in ranks
    }


@dataclass(frozen=True)
class Coverage:
    """Sums of durations of one rank, or of a whole profile."""

    kernels: int
    linked: int
    attributed: int
    cross: int
    ambiguous: int
    gpu_ns: int
    attributed_gpu_ns: int
    comm_ns: int
    attributed_comm_ns: int
    copy_ns: int


def coverage(found: Analysis, rank: Rank | None = None) -> Coverage:
    """What was explained, of one rank or (None) of everything.

    Attributed kernels are those of any operation, communication included. Attributed GPU time is
    compute kernels in compute operations; attributed communication is in any operation.
    """
    here = [
        a
        for a in found.attributions
        if rank is None
        or (a.work.process is not None and (process_of(a.work.process), a.work.device) == rank)
    ]
    kernels = [a for a in here if a.work.kind == "kernel"]
    compute = [a for a in kernels if is_compute(a.work)]
    comm = [a for a in kernels if is_communication(a.work)]

    def total(chosen: Iterable[Attribution]) -> int:
        return sum(a.work.end - a.work.start for a in chosen)

    return Coverage(
        len(kernels),
        sum(a.how != "unlinked" for a in kernels),
        sum(a.range is not None for a in kernels),
        sum(a.how == "cross" for a in kernels),
        sum(a.how == "ambiguous" for a in kernels),
        total(compute),
        total(a for a in compute if a.range is not None and found.named[a.range].phase in COMPUTE),
        total(comm),
        total(a for a in comm if a.range is not None),
        total(a for a in here if a.work.kind != "kernel"),
    )


# --- Over iterations ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """Mean, standard deviation (n-1), extremes and half width of the 95 % interval."""

    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    ci95: float | None
    n: int


def averaged(iterations: Sequence[Iteration], skip: int = 0) -> list[Iteration]:
    """Complete training iterations of the most frequent microbatch count.

    Of equally frequent counts, the larger. The first ``skip`` iterations of all are left out.
    """
    whole = [i for i in iterations[skip:] if i.complete and i.kind == "training"]
    if not whole:
        return []
    counts = Counter(i.microbatches for i in whole)
    best = max(counts, key=lambda count: (counts[count], count))
    return [i for i in whole if i.microbatches == best]


def spread(values: Iterable[float | None]) -> Spread:
    """Statistics of the values that exist."""
    known = [Fraction(v) for v in values if v is not None]
    n = len(known)
    if not n:
        return Spread(None, None, None, None, None, 0)
    mean = sum(known, Fraction(0)) / n
    low, high = float(min(known)), float(max(known))
    if n == 1:
        return Spread(float(mean), None, low, high, None, 1)
    std = sqrt(sum(((v - mean) ** 2 for v in known), Fraction(0)) / (n - 1))
    return Spread(float(mean), std, low, high, student_t(n - 1) * std / sqrt(n), n)


def student_t(freedom: int) -> float:
    """The 97.5 % quantile of Student's t: bisection on Simpson's rule for its density."""
    scale = exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / sqrt(freedom * pi)

    def density(angle: float) -> float:
        # With t = tan(angle) the integral from 0 to infinity is one over [0, pi/2).
        t = tangent(angle)
        return scale * exp(-(freedom + 1) / 2 * log(1 + t * t / freedom)) * (1 + t * t)

    def below(t: float, steps: int = 2000) -> float:
        high = arc_tangent(t)
        width = high / steps
        total = density(0.0) + density(high)
        total += sum((4 if i % 2 else 2) * density(i * width) for i in range(1, steps))
        return 0.5 + total * width / 3

    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < 0.975 else (low, middle)
    return (low + high) / 2


def headline(iterations: Sequence[Iteration]) -> str:
    """``period`` where other iterations fill over 1 % of some rank's schedule window."""
    for iteration in iterations:
        for rank in iteration.ranks:
            found = rank.accounts["schedule"]
            if found.overlap * 100 > found.window_ns:
                return "period"
    return "schedule"
