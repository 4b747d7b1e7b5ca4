"""Trace: a report as the processes, slices, flows and counters that trace viewers show.

Ranks are processes. Each has a track of its operations, of its communication, of its bubbles and
of its iterations, and its ratio as a counter. Flows lead each microbatch from stage to stage, to
the last one and back::

    rank 0   F 3 ──┐                ┌─> B 3
    rank 1         └─> F 3 ──> B 3 ─┘
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from bubbleviz.count.rank_iterations import RankIteration
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.dependencies import dependencies_of
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import CodedTexts, Numbering, coded_texts
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


@dataclass(frozen=True)
class Numbers(Table):
    """A number of each slice.

    Attributes:
        values: whole numbers, or fractions, shape (slices,).
        known: whether a slice has one, shape (slices,).
    """

    values: Ints | npt.NDArray[np.float64]
    known: Bools


@dataclass(frozen=True)
class FlowEnds(Table):
    """Ends of flows in slices of a track, in order of (place, flow).

    Attributes:
        place: of the slice in its track.
        flow: number of the flow.
    """

    place: Ints
    flow: Ints

    def by_slice(self, count: int) -> list[list[int]]:
        """Return the flows of each of so many slices."""
        flows: list[list[int]] = [[] for _ in range(count)]
        for place, flow in zip(self.place.tolist(), self.flow.tolist(), strict=True):
            flows[place].append(flow)
        return flows


class Slice(NamedTuple):
    """A slice of a track, as :class:`SliceTrack` has them, with the properties that it has."""

    start_ns: int
    end_ns: int
    lane: int
    name: str
    arguments: dict[str, Value]
    leaving: list[int]
    entering: list[int]


@dataclass(frozen=True)
class SliceTrack:
    """Slices of one kind, in order of (start, end); those of one lane follow each other.

    Attributes:
        name: of the track.
        category: of its slices.
        start_ns: since the trace's base, shape (slices,).
        end_ns: likewise.
        lane: 0 and up; a slice begins where the one before it in its lane has ended, or later.
        names: of the slices.
        arguments: properties of the slices by name; every slice has the first one.
        leaving: the flows that leave a slice.
        entering: the flows that enter one.
    """

    name: str
    category: str
    start_ns: Ints
    end_ns: Ints
    lane: Ints
    names: CodedTexts
    arguments: Mapping[str, CodedTexts | Numbers]
    leaving: FlowEnds
    entering: FlowEnds

    @property
    def lanes(self) -> int:
        """How many lanes it has; one where it has no slices."""
        return int(self.lane.max(initial=0)) + 1

    def slices(self) -> Iterator[Slice]:
        """Yield the slices in their order."""
        arguments = [(name, _listed(values)) for name, values in self.arguments.items()]
        columns = (column.tolist() for column in (self.start_ns, self.end_ns, self.lane))
        flows = (ends.by_slice(len(self.lane)) for ends in (self.leaving, self.entering))
        rows = zip(*columns, self.names.listed(), *flows, strict=True)
        for row, (start_ns, end_ns, lane, name, leaving, entering) in enumerate(rows):
            own = {key: value for key, each in arguments if (value := each[row]) is not None}
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


def _listed(values: CodedTexts | Numbers) -> Sequence[Value | None]:
    """Return the argument of each slice; None where it has none."""
    if isinstance(values, CodedTexts):
        return [values.texts[code] if code >= 0 else None for code in values.code.tolist()]
    known = zip(values.values.tolist(), values.known.tolist(), strict=True)
    return [value if is_known else None for value, is_known in known]


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
        leaving: flows, where operations pass their results on; places are rows of operations.
        entering: likewise where operations take them.
    """

    report: Report
    ratio: str
    base_ns: int
    first_ns: int
    names: tuple[str, ...]
    rank_labels: tuple[str, ...]
    labels: CodedTexts
    leaving: FlowEnds
    entering: FlowEnds

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
        place = np.full(high - low, NONE, np.int64)
        place[rows - low] = np.arange(len(rows))

        def known(name: str, least: int = 0) -> Numbers:
            values: Ints = getattr(table, name)
            return Numbers(values, values >= least)

        # Every slice has a phase.
        return self._track(
            name,
            category,
            table.start_ns,
            table.end_ns,
            coded_texts(_operation_name, table.phase, table.microbatch, table.second_microbatch),
            {
                "phase": coded_texts(lambda phase: Phase(phase).label, table.phase),
                "microbatch": known("microbatch"),
                "second_microbatch": known("second_microbatch"),
                "chunk": known("chunk"),
                "second_chunk": known("second_chunk"),
                "sequence": known("sequence", 1),
                "occurrence": Numbers(table.occurrence, table.occurrence != 0),
                "iteration": known("iteration"),
                "kernels": _numbers(table.kernels),
                "range": CodedTexts(table.name_id, self.names).occurring(),
                "host_start_ns": _numbers(table.host_start_ns),
            },
            _ends_in(self.leaving, low, place),
            _ends_in(self.entering, low, place),
        )

    def _bubbles(self, rank: int) -> SliceTrack:
        report, bubbles = self.report, self.report.bubbles
        low, high = np.searchsorted(bubbles.rank, (rank, rank + 1)).tolist()
        rows = np.arange(low, high)
        rows = rows[np.lexsort((rows, bubbles.end_ns[rows], bubbles.start_ns[rows]))]
        table = bubbles.take(rows)
        causes = CodedTexts(table.cause, [cause.label for cause in Cause])
        of_host = table.cause == Cause.HOST
        call, around = (
            CodedTexts(np.where(of_host, column, NONE), self.names).occurring()
            for column in (table.host_call_id, table.host_range_id)
        )
        collective = CodedTexts(table.collective, bubbles.collectives)
        peer = CodedTexts(report.operations.rank, self.rank_labels).at(table.peer_operation)
        return self._track(
            "bubbles",
            "bubble",
            table.start_ns,
            table.end_ns,
            causes,
            {
                "ratio": CodedTexts(np.zeros(len(table), np.int64), [bubbles.ratio]),
                "iteration": _numbers(table.iteration),
                "idle_ns": _numbers(table.end_ns - table.start_ns),
                "before": self.labels.at(table.before).occurring(),
                "after": self.labels.at(table.after).occurring(),
                "peer": peer.occurring(),
                "peer_operation": self.labels.at(table.peer_operation).occurring(),
                "collective": collective.occurring(),
                "host_call": call,
                "host_range": around,
            },
        )

    def _iterations(self, iterations: Sequence[tuple[int, RankIteration]]) -> SliceTrack:
        windows = [(index, rank, rank.accounts[self.ratio]) for index, rank in iterations]
        windows.sort(key=lambda window: (window[2].start_ns, window[2].end_ns, window[0]))
        shown = [self.report.iterations[index] for index, *_ in windows]

        def whole(values: Iterable[int]) -> Ints:
            return np.fromiter(values, np.int64, len(windows))

        def of_window(name: str) -> Ints:
            return whole(getattr(account, name) for *_, account in windows)

        # None becomes NaN.
        ratios = np.array([rank.bubble_ratio.get(self.ratio) for _, rank, _ in windows], np.float64)
        return self._track(
            "iterations",
            "iteration",
            of_window("start_ns"),
            of_window("end_ns"),
            _each(f"iteration {_named(iteration.name)}" for iteration in shown),
            {
                "iteration": _numbers(whole(index for index, *_ in windows)),
                "kind": _each(iteration.kind for iteration in shown),
                "complete": _numbers(whole(iteration.complete for iteration in shown)),
                "averaged": _numbers(whole(iteration.averaged for iteration in shown)),
                "ratio": _each([self.ratio] * len(windows)),
                "bubble_ratio": Numbers(np.nan_to_num(ratios), ~np.isnan(ratios)),
                "bubble_ns": _numbers(of_window("bubble_ns")),
                "window_ns": _numbers(of_window("window_ns")),
            },
        )

    def _track(
        self,
        name: str,
        category: str,
        start_ns: Ints,
        end_ns: Ints,
        names: CodedTexts,
        arguments: Mapping[str, CodedTexts | Numbers],
        leaving: FlowEnds | None = None,
        entering: FlowEnds | None = None,
    ) -> SliceTrack:
        none = np.empty(0, np.int64)
        return SliceTrack(
            name=name,
            category=category,
            start_ns=start_ns - self.base_ns,
            end_ns=end_ns - self.base_ns,
            lane=lanes_of(start_ns, end_ns),
            names=names,
            # What no slice has need not be looked at slice by slice.
            arguments={name: own for name, own in arguments.items() if own.known.any()},
            leaving=leaving or FlowEnds(none, none),
            entering=entering or FlowEnds(none, none),
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
        leaving=_ends_by_row(before),
        entering=_ends_by_row(after),
    )


def _numbers(values: Ints) -> Numbers:
    """Return whole numbers that are all known."""
    return Numbers(values, np.ones(len(values), bool))


def _each(texts: Iterable[str]) -> CodedTexts:
    """Return a text of each row."""
    numbering: Numbering[str] = Numbering()
    code = numbering.numbers(texts)
    return CodedTexts(code, numbering.values)


def _operation_name(phase: int, first: int, second: int) -> str:
    label = Phase(phase).label
    if first < 0:
        return label
    return f"{label} {first}" if second < 0 else f"{label} {first};{second}"


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
    stepped = np.zeros(len(operations), bool)
    stepped[dependencies.after[steps]] = True
    kept = (operations.phase[dependencies.after] != Phase.W) & (
        steps | ~stepped[dependencies.after]
    )
    kept &= operations.start_ns[dependencies.before] < operations.start_ns[dependencies.after]
    return dependencies.before[kept], dependencies.after[kept]


def _ends_by_row(ends: Ints) -> FlowEnds:
    """Return one end of each flow in order of the operations; the first flow is number 1."""
    order = np.argsort(ends, kind="stable")
    return FlowEnds(ends[order], order + 1)


def _ends_in(ends: FlowEnds, low: int, place: Ints) -> FlowEnds:
    """Return the ends of flows in the slices of a track.

    Args:
        ends: by row of the operations table.
        low: the first row of the rank.
        place: of each of its rows in the track; -1 for those that are not shown.
    """
    first, last = np.searchsorted(ends.place, (low, low + len(place))).tolist()
    places, flows = place[ends.place[first:last] - low], ends.flow[first:last]
    order = np.argsort(places, kind="stable")
    order = order[places[order] != NONE]
    return FlowEnds(places[order], flows[order])
