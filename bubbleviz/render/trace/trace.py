"""Trace: a report as the processes, slices, flows and counters that trace viewers show.

Ranks are processes. Each has a track of its operations, of its communication, of its bubbles and
of its iterations, and its ratio as a counter. Flows lead each microbatch from stage to stage, to
the last one and back::

    rank 0   F 3 ──┐                ┌─> B 3
    rank 1         └─> F 3 ──> B 3 ─┘
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import starmap
from typing import NamedTuple, TypeAlias

import numpy as np

from bubbleviz.count.rank_iterations import RankIteration
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.dependencies import dependencies_of
from bubbleviz.model.columns import NONE, Ints, marked
from bubbleviz.model.grouping import CodedTexts
from bubbleviz.model.phases import COMMUNICATION, COMPUTE, Phase
from bubbleviz.model.texts import one_line
from bubbleviz.report.labels import operation_labels
from bubbleviz.report.report import Report

# Tracks: what trace viewers show, which know processes, slices in time, flows and counters.
#
# What overlaps on a track is spread to lanes, so that no time is lost::
#
#     lane 0   ├── F 3 ──┤├─── B 1 ───┤
#     lane 1        ├── F 4 ──┤
#
# Times are nanoseconds since the base of the trace, never negative.


#: Properties of a trace as a whole.
Value: TypeAlias = int | float | str


#: A property of each slice; None where it has none.
Column: TypeAlias = Sequence[int | float | str | None]
#: The flows of each slice, by number.
Flows: TypeAlias = Sequence[Sequence[int]]


class Slice(NamedTuple):
    """A slice of a track, as :class:`SliceTrack` has them, with the properties that it has."""

    start_ns: int
    end_ns: int
    lane: int
    name: str
    arguments: dict[str, Value]
    leaving: Sequence[int]
    entering: Sequence[int]


@dataclass(frozen=True)
class SliceTrack:
    """Slices of one kind, in order of (start, end); those of one lane follow each other.

    Attributes:
        name: of the track.
        category: of its slices.
        start_ns: since the trace's base, shape (slices,).
        end_ns: likewise.
        names: of the slices.
        arguments: properties of the slices by name.
        leaving: the flows that leave a slice; empty where none leaves any.
        entering: the flows that enter one, likewise.
    """

    name: str
    category: str
    start_ns: Ints
    end_ns: Ints
    names: Sequence[str]
    arguments: Mapping[str, Column]
    leaving: Flows = ()
    entering: Flows = ()

    @cached_property
    def lane(self) -> Ints:
        """By slice, from 0: it begins where the one before it in its lane has ended, or later."""
        return lanes_of(self.start_ns, self.end_ns)

    @property
    def lanes(self) -> int:
        """How many lanes it has; one where it has no slices."""
        return int(self.lane.max(initial=0)) + 1

    def slices(self) -> Iterator[Slice]:
        """Yield the slices in their order."""
        columns = (column.tolist() for column in (self.start_ns, self.end_ns, self.lane))
        none: Flows = [()] * len(self.names)
        flows = self.leaving or none, self.entering or none
        rows = zip(*columns, self.names, *flows, strict=True)
        for row, (start_ns, end_ns, lane, name, leaving, entering) in enumerate(rows):
            own = {
                key: value
                for key, each in self.arguments.items()
                if (value := each[row]) is not None
            }
            yield Slice(start_ns, end_ns, lane, name, own, leaving, entering)


@dataclass(frozen=True)
class Process:
    """What a viewer takes for a process: a rank, or all of them.

    Attributes:
        number: stands for the process id, which is not unique over hosts: 1 for rank 0.
        order: place among the processes.
        name: the rank's label.
        labels: stage, pipeline, host and process of the rank.
        ratios: by iteration: its start since the trace's base, and the ratio there.
        tracks: in order of display.
    """

    number: int
    order: int
    name: str
    labels: tuple[str, ...]
    ratios: Sequence[tuple[int, float]]
    tracks: tuple[SliceTrack, ...]


def lanes_of(start_ns: Ints, end_ns: Ints) -> Ints:
    """Return the lane of each slice: the lowest that is free when it starts.

    Args:
        start_ns: in order of (start, end), shape (slices,).
        end_ns: likewise.
    """
    lane: list[int] = []
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    for start, end in zip(start_ns.tolist(), end_ns.tolist(), strict=True):
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        lane.append(heappop(free) if free else len(busy))
        heappush(busy, (end, lane[-1]))
    return np.array(lane, np.int64)


#: Of a name from a profile, characters; viewers show less, and each repetition takes room.
_LONGEST_NAME = 200
#: Times below this are whole numbers in every viewer, those that compute in floats included.
_WHOLE_NS = 1 << 53
#: What the process of the ratio over all ranks is called.
ALL_RANKS = "all ranks"


@dataclass(frozen=True)
class Trace:
    """A report, seen as a trace.

    Attributes:
        report: what is shown.
        ratio: name of the ratio whose windows and bubbles are shown: the headline, where any rank
            has it.
        base_ns: time 0 of the trace on the report's clock: 0, unless times of the report are
            negative or too large for viewers.
        first_ns: when the first slice begins, since the base.
        names: texts of ranges and calls, for people.
        rank_labels: likewise those of the ranks.
        labels: of each operation, as tables name it.
        leaving: flows by row of operations, where these pass their results on.
        entering: likewise where operations take them.
    """

    report: Report
    ratio: str
    base_ns: int
    first_ns: int
    names: tuple[str, ...]
    rank_labels: tuple[str, ...]
    labels: CodedTexts
    leaving: Mapping[int, Sequence[int]]
    entering: Mapping[int, Sequence[int]]

    def facts(self) -> dict[str, Value]:
        """Return the properties of the trace as a whole."""
        report = self.report
        return {
            "version": report.version,
            "headline": report.headline,
            "headline_reason": _named(report.headline_reason),
            "ratio": self.ratio,
            "convention": _named(report.convention),
            "base_ns": self.base_ns,
        }

    def processes(self) -> Iterator[Process]:
        """Yield all ranks as one, then each rank; a rank's tracks are made when it is its turn."""
        by_rank: list[list[tuple[int, RankIteration]]] = [[] for _ in self.report.ranks]
        for iteration in self.report.iterations:
            for entry in iteration.ranks:
                if self.ratio in entry.accounts:
                    by_rank[entry.rank].append((iteration.index, entry))
        over_all = []
        for iteration in self.report.iterations:
            ratio = iteration.ratios.get(self.ratio)
            starts = [
                r.accounts[self.ratio].start_ns for r in iteration.ranks if self.ratio in r.accounts
            ]
            if ratio is not None and ratio.value is not None and starts:
                over_all.append((min(starts) - self.base_ns, ratio.value))
        yield Process(len(by_rank) + 1, 0, ALL_RANKS, (), over_all, ())
        for rank, own_iterations in zip(self.report.ranks, by_rank, strict=True):
            stage = () if rank.stage is None else (f"stage {rank.stage}",)
            pipeline = () if rank.pipeline is None else (f"pipeline {rank.pipeline}",)
            yield Process(
                number=rank.index + 1,
                order=rank.index + 1,
                name=_named(rank.label),
                labels=(*stage, *pipeline, f"host {_named(rank.host)}", f"process {rank.pid}"),
                ratios=[
                    (own.accounts[self.ratio].start_ns - self.base_ns, value)
                    for _, own in own_iterations
                    if (value := own.bubble_ratio.get(self.ratio)) is not None
                ],
                tracks=(
                    self._operations("operations", "operation", rank.index, COMPUTE),
                    self._operations("communication", "communication", rank.index, COMMUNICATION),
                    self._bubbles(rank.index),
                    self._iterations(own_iterations),
                ),
            )

    def _operations(
        self, name: str, category: str, rank: int, phases: Sequence[Phase]
    ) -> SliceTrack:
        operations = self.report.operations
        low, high = np.searchsorted(operations.rank, (rank, rank + 1)).tolist()
        shown = (operations.has_span[low:high] == 1) & np.isin(operations.phase[low:high], phases)
        rows = low + np.flatnonzero(shown)
        rows = rows[np.lexsort((rows, operations.end_ns[rows], operations.start_ns[rows]))]
        table = operations.take(rows)

        def known(name: str, least: int = 0) -> Column:
            return [value if value >= least else None for value in getattr(table, name).tolist()]

        names = zip(*(known(n) for n in ("phase", "microbatch", "second_microbatch")), strict=True)
        return SliceTrack(
            name,
            category,
            table.start_ns - self.base_ns,
            table.end_ns - self.base_ns,
            list(starmap(_operation_name, names)),
            {
                "phase": [Phase(phase).label for phase in table.phase.tolist()],
                "microbatch": known("microbatch"),
                "second_microbatch": known("second_microbatch"),
                "chunk": known("chunk"),
                "second_chunk": known("second_chunk"),
                "sequence": known("sequence", 1),
                "occurrence": known("occurrence", 1),
                "iteration": known("iteration"),
                "kernels": known("kernels"),
                "range": _texts(self.names, table.name_id),
                "host_start_ns": table.host_start_ns.tolist(),
            },
            [self.leaving.get(row, ()) for row in rows.tolist()],
            [self.entering.get(row, ()) for row in rows.tolist()],
        )

    def _bubbles(self, rank: int) -> SliceTrack:
        report, bubbles = self.report, self.report.bubbles
        low, high = np.searchsorted(bubbles.rank, (rank, rank + 1)).tolist()
        rows = np.arange(low, high)
        rows = rows[np.lexsort((rows, bubbles.end_ns[rows], bubbles.start_ns[rows]))]
        table = bubbles.take(rows)
        of_host = table.cause == Cause.HOST
        call, around = (
            _texts(self.names, np.where(of_host, column, NONE))
            for column in (table.host_call, table.host_range)
        )
        before, after, peer_operation = (
            _texts(self.labels.texts, self.labels.at(rows).code)
            for rows in (table.before, table.after, table.peer_operation)
        )
        peer = CodedTexts(report.operations.rank, self.rank_labels).at(table.peer_operation)
        return SliceTrack(
            "bubbles",
            "bubble",
            table.start_ns - self.base_ns,
            table.end_ns - self.base_ns,
            [Cause(cause).label for cause in table.cause.tolist()],
            {
                "ratio": [bubbles.ratio] * len(table),
                "iteration": table.iteration.tolist(),
                "idle_ns": (table.end_ns - table.start_ns).tolist(),
                "before": before,
                "after": after,
                "peer": _texts(peer.texts, peer.code),
                "peer_operation": peer_operation,
                "collective": _texts(bubbles.collectives, table.collective),
                "host_call": call,
                "host_range": around,
            },
        )

    def _iterations(self, iterations: Sequence[tuple[int, RankIteration]]) -> SliceTrack:
        windows = [(index, rank, rank.accounts[self.ratio]) for index, rank in iterations]
        windows.sort(key=lambda window: (window[2].start_ns, window[2].end_ns, window[0]))
        shown = [self.report.iterations[index] for index, *_ in windows]

        def of_window(name: str) -> list[int]:
            return [getattr(account, name) for *_, account in windows]

        return SliceTrack(
            "iterations",
            "iteration",
            np.array(of_window("start_ns"), np.int64) - self.base_ns,
            np.array(of_window("end_ns"), np.int64) - self.base_ns,
            [f"iteration {_named(iteration.name)}" for iteration in shown],
            {
                "iteration": [index for index, *_ in windows],
                "kind": [iteration.kind for iteration in shown],
                "complete": [int(iteration.complete) for iteration in shown],
                "averaged": [int(iteration.averaged) for iteration in shown],
                "ratio": [self.ratio] * len(windows),
                "bubble_ratio": [rank.bubble_ratio.get(self.ratio) for _, rank, _ in windows],
                "bubble_ns": of_window("bubble_ns"),
                "window_ns": of_window("window_ns"),
            },
        )


def trace_of(report: Report) -> Trace:
    """Return a report as a trace."""
    ratio = report.explanation.listed_ratio
    operations, spanned = report.operations, report.operations.has_span == 1
    accounts = [
        (account.start_ns, account.end_ns)
        for iteration in report.iterations
        for rank in iteration.ranks
        if (account := rank.accounts.get(ratio)) is not None
    ]
    times_ns = np.concatenate(
        (
            np.array(accounts, np.int64).reshape(-1, 2),
            np.stack((operations.start_ns[spanned], operations.end_ns[spanned]), axis=1),
            np.stack((report.bubbles.start_ns, report.bubbles.end_ns), axis=1),
        )
    )
    # The start of the first slice of a trace and the end of the last; 0 without any.
    first_ns = int(times_ns[:, 0].min()) if len(times_ns) else 0
    last_ns = int(times_ns[:, 1].max()) if len(times_ns) else 0
    base_ns = first_ns if first_ns < 0 or last_ns >= _WHOLE_NS else 0
    before, after = _flows_of(report)
    return Trace(
        report=report,
        ratio=ratio,
        base_ns=base_ns,
        first_ns=first_ns - base_ns,
        names=tuple(map(_named, report.operations.names)),
        rank_labels=tuple(_named(rank.label) for rank in report.ranks),
        labels=operation_labels(report),
        leaving=_by_row(before),
        entering=_by_row(after),
    )


def _texts(texts: Sequence[str], code: Ints) -> Column:
    """Return the text of each code; None for -1."""
    return [texts[place] if place >= 0 else None for place in code.tolist()]


def _operation_name(phase: int, first: int | None, second: int | None) -> str:
    numbers = ";".join(str(number) for number in (first, second) if number is not None)
    return f"{Phase(phase).label} {numbers}".rstrip()


def _named(text: str) -> str:
    """Return a text from a profile for a viewer: on one line, printable, not too long."""
    return one_line(text[: _LONGEST_NAME + 1], _LONGEST_NAME)


def _flows_of(report: Report) -> tuple[Ints, Ints]:
    """Return the flows of microbatches from stage to stage, and from F to B at their turn.

    A flow is two rows of the operations table: whose result is passed on, and to which.

    The input of a W is no flow, nor is the F that a B takes beside the B of the next stage. A
    result that starts before its input, by contradicting clocks, has none: it would go back in
    time.
    """
    operations = report.operations
    dependencies = dependencies_of(operations, tuple(report.ranks))
    stage = operations.virtual_stage
    steps = dependencies.remote(operations.rank) | (
        stage[dependencies.after] != stage[dependencies.before]
    )
    stepped = marked(len(operations), dependencies.after[steps])
    kept = (operations.phase[dependencies.after] != Phase.W) & (
        steps | ~stepped[dependencies.after]
    )
    kept &= operations.start_ns[dependencies.before] < operations.start_ns[dependencies.after]
    return dependencies.before[kept], dependencies.after[kept]


def _by_row(ends: Ints) -> dict[int, list[int]]:
    """Return the flows of each row of the operations that has any; the first is number 1."""
    flows: dict[int, list[int]] = {}
    for number, row in enumerate(ends.tolist(), 1):
        flows.setdefault(row, []).append(number)
    return flows
