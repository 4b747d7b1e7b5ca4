"""A second implementation of the analysis that is slow, simple, and independent of the package.

Every function implements one rule, and its docstring states that rule. The guides ``ratios``,
``attribution`` and ``limits`` explain the same rules to users. Rows are Python objects. Time is cut
at every boundary, and each piece is examined on its own. Tests compare the package's results with
the results of this implementation.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.support.exact import (
    COMPUTE,
    COUNTED,
    WORK,
    RankIteration,
    Span,
    compute_numbers,
    find_extent,
    measure_union,
    subtract,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

#: (process, device).
#: This pair identifies a rank, because a profile contains one host.
Rank = tuple[int, int]
#: (process, thread).
Thread = tuple[int, int]

BACKWARD = ("B", "BW", "W", "R")


class Work(NamedTuple):
    """A kernel. If ``kernel`` is False, a copy or fill."""

    kernel: bool
    start: int
    end: int
    rank: Rank
    correlation: int | None
    name: str = ""


class Call(NamedTuple):
    """A row in the runtime table."""

    row: int
    start: int
    end: int
    thread: Thread
    correlation: int | None


class Range(NamedTuple):
    """An NVTX range. ``wide`` marks a start/end range that ends on another thread."""

    row: int
    start: int
    end: int
    name: str
    thread: Thread
    push_pop: bool
    wide: bool
    cut: bool


class Capture(NamedTuple):
    """The contents of one file that the rules need. Kernels come first in ``work``."""

    work: list[Work]
    calls: list[Call]
    ranges: list[Range]
    thread_names: dict[Thread, list[str]]


def thread_of(global_id: int) -> Thread:
    """Return (process, thread) of a global id. The thread is in the lowest 24 bits."""
    return global_id >> 24 & 0xFFFFFF, global_id & 0xFFFFFF


def read(path: Path) -> Capture:
    """Read the rows of a profile.

    Work and calls that start and end at 0 have no timestamps. Duplicate rows (equal call, name,
    device and times) are read only once. The name of a range is ``text``, or ``StringIds[textId]``
    if ``text`` is NULL; ranges without a name are left out. An open range ends with the capture
    (the latest end of any kernel, call, copy, fill or range), but never before it starts.
    """
    with closing(sqlite3.connect(path)) as db:

        def rows(columns: str, table: str) -> list[Any]:
            query = f'SELECT rowid, start, "end", {columns} FROM {table} ORDER BY rowid'
            return db.execute(query).fetchall()

        strings: dict[int | None, str] = dict(db.execute("SELECT id, value FROM StringIds"))
        thread_names = defaultdict(list)
        for name, thread in db.execute("SELECT nameId, globalTid FROM ThreadNames ORDER BY rowid"):
            thread_names[thread_of(thread)].append(strings[name])
        columns = "globalPid, deviceId, correlationId"
        kernels = rows(f"{columns}, demangledName", "CUPTI_ACTIVITY_KIND_KERNEL")
        copies = [*rows(columns, "CUPTI_ACTIVITY_KIND_MEMCPY")]
        copies += rows(columns, "CUPTI_ACTIVITY_KIND_MEMSET")
        calls = [
            Call(row, start, end, thread_of(thread), correlation)
            for row, start, end, thread, correlation in rows(
                "globalTid, correlationId", "CUPTI_ACTIVITY_KIND_RUNTIME"
            )
            if (start, end) != (0, 0)
        ]
        events = rows("eventType, globalTid, text, textId, endGlobalTid", "NVTX_EVENTS")
    work: list[Work] = []
    for _, start, end, process, device, correlation, *name in (*kernels, *copies):
        text = strings[name[0]] if name else ""
        rank = (thread_of(process)[0], device)
        piece = Work(bool(name), start, end, rank, correlation, text)
        if (start, end) != (0, 0) and (correlation is None or piece not in work):
            work.append(piece)
    end_times = [*(piece.end for piece in work), *(call.end for call in calls)]
    end_times += [event[2] for event in events if event[2] is not None]
    valid_work = [piece for piece in work if piece.rank not in stray_ranks(work, calls)]
    ranges = []
    for row, start, end, kind, thread, text, text_id, end_thread in events:
        text_of_range = strings.get(text_id) if text is None else str(text)
        if text_of_range is not None:
            push_pop = kind in (59, 70)
            wide = not push_pop and end_thread not in (None, thread)
            stop = max(start, *end_times, 0) if end is None else end
            range_thread = thread_of(thread)
            ranges.append(
                Range(row, start, stop, text_of_range, range_thread, push_pop, wide, end is None)
            )
    return Capture(valid_work, calls, ranges, thread_names)


def stray_ranks(work: Sequence[Work], calls: Sequence[Call]) -> set[Rank]:
    """Return the ranks whose process ids appear to be damaged.

    A rank is returned if its process makes no calls although others do. In addition, the rank must
    have at most one percent of the work, or a single piece of work. If this applies to all ranks,
    none are returned.
    """
    counts = Counter(one.rank for one in work)
    calling = {call.thread[0] for call in calls}
    max_stray = max(1, len(work) // 100)
    strays = {
        r for r, count in counts.items() if calling and r[0] not in calling and count <= max_stray
    }
    return strays if len(strays) < len(counts) else set()


@dataclass(frozen=True)
class Meaning:
    """Meaning of a range's name.

    A range that names two operations has two values for each coordinate. ``receives`` marks
    communication that includes a receive, and ``validates`` an Optimizer range that belongs to the
    previous iteration.
    """

    phase: str
    microbatches: tuple[int, ...] = ()
    chunks: tuple[int, ...] = ()
    sequences: tuple[int, ...] = ()
    receives: bool = False
    validates: bool = False


_MARK = re.compile(r"iter_[0-9]+_([0-9]+)")
_OPERATION = re.compile(r"([FBWR])([0-9]+)\.([0-9]+)\.([0-9]+)")
_CLEAR = re.compile(r"W_clear\.([0-9]+)\.([0-9]+)")
_COMMUNICATION = re.compile(
    r"(?:SEND|RECV)_(?:FORWARD|BACKWARD|POST_VALIDATION)(?:\.[0-9]+\.[0-9]+\.[0-9]+)?"
    r"(?:_(?:SEND|RECV)_(?:FORWARD|BACKWARD)\.[0-9]+\.[0-9]+\.[0-9]+)*"
)
_PART = re.compile(
    r"(SEND|RECV)_(FORWARD|BACKWARD|POST_VALIDATION)(?:\.([0-9]+)\.([0-9]+)\.([0-9]+))?"
)


def parse(name: str) -> Meaning | int | None:
    """Parse a name of the zero-bubble convention. The result is an int for an iteration mark.

    The pattern matches the complete name, with ASCII digits. ``W_clear`` is the W of a chunk,
    without a microbatch. Fused communication is ``SEND_RECV``. Auxiliary names (``pre_step``,
    ``pre_send``, bare ``F``, ``Offload``...) are not operations.
    """
    if match := _MARK.fullmatch(name):
        return int(match[1])
    if match := _OPERATION.fullmatch(name):
        return Meaning(match[1], (int(match[2]),), (int(match[3]),), (int(match[4]),))
    if match := _CLEAR.fullmatch(name):
        return Meaning("W", (), (int(match[1]),), (int(match[2]),))
    if name in ("Optimizer", "POST_VALIDATION", "post_validation_phase"):
        return Meaning("Optimizer", validates=name != "Optimizer")
    if not _COMMUNICATION.fullmatch(name):
        return None
    parts = [m.groups() for m in _PART.finditer(name)]
    way, direction, *_ = parts[0]
    phase = "COLLECTIVE" if direction == "POST_VALIDATION" else f"{way}_{direction[0]}"
    microbatches, chunks, sequences = (
        tuple(int(p[place]) for p in parts if p[place] is not None) for place in (2, 3, 4)
    )
    return Meaning(
        phase if len(parts) == 1 else "SEND_RECV",
        microbatches,
        chunks,
        sequences,
        receives=any(p[0] == "RECV" for p in parts),
    )


#: Libraries of communication kernels, matched on the demangled kernel name.
COMMUNICATION_KERNELS = re.compile(r"^nccl|rccl|msccl|deep_?ep|nvshmem", re.IGNORECASE)
#: Names of loader, watchdog and profiler threads.
EXCLUDED_THREADS = re.compile(
    r"pt_data|pin_mem|loader|watchd|heartb|profil|kineto|cupti|nsys|\[ns", re.IGNORECASE
)


def is_communication(work: Work) -> bool:
    """Return whether the work is a kernel of a communication library."""
    return work.kernel and COMMUNICATION_KERNELS.search(work.name) is not None


def is_compute(work: Work) -> bool:
    """Return whether the work is a kernel that does not communicate."""
    return work.kernel and not is_communication(work)


class Attribution(NamedTuple):
    """The range to which one piece of GPU work belongs.

    ``how`` is ``unlinked`` (no call), ``range`` (rule 2), ``cross`` (rule 3), ``ambiguous``
    (rule 3 with several candidate threads) or ``none``.
    """

    work: Work
    call: Call | None
    range: Range | None
    how: str


def contains(range_: Range, call: Call) -> bool:
    """Return whether a range contains a call on its thread, or in its process if it is wide."""
    is_same_thread = range_.thread == call.thread or (
        range_.wide and range_.thread[0] == call.thread[0]
    )
    return is_same_thread and range_.start <= call.start and call.end <= range_.end


def innermost(candidates: Iterable[Range]) -> Range | None:
    """Return the innermost range.

    Push/pop ranges win over start/end ranges, then the shortest range wins. On ties, the range with
    the later start wins, then the one with the later row.
    """
    return min(
        candidates, key=lambda r: (not r.push_pop, r.end - r.start, -r.start, -r.row), default=None
    )


def may_cross(capture: Capture, meaning_of: dict[Range, Meaning], thread: Thread) -> bool:
    """Return whether calls of a thread may belong to backward ranges of other threads.

    This is not allowed for threads that open F or Optimizer ranges, or for threads whose name is
    excluded. A name that equals the name of the main thread is inherited, so it is ignored.
    """
    if any(r.thread == thread and n.phase in ("F", "Optimizer") for r, n in meaning_of.items()):
        return False
    main = (thread[0], thread[0])
    inherited = capture.thread_names.get(main, []) if thread != main else []
    names = capture.thread_names.get(thread, [])
    return not any(EXCLUDED_THREADS.search(n) for n in names if n not in inherited)


def attribute(capture: Capture, meaning_of: dict[Range, Meaning]) -> list[Attribution]:
    """Attribute each kernel, copy and fill to a call, and the call to a range.

    Rule 1: the call is the earliest one with the same (process, correlation). The first row wins
    ties. Rule 2: the range is the innermost one that contains the call. Rule 3: otherwise it is the
    innermost backward range that is open on another thread (start <= call start <= end), if exactly
    one thread has such a range. Kernels belong to the thread that launched them.
    """
    calls: dict[tuple[int, int | None], Call] = {}
    for own_call in sorted(capture.calls, key=lambda c: (c.start, c.row)):
        if own_call.correlation is not None:
            calls.setdefault((own_call.thread[0], own_call.correlation), own_call)
    launched = [(work, calls.get((work.rank[0], work.correlation))) for work in capture.work]
    launching = {(made.thread, work.rank[1]) for work, made in launched if made and work.kernel}
    result = []
    for work, call in launched:
        if call is None:
            result.append(Attribution(work, None, None, "unlinked"))
            continue
        holder = innermost(r for r in meaning_of if contains(r, call))
        if holder is not None:
            result.append(Attribution(work, call, holder, "range"))
            continue
        candidates = [
            r
            for r, n in meaning_of.items()
            if n.phase in BACKWARD
            and r.start <= call.start <= r.end
            and (r.thread[0] == call.thread[0] and r.thread != call.thread)
        ]
        if not (candidates and may_cross(capture, meaning_of, call.thread)):
            result.append(Attribution(work, call, None, "none"))
            continue
        threads = {r.thread for r in candidates}
        if len(threads) > 1:
            threads = {t for t in threads if (t, work.rank[1]) in launching}
        backward_range = innermost(r for r in candidates if r.thread in threads)
        how = "cross" if len(threads) == 1 else "ambiguous"
        result.append(Attribution(work, call, backward_range if how == "cross" else None, how))
    return result


def times(work: Iterable[Work]) -> list[Span]:
    """Return the span of each piece of work."""
    return [(w.start, w.end) for w in work]


@dataclass(frozen=True)
class Entry:
    """A range of one rank, after phases are relabeled and iterations are numbered.

    ``iteration`` is the number of its iteration mark. Without a mark, it is the index among the
    rank's iterations. It is negative if other ranges of the rank are marked.
    """

    range: Range
    meaning: Meaning
    iteration: int = 0
    alone: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """Identity of the operation, without the rank and the occurrence."""
        n = self.meaning
        return (self.iteration, n.phase, n.microbatches, n.chunks, n.sequences)

    @property
    def is_forward(self) -> bool:
        """Whether the range is an F."""
        return self.meaning.phase == "F"

    @property
    def is_step(self) -> bool:
        """Whether the range is an Optimizer that can end an iteration, unlike post-validation."""
        return self.meaning.phase == "Optimizer" and not self.meaning.validates


def ranks_of_ranges(
    capture: Capture, meaning_of: dict[Range, Meaning], attributions: Sequence[Attribution]
) -> dict[Range, set[Rank]]:
    """Return the ranks on which each range's work ran.

    A range without GPU work belongs to its process's only device. If there are several devices, it
    belongs to the only device that ran work from ranges on its thread. Otherwise, it does not
    belong to any rank. If the range has kernels, a copy on a device without any of these kernels
    does not create an operation there.
    """
    result = {}
    for range_ in meaning_of:
        work_in_range = [a.work for a in attributions if a.range == range_]
        kernels = [w for w in work_in_range if w.kernel]
        result[range_] = {(range_.thread[0], w.rank[1]) for w in kernels or work_in_range}
    for empty in [r for r, ranks in result.items() if not ranks]:
        of_process = {w.rank for w in capture.work if w.rank[0] == empty.thread[0]}
        of_thread = {
            rank for r, ranks in result.items() if r.thread == empty.thread for rank in ranks
        }
        result[empty] = next((ranks for ranks in (of_process, of_thread) if len(ranks) == 1), set())
    return result


def relabel(entries: Sequence[Entry]) -> list[Entry]:
    """Change the phase of each B without a W of the same microbatch and chunk to BW.

    A ``W_clear`` is treated as a W of every microbatch of its chunk.
    """
    weights = {
        (e.meaning.microbatches, e.meaning.chunks) for e in entries if e.meaning.phase == "W"
    }
    return [
        replace(e, meaning=replace(e.meaning, phase="BW"))
        if e.meaning.phase == "B"
        and weights.isdisjoint({(e.meaning.microbatches, e.meaning.chunks), ((), e.meaning.chunks)})
        else e
        for e in entries
    ]


def same_operation(entries: Sequence[Entry], first: int, second: int) -> bool:
    """Return whether there is no other F, B, W or BW between two entries."""
    return not any(
        e.meaning.phase in COUNTED and e.key != entries[first].key
        for e in entries[first + 1 : second]
    )


def iterations_by_marks(entries: Sequence[Entry], marks: Sequence[tuple[Range, int]]) -> list[int]:
    """Return the iteration number of each entry from explicit marks, or -1 outside all marks.

    An iteration lasts from its mark to the next one, or to the first forward after the end of its
    mark. A mark that does not contain a forward has no end.
    """
    mark_of = [
        max((place for place, (r, _) in enumerate(marks) if r.start <= e.range.start), default=-1)
        for e in entries
    ]
    is_inside = [
        mark >= 0 and e.range.start < marks[mark][0].end
        for e, mark in zip(entries, mark_of, strict=True)
    ]
    bounding = {
        mark
        for e, mark, is_in_mark in zip(entries, mark_of, is_inside, strict=True)
        if is_in_mark and e.is_forward
    }
    result: list[int] = []
    for entry, mark, is_in_mark in zip(entries, mark_of, is_inside, strict=True):
        if mark >= 0 and (is_in_mark or mark not in bounding):
            result.append(marks[mark][1])
        else:
            result.append(-1 if entry.is_forward or not result else result[-1])
    return result


def iterations_between_marks(
    entries: Sequence[Entry], marked: Sequence[int], *, constant: bool
) -> list[int]:
    """Divide the entries outside all marks as if there were no marks.

    Their iteration numbers are negative.
    """
    result: list[int] = []
    for number, group in groupby(zip(entries, marked, strict=True), lambda pair: pair[1]):
        loose = [entry for entry, _ in group]
        if number >= 0:
            result += [number] * len(loose)
        else:
            numbers = iterations_by_steps(loose) if constant else iterations_by_keys(loose)
            previous = result[-1] if result else -1
            result += [-1 - 1000 * (previous + 1) - n for n in numbers]
    return result


def order_of(number: int) -> tuple[int, int]:
    """Return an iteration's sort key, which is a pair.

    The pair contains the marked iteration that the iteration is or follows, and its index after the
    marked one.
    """
    return (number, 0) if number >= 0 else (-(number + 1) // 1000 - 1, -(number + 1) % 1000 + 1)


def has_constant_names(entries: Sequence[Entry], marked: Sequence[int] | None) -> bool:
    """Return whether the names give all microbatches the same number.

    In that case, all forwards name the same microbatch, and a forward is repeated within an
    iteration. Only marks or Optimizers can show the repetition.
    """
    if len({e.meaning.microbatches for e in entries if e.is_forward}) != 1:
        return False
    if marked is None and not any(e.is_step for e in entries):
        return False
    counts = Counter(
        (number, e.meaning.chunks, e.meaning.sequences)
        for e, number in zip(entries, marked or iterations_by_steps(entries), strict=True)
        if e.is_forward and number >= 0
    )
    return any(count > 1 for count in counts.values())


def iterations_by_steps(entries: Sequence[Entry]) -> list[int]:
    """Return iterations for constant names.

    An iteration ends at the last Optimizer before a forward.
    """
    first_index = [0]
    for index, entry in enumerate(entries):
        steps = [i for i in range(first_index[-1], index) if entries[i].is_step]
        if entry.is_forward and steps:
            first_index.append(steps[-1] + 1)
    return _number_iterations(first_index, len(entries))


def iterations_by_keys(entries: Sequence[Entry]) -> list[int]:
    """Return iterations that end before a repeated forward, or begin at the first microbatch.

    The division that misplaces fewer entries wins. On a tie, the one with more complete iterations
    wins. If a rank begins with the only F of the first microbatch, the division by repetition wins.
    """

    def identity(place: int) -> tuple[tuple[int, ...], ...]:
        n = entries[place].meaning
        return n.chunks or (-1,), n.sequences or (-1,), n.microbatches or (-1,)

    def flaws(numbers: Sequence[int]) -> tuple[int, int]:
        """Return the number of misplaced entries, and the negated number of complete iterations.

        A forward is misplaced if its iteration already contains the same forward. A backward is
        misplaced if it is not in the iteration that contains the last forward of its microbatch and
        chunk.
        """
        wrong = sum(
            any(numbers[j] == numbers[i] and identity(j) == identity(i) for j in forwards[:n])
            for n, i in enumerate(forwards)
        )
        for forward_index in counted_index:
            of = [
                i
                for i in counted_index
                if i < forward_index and identity(i) == identity(forward_index)
            ]
            of = [i for i in of if entries[i].is_forward]
            wrong += bool(
                of
                and not entries[forward_index].is_forward
                and numbers[of[-1]] != numbers[forward_index]
            )
        held = Counter(numbers[i] for i in forwards)
        return wrong, -sum(count == len(set(map(identity, forwards))) for count in held.values())

    counted_index = [i for i, e in enumerate(entries) if e.meaning.phase in COUNTED]
    forwards = [
        i
        for n, i in enumerate(counted_index)
        if entries[i].is_forward
        and not (
            n
            and entries[counted_index[n - 1]].key == entries[i].key
            and not any(e.is_step for e in entries[counted_index[n - 1] : i])
        )
    ]
    smallest = min((identity(i)[2] for i in forwards), default=())
    starts = sorted({identity(i) for i in forwards if identity(i)[2] == smallest})
    repeated = iterations_by_repetition(entries)
    if not starts or (counted_index[0] == forwards[0] and [identity(forwards[0])] == starts):
        return repeated
    ways = []
    for start in starts:
        first_index = [0]
        for n, forward_index in enumerate(forwards):
            between = range(forwards[n - 1] if n else 0, forward_index)
            steps = [i for i in between if entries[i].is_step]
            begin_index = steps[-1] + 1 if steps else forward_index
            if identity(forward_index) == start and begin_index > counted_index[0]:
                first_index.append(begin_index)
        ways.append(_number_iterations(first_index, len(entries)))
    return min(*ways, repeated, key=flaws)


def iterations_by_repetition(entries: Sequence[Entry]) -> list[int]:
    """Return iterations that end before a forward whose key they already contain.

    An iteration ends after the last Optimizer before that forward, or directly before the forward
    if it does not contain an Optimizer. The new iteration must not contain the key either. Another
    part of the same operation (without an Optimizer in between) is not a repetition.
    """
    first_index = [0]
    forwards = [i for i, e in enumerate(entries) if e.is_forward]
    leading = [i for i, e in enumerate(entries) if e.is_step and forwards and i < forwards[0]]
    if leading:
        # If a capture begins after the last forward of an iteration, the remainder is an iteration.
        first_index.append(leading[-1] + 1)
    for forward_index in forwards:
        while True:
            same_key = [
                i
                for i in range(first_index[-1], forward_index)
                if entries[i].key == entries[forward_index].key
            ]
            steps = [i for i in range(first_index[-1], forward_index) if entries[i].is_step]
            if not same_key:
                break
            if not any(s > same_key[-1] for s in steps) and same_operation(
                entries, same_key[-1], forward_index
            ):
                break
            first_index.append(steps[-1] + 1 if steps else forward_index)
    return _number_iterations(first_index, len(entries))


def _number_iterations(first_index: Sequence[int], count: int) -> list[int]:
    """Return the iteration number of every entry, given the first index of each iteration."""
    return [sum(begin <= place for begin in first_index) - 1 for place in range(count)]


def place_in_iterations(
    entries: Sequence[Entry], marks: Sequence[tuple[Range, int]]
) -> list[Entry]:
    """Assign an iteration to every range of a rank.

    Post-validation belongs to the iteration of the last Optimizer before it. With constant names,
    the n-th range of a phase, chunk and split is microbatch n.
    """
    by_mark = iterations_by_marks(entries, marks)
    marked = by_mark if any(number >= 0 for number in by_mark) else None
    constant = has_constant_names(entries, marked)
    if marked is not None:
        numbers = iterations_between_marks(entries, marked, constant=constant)
    elif constant:
        numbers = iterations_by_steps(entries)
    else:
        numbers = iterations_by_keys(entries)
    n_seen: Counter[tuple[object, ...]] = Counter()
    result = []
    last = -1
    for entry, number in zip(entries, numbers, strict=True):
        last = number if entry.is_step else last
        entry_ = replace(entry, iteration=last if entry.meaning.validates else number)
        if constant and entry_.meaning.phase in WORK and entry_.meaning.microbatches:
            meaning = replace(entry_.meaning, microbatches=(n_seen[entry_.key],))
            n_seen[entry_.key] += 1
            entry_ = replace(entry_, meaning=meaning, alone=True)
        result.append(entry_)
    return result


@dataclass(frozen=True)
class Operation:
    """One operation on one rank. ``span`` is None if the operation has no GPU work."""

    rank: Rank
    iteration: int
    meaning: Meaning
    occurrence: int
    ranges: tuple[Range, ...]
    kernels: tuple[Work, ...]
    span: Span | None
    busy: tuple[Span, ...]

    @property
    def phase(self) -> str:
        """Phase of the operation after relabeling."""
        return self.meaning.phase

    @property
    def active(self) -> int:
        """Length of the union of the operation's compute kernels."""
        return measure_union(times(self.kernels))


def group(entries: Sequence[Entry]) -> list[tuple[int, list[Entry]]]:
    """Group entries into operations, and return the parts and occurrence number of each operation.

    Entries with equal keys are parts of one operation if there is no other F, B, W or BW between
    them. Otherwise, the later entry is another occurrence.
    """
    result: list[tuple[int, list[Entry]]] = []
    latest: dict[tuple[object, ...], tuple[int, int, list[Entry]]] = {}
    for index, entry in enumerate(entries):
        previous, occurrence, parts = latest.get(entry.key, (0, -1, []))
        if parts and not entry.alone and same_operation(entries, previous, index):
            parts.append(entry)
        else:
            occurrence, parts = occurrence + 1, [entry]
            result.append((occurrence, parts))
        latest[entry.key] = (index, occurrence, parts)
    return result


def is_receive(attribution: Attribution, meaning_of: dict[Range, Meaning]) -> bool:
    """Return whether communication work waits for data from a peer.

    This depends on the name of the communication range around the kernel. Without such a range, it
    depends on the kernel's name.
    """
    holder = meaning_of[attribution.range] if attribution.range is not None else None
    if holder is None or holder.phase in COMPUTE:
        return "sendrecv" in attribution.work.name.lower()
    return holder.receives


def operation_of(
    rank: Rank,
    occurrence: int,
    parts: Sequence[Entry],
    attributions: Sequence[Attribution],
    meaning_of: dict[Range, Meaning],
) -> Operation:
    """Build an operation from its parts.

    The span of an operation covers its compute kernels. Without compute kernels, the span covers
    the communication kernels, and the operation is never busy. Without any kernels, the span covers
    copies and fills. A communication operation has the span of its communication kernels, if any.

    An operation is busy during its span, except while a receive launched inside it runs on this
    rank and none of the operation's kernels run. A receive is launched inside an operation in two
    cases: one of the operation's ranges contains the call, at any depth, or rule 3 assigned the
    call to the operation.
    """
    ranges = tuple(e.range for e in parts)
    own_work = [a.work for a in attributions if a.range in ranges and a.work.rank[1] == rank[1]]
    kernels = tuple(w for w in own_work if is_compute(w))
    comm = [w for w in own_work if is_communication(w)]
    copies = [w for w in own_work if not w.kernel]
    compute = parts[0].meaning.phase in COMPUTE
    choices = (kernels, comm, copies) if compute else (comm, kernels, copies)
    span = find_extent(times(next((choice for choice in choices if choice), ())))
    receives = [
        a.work
        for a in attributions
        if a.call is not None
        and (a.call.thread[0], a.work.rank[1]) == rank
        and (a.range in ranges or any(contains(r, a.call) for r in ranges))
        and (is_communication(a.work) and is_receive(a, meaning_of))
    ]
    waits = subtract(times(receives if compute else ()), times(kernels))
    only_communicates = compute and not kernels and bool(comm)
    busy = [] if span is None or only_communicates else subtract([span], waits)
    entry = parts[0]
    return Operation(
        rank, entry.iteration, entry.meaning, occurrence, ranges, kernels, span, tuple(busy)
    )


class Analysis(NamedTuple):
    """All results of the reference.

    ``iterations`` is None if the ranks' iterations cannot be paired.
    """

    ranges: list[Range]
    meaning_of: dict[Range, Meaning]
    attributions: list[Attribution]
    operations: list[Operation]
    iterations: list[dict[Rank, RankIteration]] | None
    active: list[dict[Rank, int]]


def pair(entries: dict[Rank, list[Entry]], marked: dict[Rank, bool]) -> list[int] | None:
    """Return all ranks' iterations, or None if they cannot be paired.

    Only ranks that have an F, B or W are considered. Iterations with equal marks are paired.
    Without marks, iterations are paired by order, provided that all ranks have the same number of
    iterations with the same microbatches.
    """
    taking_part = [r for r in entries if any(e.meaning.phase in COUNTED for e in entries[r])]
    if not taking_part or len({marked[r] for r in taking_part}) > 1:
        return None if taking_part else []
    contents = []
    for rank in taking_part:
        microbatches: dict[int, set[object]] = {e.iteration: set() for e in entries[rank]}
        for e in entries[rank]:
            if e.is_forward:
                microbatches[e.iteration].add(e.meaning.microbatches)
        contents.append(microbatches)
    if not marked[taking_part[0]] and any(microbatches != contents[0] for microbatches in contents):
        return None
    numbers = {n for microbatches in contents for n in microbatches}
    return sorted(numbers, key=order_of if marked[taking_part[0]] else None)


def analyze(path: Path) -> Analysis:
    """Analyze one profile, which contains one host.

    The result's iterations are None if the iterations of the ranks cannot be paired.
    """
    capture = read(path)
    in_order = sorted(capture.ranges, key=lambda r: (r.start, r.row))
    meanings = {r: parse(r.name) for r in in_order}
    meaning_of = {r: n for r, n in meanings.items() if isinstance(n, Meaning)}
    attributions = attribute(capture, meaning_of)
    where = ranks_of_ranges(capture, meaning_of, attributions)
    entries: dict[Rank, list[Entry]] = {}
    marked: dict[Rank, bool] = {}
    for rank in sorted({w.rank for w in capture.work}):
        entries_of_rank = [Entry(r, n) for r, n in meaning_of.items() if rank in where[r]]
        threads = {e.range.thread for e in entries_of_rank}
        marks = [(r, n) for r, n in meanings.items() if isinstance(n, int) and r.thread in threads]
        entries[rank] = place_in_iterations(relabel(entries_of_rank), marks)
        marked[rank] = bool(marks)
    operations = [
        operation_of(rank, occurrence, parts, attributions, meaning_of)
        for rank, entries_of_rank in entries.items()
        for occurrence, parts in group(entries_of_rank)
    ]
    # Collect compute kernels outside every compute operation, including those in a RECV range.
    unattributed: dict[Rank, list[Span]] = defaultdict(list)
    for a in attributions:
        if is_compute(a.work) and (a.range is None or meaning_of[a.range].phase not in COMPUTE):
            unattributed[a.work.rank] += times([a.work])
    numbers = pair(entries, marked)
    iterations = None
    active = []
    if numbers is not None:
        pairs = [(n, after) for n, after in pairwise([*numbers, None]) if n is not None]
        iterations = [compute_numbers(n, after, operations, unattributed) for n, after in pairs]
        for number, iteration in zip(numbers, iterations, strict=True):
            work_operations = [o for o in operations if o.iteration == number and o.phase in WORK]
            active.append(
                {
                    r: measure_union(
                        times(k for o in work_operations if o.rank == r for k in o.kernels)
                    )
                    for r in iteration
                }
            )
    return Analysis(in_order, meaning_of, attributions, operations, iterations, active)


class Coverage(NamedTuple):
    """Counts of kernels, and sums of durations in ns."""

    kernels: int
    linked: int
    attributed: int
    cross: int
    gpu_ns: int
    attributed_gpu_ns: int
    comm_ns: int
    copy_ns: int


def coverage(analysis: Analysis) -> Coverage:
    """Return how many kernels and how much GPU time are attributed to operations.

    A kernel is attributed if it belongs to any operation, including communication. Attributed GPU
    time counts only compute kernels in compute operations.
    """

    def total(chosen: Iterable[Attribution]) -> int:
        return sum(a.work.end - a.work.start for a in chosen)

    kernels = [a for a in analysis.attributions if a.work.kernel]
    compute = [a for a in kernels if is_compute(a.work)]
    return Coverage(
        len(kernels),
        sum(a.how != "unlinked" for a in kernels),
        sum(a.range is not None for a in kernels),
        sum(a.how == "cross" for a in kernels),
        total(compute),
        total(
            a
            for a in compute
            if a.range is not None and analysis.meaning_of[a.range].phase in COMPUTE
        ),
        total(a for a in kernels if is_communication(a.work)),
        total(a for a in analysis.attributions if not a.work.kernel),
    )
