"""Trace: a report as the processes, slices, flows and counters that trace viewers show.

Ranks are processes. Each has a track of its operations, of its communication, of its bubbles and
of its iterations, and its ratio as a counter. Flows lead each microbatch from stage to stage, to
the last one and back::

    rank 0   F 3 ──┐                ┌─> B 3
    rank 1         └─> F 3 ──> B 3 ─┘
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bubbleviz.count.iterations import RankIteration
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.dependencies import dependencies_of
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.operations import Rank
from bubbleviz.model.phases import COMMUNICATION, COMPUTE, Phase
from bubbleviz.model.texts import one_line
from bubbleviz.model.values import frozen
from bubbleviz.render.trace.tracks import Argument, Counter, Process, SliceTrack, Value, lanes_of
from bubbleviz.report.advice import host_activity, operation_labels
from bubbleviz.report.report import Report

#: Of a name from a profile, characters; viewers show less, and each repetition takes room.
_LONGEST_NAME = 200
#: Times below this are whole numbers in every viewer, those that compute in floats included.
_WHOLE_NS = 1 << 53
#: What the process of the ratio over all ranks is called.
ALL_RANKS = "all ranks"


@frozen
class Flows(Table):
    """Results passed from one operation to another, as rows of the operations table."""

    before: Ints
    after: Ints


@frozen
class Trace:
    """A report, seen as a trace.

    Attributes:
        report: what is shown.
        ratio: name of the ratio whose windows and bubbles are shown: the headline, where any rank
            has it.
        base_ns: time 0 of the trace on the report's clock: 0, unless times of the report are
            negative or too large for viewers.
        first_ns: when the first slice begins, since the base.
        names: texts of ranges, for people.
        flows: results that operations pass on.
    """

    report: Report
    ratio: str
    base_ns: int
    first_ns: int
    names: tuple[str, ...]
    flows: Flows

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
        count = len(self.report.ranks)
        yield Process(count + 1, 0, ALL_RANKS, (), self._over_all(), ())
        for rank, own_iterations in zip(self.report.ranks, by_rank, strict=True):
            yield Process(
                number=rank.index + 1,
                order=rank.index + 1,
                name=_named(rank.label),
                labels=_labels(rank),
                counter=self._of_rank(own_iterations),
                tracks=(
                    self._operations("operations", "operation", rank.index, COMPUTE),
                    self._operations("communication", "communication", rank.index, COMMUNICATION),
                    self._bubbles(rank.index),
                    self._iterations(own_iterations),
                ),
            )

    def _over_all(self) -> Counter:
        time_ns, values = [], []
        for iteration in self.report.iterations:
            ratio = iteration.ratios.get(self.ratio)
            starts = [r.accounts[self.ratio].start_ns for r in iteration.ranks if self._counts(r)]
            if ratio is not None and ratio.value is not None and starts:
                time_ns.append(min(starts) - self.base_ns)
                values.append(ratio.value)
        return Counter(self.ratio, time_ns, values)

    def _counts(self, rank: RankIteration) -> bool:
        return self.ratio in rank.accounts

    def _of_rank(self, iterations: Sequence[tuple[int, RankIteration]]) -> Counter:
        points = [
            (rank.accounts[self.ratio].start_ns - self.base_ns, value)
            for _, rank in iterations
            if (value := rank.bubble_ratio.get(self.ratio)) is not None
        ]
        return Counter(self.ratio, [time for time, _ in points], [value for _, value in points])

    def _operations(
        self, name: str, category: str, rank: int, phases: Sequence[Phase]
    ) -> SliceTrack:
        operations = self.report.operations
        low, high = np.searchsorted(operations.rank, (rank, rank + 1)).tolist()
        shown = (operations.has_span[low:high] == 1) & np.isin(operations.phase[low:high], phases)
        rows = low + np.flatnonzero(shown)
        rows = rows[np.lexsort((rows, operations.end_ns[rows], operations.start_ns[rows]))]
        table = operations.take(rows)
        labels = [Phase(phase).label for phase in table.phase.tolist()]
        first, second = table.microbatch.tolist(), table.second_microbatch.tolist()
        return self._track(
            name,
            category,
            table.start_ns,
            table.end_ns,
            [_operation_name(*each) for each in zip(labels, first, second, strict=True)],
            (
                Argument("phase", labels),
                _known("microbatch", table.microbatch),
                _known("second_microbatch", table.second_microbatch),
                _known("chunk", table.chunk),
                _known("second_chunk", table.second_chunk),
                Argument(
                    "sequence", [split if split > 0 else None for split in table.sequence.tolist()]
                ),
                Argument("occurrence", [again or None for again in table.occurrence.tolist()]),
                _known("iteration", table.iteration),
                Argument("kernels", table.kernels.tolist()),
                Argument("range", [self.names[row] for row in table.name_id.tolist()]),
                Argument("host_start_ns", table.host_start_ns.tolist()),
            ),
            _flows_at(rows, self.flows.before),
            _flows_at(rows, self.flows.after),
        )

    def _bubbles(self, rank: int) -> SliceTrack:
        report, bubbles = self.report, self.report.bubbles
        low, high = np.searchsorted(bubbles.rank, (rank, rank + 1)).tolist()
        rows = np.arange(low, high)
        rows = rows[np.lexsort((rows, bubbles.end_ns[rows], bubbles.start_ns[rows]))]
        table = bubbles.take(rows)
        causes = [Cause(cause) for cause in table.cause.tolist()]
        nothing = (None, None)
        hosts = [
            host_activity(report, row) if cause is Cause.HOST else nothing
            for row, cause in zip(rows.tolist(), causes, strict=True)
        ]
        peer_operation = table.peer_operation.tolist()
        peer = np.append(report.operations.rank, NONE)[table.peer_operation].tolist()
        ranks = [_named(rank.label) for rank in report.ranks]
        return self._track(
            "bubbles",
            "bubble",
            table.start_ns,
            table.end_ns,
            [cause.label for cause in causes],
            (
                Argument("ratio", [bubbles.ratio] * len(table)),
                Argument("iteration", table.iteration.tolist()),
                Argument("idle_ns", (table.end_ns - table.start_ns).tolist()),
                Argument("before", operation_labels(report, table.before.tolist())),
                Argument("after", operation_labels(report, table.after.tolist())),
                Argument("peer", [None if at == NONE else ranks[at] for at in peer]),
                Argument("peer_operation", operation_labels(report, peer_operation)),
                Argument("host_call", [call and _named(call) for call, _ in hosts]),
                Argument("host_range", [around and _named(around) for _, around in hosts]),
            ),
        )

    def _iterations(self, iterations: Sequence[tuple[int, RankIteration]]) -> SliceTrack:
        windows = [(index, rank, rank.accounts[self.ratio]) for index, rank in iterations]
        windows.sort(key=lambda window: (window[2].start_ns, window[2].end_ns, window[0]))
        among = self.report.iterations
        return self._track(
            "iterations",
            "iteration",
            np.array([account.start_ns for _, _, account in windows], np.int64),
            np.array([account.end_ns for _, _, account in windows], np.int64),
            [f"iteration {_named(among[index].name)}" for index, _, _ in windows],
            (
                Argument("iteration", [index for index, _, _ in windows]),
                Argument("kind", [among[index].kind for index, _, _ in windows]),
                Argument("complete", [int(among[index].complete) for index, _, _ in windows]),
                Argument("averaged", [int(among[index].averaged) for index, _, _ in windows]),
                Argument("ratio", [self.ratio] * len(windows)),
                Argument("bubble_ratio", [o.bubble_ratio.get(self.ratio) for _, o, _ in windows]),
                Argument("bubble_ns", [account.bubble_ns for _, _, account in windows]),
                Argument("window_ns", [account.window_ns for _, _, account in windows]),
            ),
        )

    def _track(
        self,
        name: str,
        category: str,
        start_ns: Ints,
        end_ns: Ints,
        names: Sequence[str],
        arguments: tuple[Argument, ...],
        leaving: Mapping[int, Sequence[int]] | None = None,
        entering: Mapping[int, Sequence[int]] | None = None,
    ) -> SliceTrack:
        return SliceTrack(
            name=name,
            category=category,
            start_ns=start_ns - self.base_ns,
            end_ns=end_ns - self.base_ns,
            lane=lanes_of(start_ns, end_ns),
            names=names,
            # What no slice has need not be looked at slice by slice.
            arguments=tuple(a for a in arguments if any(v is not None for v in a.values)),
            leaving=leaving or {},
            entering=entering or {},
        )


def trace_of(report: Report) -> Trace:
    """Return a report as a trace."""
    ratio = report.bubbles.ratio
    first_ns, last_ns = _extent(report, ratio)
    base_ns = first_ns if first_ns < 0 or last_ns >= _WHOLE_NS else 0
    names = tuple(_named(name) for name in report.operations.names)
    return Trace(report, ratio, base_ns, first_ns - base_ns, names, _flows_of(report))


def _extent(report: Report, ratio: str) -> tuple[int, int]:
    """Return the start of the first slice of a trace and the end of the last; 0 without any."""
    operations, bubbles = report.operations, report.bubbles
    spanned = operations.has_span == 1
    accounts = [
        rank.accounts[ratio]
        for iteration in report.iterations
        for rank in iteration.ranks
        if ratio in rank.accounts
    ]
    starts = (operations.start_ns[spanned], bubbles.start_ns, [a.start_ns for a in accounts])
    ends = (operations.end_ns[spanned], bubbles.end_ns, [a.end_ns for a in accounts])
    first_ns = min((int(min(some)) for some in map(_listed, starts) if some), default=0)
    return first_ns, max((int(max(some)) for some in map(_listed, ends) if some), default=0)


def _listed(times: Ints | list[int]) -> list[int]:
    return times.tolist() if isinstance(times, np.ndarray) else times


def _known(name: str, column: Ints) -> Argument:
    """Return an argument of numbers, of which -1 is none."""
    return Argument(name, [None if value < 0 else value for value in column.tolist()])


def _operation_name(label: str, first: int, second: int) -> str:
    if first < 0:
        return label
    return f"{label} {first}" if second < 0 else f"{label} {first};{second}"


def _labels(rank: Rank) -> tuple[str, ...]:
    stage = () if rank.stage is None else (f"stage {rank.stage}",)
    pipeline = () if rank.pipeline is None else (f"pipeline {rank.pipeline}",)
    return (*stage, *pipeline, f"host {_named(rank.host)}", f"process {rank.pid}")


def _named(text: str) -> str:
    """Return a text from a profile for a viewer: on one line, printable, not too long."""
    return one_line(text[: _LONGEST_NAME + 1], _LONGEST_NAME)


def _flows_of(report: Report) -> Flows:
    """Return the flows of microbatches from stage to stage, and from F to B at their turn.

    The input of a W is no flow, nor is the F that a B takes beside the B of the next stage. A
    result that starts before its input, by contradicting clocks, has none: it would go back in
    time.
    """
    operations = report.operations
    dependencies = dependencies_of(operations, report.ranks)
    stage = operations.virtual_stage
    steps = dependencies.remote | (stage[dependencies.after] != stage[dependencies.before])
    stepped = np.zeros(len(operations), bool)
    stepped[dependencies.after[steps]] = True
    kept = (operations.phase[dependencies.after] != Phase.W) & (
        steps | ~stepped[dependencies.after]
    )
    kept &= operations.start_ns[dependencies.before] < operations.start_ns[dependencies.after]
    return Flows(dependencies.before[kept], dependencies.after[kept])


def _flows_at(rows: Ints, ends: Ints) -> dict[int, list[int]]:
    """Return the numbers of the flows that have an end in a row, by its place in ``rows``.

    Args:
        rows: of the operations table, distinct.
        ends: one end of each flow, a row of that table; the first flow is number 1.
    """
    order = np.argsort(rows, kind="stable")
    at = np.searchsorted(rows[order], ends)
    shown = np.flatnonzero(np.append(rows[order], NONE)[at] == ends)
    flows: dict[int, list[int]] = {}
    for place, number in zip(order[at[shown]].tolist(), (shown + 1).tolist(), strict=True):
        flows.setdefault(place, []).append(number)
    return flows
