"""What a planted run really did: operations, clocks, and ratios by plain slow exact code.

The file ``truth.json`` beside the exports::

    {"schema": "bubbleviz.truth/1",
     "planting": {every option},
     "files":  [{"path", "host", "session_start_ns", "utc_epoch_ns", "clock_error_ns",
                 "drift_ppb", "kernels", "unlinked_kernels", "cross_thread_kernels",
                 "unranged_kernels", "gpu_ns", "comm_ns", "copy_ns", "calls", "ranges",
                 "step_ns", "step_at_ns"}],
     "ranks":  [{"rank", "file", "host", "pid", "device_id", "uuid", "stage", "pipeline"}],
     "operation_columns": [...], "operations": [[...], ...],
     "unattributed_columns": ["rank", "start_ns", "end_ns", "where"], "unattributed": [[...], ...],
     "overheads": [[rank, start_ns, end_ns], ...],
     "iterations": [{"index", "kind", "complete", "microbatches", "start_ns", "end_ns",
                     "bubble_ratio": {"schedule", "stage", "step", "period"},
                     "bubble_low": {...}, "window_ns": {...}, "ranks": [{"rank", "compute_ns",
                     "first_ns", "last_ns"}]}]}

Times without a prefix are nanoseconds on the true global clock; ``file_`` times are the file's
own. A host's clock shows ``c(t) = t + t * drift_ppb // 10**9`` at the true time t, and ``step_ns``
more from ``step_at_ns`` on; a file's time is ``c(t) - c(session_start_ns)``, the latter without the
step, and ``utc_epoch_ns`` is ``c(session_start_ns)`` after the epoch plus
``clock_error_ns``. ``busy`` lists the
busy intervals where the span has holes, else it is empty.
An operation without device work has null times. ``unranged_kernels`` lie in no range at all;
``unattributed`` lists the compute kernels outside every compute operation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

Interval = tuple[int, int]
WORK = ("F", "B", "W", "BW")
RATIOS = ("schedule", "stage", "step", "period")


@dataclass(frozen=True)
class TrueFile:
    """One export and its clock."""

    path: str
    host: str
    session_start_ns: int
    utc_epoch_ns: int
    clock_error_ns: int
    drift_ppb: int
    kernels: int
    unlinked_kernels: int
    cross_thread_kernels: int
    unranged_kernels: int
    gpu_ns: int
    comm_ns: int
    copy_ns: int
    calls: int
    ranges: int
    step_ns: int = 0
    step_at_ns: int = 0


@dataclass(frozen=True)
class TrueRank:
    """One device of one process."""

    rank: int
    file: str
    host: str
    pid: int
    device_id: int
    uuid: str
    stage: int
    pipeline: int = 0


@dataclass(frozen=True)
class TrueOperation:
    """One operation; of its span what the capture holds."""

    rank: int
    iteration: int
    phase: str
    microbatch: int | None
    chunk: int | None
    virtual_stage: int | None
    name: str
    start_ns: int | None
    end_ns: int | None
    file_start_ns: int | None
    file_end_ns: int | None
    kernels: int
    active_ns: int
    complete: bool
    cross_thread: bool
    busy: tuple[Interval, ...]

    @property
    def busy_intervals(self) -> tuple[Interval, ...]:
        """The busy intervals, which are the span unless it has holes."""
        if self.start_ns is None or self.end_ns is None:
            return ()
        return self.busy or ((self.start_ns, self.end_ns),)


@dataclass(frozen=True)
class Unattributed:
    """A compute kernel outside every compute operation."""

    rank: int
    start_ns: int
    end_ns: int
    where: str


@dataclass(frozen=True)
class TrueRankIteration:
    """One rank in one iteration."""

    rank: int
    compute_ns: int
    first_ns: int
    last_ns: int


@dataclass(frozen=True)
class TrueIteration:
    """One iteration and its ratios; null where they cannot be told."""

    index: int
    kind: str
    complete: bool
    microbatches: int
    start_ns: int | None
    end_ns: int | None
    bubble_ratio: dict[str, float | None]
    bubble_low: dict[str, float | None]
    window_ns: dict[str, int | None]
    ranks: tuple[TrueRankIteration, ...]


@dataclass(frozen=True)
class Truth:
    """All of it."""

    planting: dict[str, Any]
    files: tuple[TrueFile, ...]
    ranks: tuple[TrueRank, ...]
    operations: tuple[TrueOperation, ...]
    unattributed: tuple[Unattributed, ...]
    overheads: tuple[tuple[int, int, int], ...]
    iterations: tuple[TrueIteration, ...]

    def to_json(self) -> str:
        """Return the text of ``truth.json``: one operation a line."""
        head = {
            "schema": "bubbleviz.truth/1",
            "planting": self.planting,
            "files": [asdict(file) for file in self.files],
            "ranks": [asdict(rank) for rank in self.ranks],
            "operation_columns": [f.name for f in fields(TrueOperation)],
            "operations": [astuple(operation) for operation in self.operations],
            "unattributed_columns": [f.name for f in fields(Unattributed)],
            "unattributed": [astuple(kernel) for kernel in self.unattributed],
            "overheads": self.overheads,
            "iterations": [asdict(iteration) for iteration in self.iterations],
        }
        return "{" + ",\n".join(f"{json.dumps(k)}: {_lines(v)}" for k, v in head.items()) + "}\n"


def _lines(value: object) -> str:
    """Return JSON text, a list with one item a line."""
    if not isinstance(value, (list, tuple)) or not value:
        return json.dumps(value)
    return "[\n" + ",\n".join(json.dumps(item) for item in value) + "\n]"


def read_truth(path: Path) -> Truth:
    """Return what ``truth.json`` holds."""
    data = json.loads(path.read_text(encoding="utf-8"))
    iterations = [
        {**item, "ranks": tuple(TrueRankIteration(**rank) for rank in item["ranks"])}
        for item in data["iterations"]
    ]
    operations = (
        dict(zip(data["operation_columns"], row, strict=True)) for row in data["operations"]
    )
    return Truth(
        planting=data["planting"],
        files=tuple(TrueFile(**item) for item in data["files"]),
        ranks=tuple(TrueRank(**item) for item in data["ranks"]),
        operations=tuple(
            TrueOperation(**{**item, "busy": tuple((low, high) for low, high in item["busy"])})
            for item in operations
        ),
        unattributed=tuple(Unattributed(*row) for row in data["unattributed"]),
        overheads=tuple((row[0], row[1], row[2]) for row in data["overheads"]),
        iterations=tuple(TrueIteration(**item) for item in iterations),
    )


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union as disjoint, sorted intervals."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def length(intervals: Iterable[Interval]) -> int:
    """Return the length of the union."""
    return sum(end - start for start, end in union(intervals))


def clip(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """Return the parts inside the window."""
    low, high = window
    cut = ((max(start, low), min(end, high)) for start, end in intervals)
    return [(start, end) for start, end in cut if start < end]


def iterations_of(
    operations: Sequence[TrueOperation], unattributed: Sequence[Unattributed]
) -> tuple[TrueIteration, ...]:
    """Return the iterations with their ratios, as ``bubbleviz guide ratios`` defines them."""
    book = _Book(operations, unattributed)
    return tuple(book.iteration(k) for k in sorted({op.iteration for op in operations}))


class _Book:
    """Intervals by rank and iteration."""

    def __init__(
        self, operations: Sequence[TrueOperation], unattributed: Sequence[Unattributed]
    ) -> None:
        self.operations = operations
        self.work: dict[tuple[int, int], list[Interval]] = {}  # by (iteration, rank)
        self.step: dict[tuple[int, int], list[Interval]] = {}  # the same, Optimizer included
        self.all: dict[int, list[Interval]] = {}
        self.stray: dict[int, list[Interval]] = {}
        for op in operations:
            key = op.iteration, op.rank
            self.step.setdefault(key, []).extend(op.busy_intervals)
            self.all.setdefault(op.rank, []).extend(op.busy_intervals)
            if op.phase in WORK and op.busy_intervals:
                self.work.setdefault(key, []).extend(op.busy_intervals)
        for kernel in unattributed:
            self.stray.setdefault(kernel.rank, []).append((kernel.start_ns, kernel.end_ns))
        self.all = {rank: union(intervals) for rank, intervals in self.all.items()}

    def bounds(self, k: int) -> dict[int, Interval]:
        """Return first start and last end of each rank's work in the iteration."""
        return {
            rank: (min(i[0] for i in intervals), max(i[1] for i in intervals))
            for (iteration, rank), intervals in self.work.items()
            if iteration == k
        }

    def iteration(self, k: int) -> TrueIteration:
        """Return the iteration of that number."""
        own = [op for op in self.operations if op.iteration == k]
        work = [op for op in own if op.phase in WORK]
        bounds = self.bounds(k)
        complete = all(op.complete for op in work)
        ends = [i[1] for op in own for i in op.busy_intervals]
        start = min((low for low, _ in bounds.values()), default=None)
        windows = self.windows(k, bounds, max(ends, default=0)) if complete else {}
        microbatches = len({op.microbatch for op in work if op.phase == "F"})
        return TrueIteration(
            index=k,
            kind=self.kind(work),
            complete=complete,
            microbatches=microbatches,
            start_ns=start,
            end_ns=max(ends, default=None),
            bubble_ratio={name: self.ratio(k, name, windows.get(name), 0) for name in RATIOS},
            bubble_low={name: self.ratio(k, name, windows.get(name), 1) for name in RATIOS},
            window_ns={name: _mean_length(windows.get(name)) for name in RATIOS},
            ranks=tuple(
                TrueRankIteration(rank, length(self.work[k, rank]), *bounds[rank])
                for rank in sorted(bounds)
            ),
        )

    def kind(self, work: Sequence[TrueOperation]) -> str:
        """Return whether an iteration trains, or else whether another one does."""
        if any(op.phase != "F" for op in work):
            return "training"
        return "evaluation" if any(op.phase != "F" for op in self.operations) else "inference"

    def windows(
        self, k: int, bounds: dict[int, Interval], last: int
    ) -> dict[str, dict[int, Interval]]:
        """Return the window of each rank, by name of the ratio."""
        if not bounds:
            return {}
        low = min(start for start, _ in bounds.values())
        high = max(end for _, end in bounds.values())
        longest = max(end - start for start, end in bounds.values())
        found = {
            "schedule": dict.fromkeys(bounds, (low, high)),
            "stage": {rank: (start, start + longest) for rank, (start, _) in bounds.items()},
            "step": dict.fromkeys(bounds, (low, last)),
        }
        if not all(op.complete for op in self.operations if op.iteration == k):
            del found["step"]
        following = self.bounds(k + 1)
        if following.keys() == bounds.keys():
            found["period"] = {rank: (bounds[rank][0], following[rank][0]) for rank in bounds}
        return found

    def ratio(
        self, k: int, name: str, windows: dict[int, Interval] | None, with_stray: int
    ) -> float | None:
        """Return 1 - busy time / windows, all ranks together."""
        if not windows:
            return None
        busy = 0
        for rank, window in windows.items():
            if name == "period":
                intervals = clip(self.all[rank], window)
            else:
                intervals = (self.step if name == "step" else self.work)[k, rank]
            busy += length(intervals)
            if with_stray:
                busy += self.stray_in(rank, window)
        total = sum(end - start for start, end in windows.values())
        return float(1 - Fraction(busy, total)) if total else None

    def stray_in(self, rank: int, window: Interval) -> int:
        """Return the unattributed compute of the rank in the window."""
        stray = clip(self.stray.get(rank, []), window)
        return length([*stray, *clip(self.all[rank], window)]) - length(
            clip(self.all[rank], window)
        )


def _mean_length(windows: dict[int, Interval] | None) -> int | None:
    """Return the length of the window; of ``period``, the mean over the ranks, rounded down."""
    if not windows:
        return None
    return sum(end - start for start, end in windows.values()) // len(windows)
