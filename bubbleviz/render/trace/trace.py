"""Converts a report to the processes, slices, flows and counters shown in trace viewers.

Each rank becomes a process with separate tracks for operations, communication, bubbles and
iterations. A counter shows the bubble ratio of the rank. Flows connect the operations of a
microbatch from the first stage to the last stage and back::

    rank 0   F 3 ──┐                ┌─> B 3
    rank 1         └─> F 3 ──> B 3 ─┘
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap

import numpy as np

from bubbleviz.count.rank_iterations import RankIteration
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.dependencies import find_dependencies
from bubbleviz.model.columns import NONE, Ints, make_mask
from bubbleviz.model.numbering import CodedTexts
from bubbleviz.model.phases import COMMUNICATION, COMPUTE, Phase
from bubbleviz.model.texts import to_one_line
from bubbleviz.render.trace.tracks import Column, Process, SliceTrack, Value
from bubbleviz.report.labels import format_operations
from bubbleviz.report.report import Report

#: Maximum length of a name from a profile. Viewers show fewer characters.
_MAX_NAME_LENGTH = 200
#: Time below which all viewers are exact, even those that store times as floating-point numbers.
_MAX_EXACT_NS = 1 << 53
#: Name of the process whose counter shows the bubble ratio over all ranks.
ALL_RANKS = "all ranks"
#: Columns of ``Operations`` that become slice arguments, with each column's minimum valid value.
#: Values below the minimum mean "unknown" and are left out.
_OPERATION_COLUMNS = {
    "microbatch": 0,
    "second_microbatch": 0,
    "chunk": 0,
    "second_chunk": 0,
    "sequence": 1,
    "occurrence": 1,
    "iteration": 0,
    "kernels": 0,
}


@dataclass(frozen=True)
class Trace:
    """A report in the form of a trace.

    Attributes:
        report: The report.
        ratio: Name of the bubble ratio whose windows and bubbles are shown: the primary ratio if
            any rank has it.
        base_ns: Time on the report's clock that becomes time 0 of the trace, in ns. 0 unless times
            of the report are negative or too large for viewers.
        first_ns: Start of the first slice, in ns after ``base_ns``.
        names: Truncated range and API call names, in the order of ``report.operations.names``.
        rank_labels: Label of each rank, truncated.
        labels: Label of each operation, the same as in tables.
        leaving: Ids of the flows that start at each operation, keyed by operation index.
        entering: Ids of the flows that end at each operation, keyed by operation index.
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
        """Return the properties of the entire trace, keyed by name.

        The properties are the version, the primary ratio with its reason, the ratio of the trace,
        the naming convention and ``base_ns``.
        """
        report = self.report
        return {
            "version": report.version,
            "headline": report.headline,
            "headline_reason": _truncate(report.headline_reason),
            "ratio": self.ratio,
            "convention": _truncate(report.convention),
            "base_ns": self.base_ns,
        }

    def processes(self) -> Iterator[Process]:
        """Yield the processes of the trace: "all ranks", and then one process per rank.

        The process "all ranks" has only a counter, which shows the bubble ratio. The counter and
        the iteration track of a rank contain only iterations in which ``ratio`` is measured for the
        rank.
        """
        by_rank: list[list[tuple[int, RankIteration]]] = [[] for _ in self.report.ranks]
        for iteration in self.report.iterations:
            for entry in iteration.ranks:
                if self.ratio in entry.accounts:
                    by_rank[entry.rank].append((iteration.index, entry))
        yield Process(len(by_rank) + 1, 0, ALL_RANKS, (), self._list_ratios_of_all_ranks(), ())
        for rank, iterations in zip(self.report.ranks, by_rank, strict=True):
            number = rank.index + 1
            labels = [f"host {_truncate(rank.host)}", f"process {rank.pid}"]
            if rank.pipeline is not None:
                labels.insert(0, f"pipeline p{rank.pipeline}")
            if rank.stage is not None:
                labels.insert(0, f"stage {rank.stage}")
            tracks = (
                self._make_operation_track("operations", "operation", rank.index, COMPUTE),
                self._make_operation_track(
                    "communication", "communication", rank.index, COMMUNICATION
                ),
                self._make_bubble_track(rank.index),
                self._make_iteration_track(iterations),
            )
            ratios = self._list_ratios_of_rank(iterations)
            yield Process(number, number, _truncate(rank.label), tuple(labels), ratios, tracks)

    def _list_ratios_of_all_ranks(self) -> list[tuple[int, float]]:
        """Return a (time, ratio) pair for each iteration whose ratio over all ranks is known.

        The time is the earliest start of any rank's window, in ns after ``base_ns``.
        """
        ratios = []
        for iteration in self.report.iterations:
            accounts = (entry.accounts.get(self.ratio) for entry in iteration.ranks)
            starts = [account.start_ns for account in accounts if account is not None]
            ratio = iteration.ratios.get(self.ratio)
            if ratio is not None and ratio.value is not None and starts:
                ratios.append((min(starts) - self.base_ns, ratio.value))
        return ratios

    def _list_ratios_of_rank(
        self, iterations: Sequence[tuple[int, RankIteration]]
    ) -> list[tuple[int, float]]:
        """Return a (time, ratio) pair for each iteration in which the ratio of a rank is known.

        The time is the start of the rank's window, in ns after ``base_ns``.

        Args:
            iterations: (iteration index, measurements of the rank in the iteration) pairs.
        """
        ratios = []
        for _, entry in iterations:
            value = entry.bubble_ratio.get(self.ratio)
            if value is not None:
                ratios.append((entry.accounts[self.ratio].start_ns - self.base_ns, value))
        return ratios

    def _make_operation_track(
        self, name: str, category: str, rank: int, phases: Sequence[Phase]
    ) -> SliceTrack:
        """Return a track with a rank's operations of the given phases, sorted by (start, end).

        Operations without a known start and end are left out.

        Args:
            name: Name of the track.
            category: Category of the slices.
            rank: Index of the rank.
            phases: Phases of the operations to include.
        """
        operations = self.report.operations
        first, stop = np.searchsorted(operations.rank, (rank, rank + 1)).tolist()
        has_phase = np.isin(operations.phase[first:stop], phases)
        rows = first + np.flatnonzero(has_phase & (operations.has_span[first:stop] == 1))
        rows = rows[np.lexsort((rows, operations.end_ns[rows], operations.start_ns[rows]))]
        table = operations.take(rows)
        properties: dict[str, Column] = {
            "phase": [Phase(phase).label for phase in table.phase.tolist()]
        }
        for column, minimum in _OPERATION_COLUMNS.items():
            values = getattr(table, column).tolist()
            properties[column] = [value if value >= minimum else None for value in values]
        properties["range"] = _list_texts(self.names, table.name_id)
        properties["host_start_ns"] = table.host_start_ns.tolist()
        microbatches = properties["microbatch"], properties["second_microbatch"]
        names = starmap(_name_operation, zip(table.phase.tolist(), *microbatches, strict=True))
        return SliceTrack(
            name,
            category,
            table.start_ns - self.base_ns,
            table.end_ns - self.base_ns,
            list(names),
            properties,
            [self.leaving.get(row, ()) for row in rows.tolist()],
            [self.entering.get(row, ()) for row in rows.tolist()],
        )

    def _make_bubble_track(self, rank: int) -> SliceTrack:
        """Return a track with a rank's idle intervals, sorted by (start, end).

        Each slice is named after the cause of the idle time.
        """
        report, bubbles = self.report, self.report.bubbles
        first, stop = np.searchsorted(bubbles.rank, (rank, rank + 1)).tolist()
        rows = np.arange(first, stop)
        rows = rows[np.lexsort((rows, bubbles.end_ns[rows], bubbles.start_ns[rows]))]
        table = bubbles.take(rows)
        is_host = table.cause == Cause.HOST
        peer = CodedTexts(report.operations.rank, self.rank_labels).at(table.peer_operation)
        properties: dict[str, Column] = {
            "ratio": [bubbles.ratio] * len(table),
            "iteration": table.iteration.tolist(),
            "idle_ns": (table.end_ns - table.start_ns).tolist(),
            "before": self._label_operations(table.before),
            "after": self._label_operations(table.after),
            "peer": _list_texts(peer.texts, peer.code),
            "peer_operation": self._label_operations(table.peer_operation),
            "collective": _list_texts(bubbles.collectives, table.collective),
            "host_call": _list_texts(self.names, np.where(is_host, table.host_call, NONE)),
            "host_range": _list_texts(self.names, np.where(is_host, table.host_range, NONE)),
        }
        start_ns, end_ns = table.start_ns - self.base_ns, table.end_ns - self.base_ns
        causes = [Cause(cause).label for cause in table.cause.tolist()]
        return SliceTrack("bubbles", "bubble", start_ns, end_ns, causes, properties)

    def _label_operations(self, rows: Ints) -> Column:
        """Return the label of each operation, or None for index -1."""
        return _list_texts(self.labels.texts, self.labels.at(rows).code)

    def _make_iteration_track(self, iterations: Sequence[tuple[int, RankIteration]]) -> SliceTrack:
        """Return a track with one slice per iteration: the window of ``ratio`` on one rank.

        Args:
            iterations: (iteration index, measurements of the rank in the iteration) pairs.
        """
        windows = [(index, rank, rank.accounts[self.ratio]) for index, rank in iterations]
        windows.sort(key=lambda window: (window[2].start_ns, window[2].end_ns, window[0]))
        iterations_of_windows = [self.report.iterations[index] for index, *_ in windows]
        start_ns = np.array([account.start_ns for *_, account in windows], np.int64)
        end_ns = np.array([account.end_ns for *_, account in windows], np.int64)
        properties: dict[str, Column] = {
            "iteration": [index for index, *_ in windows],
            "kind": [iteration.kind for iteration in iterations_of_windows],
            "complete": [int(iteration.complete) for iteration in iterations_of_windows],
            "averaged": [int(iteration.averaged) for iteration in iterations_of_windows],
            "ratio": [self.ratio] * len(windows),
            "bubble_ratio": [rank.bubble_ratio.get(self.ratio) for _, rank, _ in windows],
            "bubble_ns": [account.bubble_ns for *_, account in windows],
            "window_ns": [account.window_ns for *_, account in windows],
        }
        return SliceTrack(
            "iterations",
            "iteration",
            start_ns - self.base_ns,
            end_ns - self.base_ns,
            [f"iteration {_truncate(iteration.name)}" for iteration in iterations_of_windows],
            properties,
        )


def make_trace(report: Report) -> Trace:
    """Convert a report to a trace.

    Times in the trace are relative to a base time, which is usually 0. The base time is the start
    of the first slice if that start is negative, or if the last slice ends at ``_MAX_EXACT_NS`` or
    later.
    """
    ratio = report.explanation.listed_ratio
    first_ns, last_ns = _find_slice_bounds(report, ratio)
    base_ns = first_ns if first_ns < 0 or last_ns >= _MAX_EXACT_NS else 0
    producers, consumers = _find_flows(report)
    return Trace(
        report=report,
        ratio=ratio,
        base_ns=base_ns,
        first_ns=first_ns - base_ns,
        names=tuple(map(_truncate, report.operations.names)),
        rank_labels=tuple(_truncate(rank.label) for rank in report.ranks),
        labels=format_operations(report),
        leaving=_group_by_row(producers),
        entering=_group_by_row(consumers),
    )


def _find_slice_bounds(report: Report, ratio: str) -> tuple[int, int]:
    """Return the earliest start and the latest end of all slices in a trace, in ns.

    If there are no slices, (0, 0) is returned.

    Args:
        report: The report.
        ratio: Name of the ratio whose windows are slices of the trace.
    """
    entries = (rank for iteration in report.iterations for rank in iteration.ranks)
    accounts = [entry.accounts[ratio] for entry in entries if ratio in entry.accounts]
    operations, has_span = report.operations, report.operations.has_span == 1
    account_starts = np.array([account.start_ns for account in accounts], np.int64)
    account_ends = np.array([account.end_ns for account in accounts], np.int64)
    spans = operations.start_ns[has_span], operations.end_ns[has_span]
    starts = np.concatenate((account_starts, spans[0], report.bubbles.start_ns))
    all_ends = np.concatenate((account_ends, spans[1], report.bubbles.end_ns))
    return (int(starts.min()), int(all_ends.max())) if len(starts) else (0, 0)


def _list_texts(texts: Sequence[str], code: Ints) -> Column:
    """Return the text of each code, or None for -1."""
    return [texts[text_index] if text_index >= 0 else None for text_index in code.tolist()]


def _name_operation(phase: int, first: int | None, second: int | None) -> str:
    """Return the name of an operation's slice, such as ``F 3``, or ``FB 3;7`` for two microbatches.

    Args:
        phase: Phase code.
        first: Microbatch number, or None if unknown.
        second: Number of the second microbatch, or None if there is none.
    """
    numbers = ";".join(str(number) for number in (first, second) if number is not None)
    return f"{Phase(phase).label} {numbers}".rstrip()


def _truncate(text: str) -> str:
    """Truncate text from a profile to ``_MAX_NAME_LENGTH`` printable characters on one line."""
    return to_one_line(text[: _MAX_NAME_LENGTH + 1], _MAX_NAME_LENGTH)


def _find_flows(report: Report) -> tuple[Ints, Ints]:
    """Find the flows that follow microbatches from stage to stage, and from the last F to its B.

    A flow connects an operation that produces a result with the operation that consumes it. No flow
    leads to a W. If a B receives its gradient from the next stage, a flow leads to it from that
    stage's B, but not from the F on its own stage. A flow is left out if the consumer does not
    start after the producer, as can happen if clocks contradict each other.

    Returns:
        producer: Index of the operation at the start of each flow.
        consumer: Index of the operation at the end of each flow.
    """
    operations = report.operations
    dependencies = find_dependencies(operations, tuple(report.ranks))
    producer, consumer = dependencies.predecessor, dependencies.successor
    stage = operations.virtual_stage
    is_transfer = dependencies.is_remote(operations.rank) | (stage[consumer] != stage[producer])
    has_transfer = make_mask(len(operations), consumer[is_transfer])[consumer]
    is_flow = (operations.phase[consumer] != Phase.W) & (is_transfer | ~has_transfer)
    is_flow &= operations.start_ns[producer] < operations.start_ns[consumer]
    return producer[is_flow], consumer[is_flow]


def _group_by_row(rows: Ints) -> dict[int, list[int]]:
    """Return a mapping from the index of an operation to the ids of its flows, ascending.

    Args:
        rows: For each flow, the index of the operation at one of its ends. Flow ids start at 1.
    """
    flows: dict[int, list[int]] = {}
    for number, row in enumerate(rows.tolist(), 1):
        flows.setdefault(row, []).append(number)
    return flows
