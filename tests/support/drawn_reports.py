"""Builds reports from a few operations, and extracts texts from pictures."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from bubbleviz.count.iterations import Iteration, Ratio, make_iteration_records
from bubbleviz.count.rank_iterations import (
    Account,
    AccountColumns,
    RankColumns,
    RankIteration,
    RankIterations,
)
from bubbleviz.count.ratios import list_ratios
from bubbleviz.count.summary import summarize
from bubbleviz.explain.causes.bubbles import Bubbles
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.cause_times import CauseTimes
from bubbleviz.explain.communication_times import CommunicationTimes, Receives
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.explanation import Explanation
from bubbleviz.explain.idle import IdleIntervals
from bubbleviz.explain.phase_times import PhaseTimes
from bubbleviz.explain.slowdown.replayed_run import ExplainedRows
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.operations import (
    BusyIntervals,
    Operations,
    ProfileSummary,
    Rank,
    RankIntervals,
)
from bubbleviz.model.phases import COMPUTE, WORK, Phase
from bubbleviz.report.report import Report
from tests.planting.orders import Plan, one_forward_one_backward
from tests.planting.programs import Duration, make_barrier, simulate
from tests.support.stage_times import make_durations

SVG = "{http://www.w3.org/2000/svg}"

MS = 1_000_000


@dataclass(frozen=True)
class Op:
    """One operation in a test.

    ``busy`` defaults to the operation's span. None means that there is no device time.
    """

    rank: int
    phase: Phase
    microbatch: int
    start: int
    end: int
    chunk: int = 0
    iteration: int = 0
    second_microbatch: int = -1
    second_chunk: int = -1
    busy: tuple[tuple[int, int], ...] | None = ()
    cut: bool = False
    name: str = ""
    occurrence: int = 0
    sequence: int = -1


def make_operations(ops: Sequence[Op]) -> tuple[Operations, BusyIntervals]:
    """Return the operations, sorted by rank and start, and the intervals in which they were busy.

    Each operation runs one kernel that is active for its whole span. Columns without a field in
    :class:`Op` are -1.
    """
    ops = sorted(ops, key=lambda op: (op.rank, op.start))
    names = tuple(dict.fromkeys(op.name for op in ops))
    intervals = [
        (row, start, end)
        for row, op in enumerate(ops)
        if op.busy is not None
        for start, end in op.busy or ((op.start, op.end),)
    ]

    def column(values: Iterable[int]) -> npt.NDArray[np.int64]:
        return np.fromiter(values, np.int64)

    start, end = column(op.start for op in ops), column(op.end for op in ops)
    ones = np.ones(len(ops), np.int64)
    column_values = (
        "rank",
        "iteration",
        "phase",
        "microbatch",
        "chunk",
        "sequence",
        "second_microbatch",
    )
    columns = {
        **dict.fromkeys(Operations.column_names(), -ones),
        **{
            name: column(getattr(op, name) for op in ops)
            for name in (*column_values, "second_chunk", "occurrence", "cut")
        },
        **dict.fromkeys(("start_ns", "host_start_ns"), start),
        **dict.fromkeys(("end_ns", "host_end_ns"), end),
        **dict.fromkeys(("active_ns", "busy_ns"), end - start),
        "kernels": ones,
        "has_span": column(op.busy is not None for op in ops),
        "name_id": column(names.index(op.name) for op in ops),
    }
    table = Operations(**columns, names=names, stages=(), global_ranks=())
    return table, BusyIntervals(*(column(values) for values in transpose(intervals, 3)))


def transpose(rows: Sequence[Sequence[int]], columns: int) -> list[list[int]]:
    """Return the columns of ``rows`` as lists. ``columns`` is the number of columns."""
    return [[row[n] for row in rows] for n in range(columns)]


def make_report(
    ops: Sequence[Op],
    *,
    ranks: tuple[Rank, ...] | None = None,
    headline: str = "schedule",
    unattributed: Sequence[tuple[int, int, int]] = (),
    limitations: tuple[Limitation, ...] = (),
) -> Report:
    """Return a report that contains these operations and their ``schedule`` ratios."""
    count = max((op.rank for op in ops), default=-1) + 1
    operations, busy = make_operations(ops)
    if ranks is None:
        ranks = tuple(make_rank(index) for index in range(count))
    numbers = sorted({op.iteration for op in ops})
    iterations = tuple(make_iteration(n, [op for op in ops if op.iteration == n]) for n in numbers)
    nothing = {ratio.name: Ratio(None, None, None, None) for ratio in list_ratios()}
    iterations_with_ratio = [
        replace(i, ratios=nothing | {"schedule": i.ratios["schedule"]}) for i in iterations
    ]
    return Report(
        version="0",
        convention="zero_bubble",
        headline=headline,
        headline_reason="Iterations do not overlap, so each is looked at as if alone.",
        profiles=(ProfileSummary("p", "node1", "nsys", None, None, *[0] * 9),),
        ranks=ranks,
        iterations=make_iteration_records(iterations),
        summary=summarize(iterations_with_ratio),
        operations=operations,
        busy=busy,
        unattributed=RankIntervals(
            *(np.array(values, np.int64) for values in transpose(unattributed, 3))
        ),
        coverage=(),
        unattributed_kernels=(),
        explanation=make_empty_explanation(len(iterations), len(ranks), operations),
        limitations=limitations,
    )


def make_empty_explanation(iterations: int, ranks: int, operations: Operations) -> Explanation:
    """Return an explanation without idle time, dependencies, critical path or changes."""
    zero = np.zeros((iterations, ranks), np.int64)
    return Explanation(
        causes=CauseTimes({"schedule": np.zeros((iterations, ranks, len(Cause)), np.int64)}),
        explained=lambda: ExplainedRows(
            Dependencies.make_empty(),
            Receives.make_empty(),
            IdleIntervals.make_empty(),
            Bubbles.empty("schedule", operations),
            Dependencies.make_empty(),
        ),
        listed_ratio="schedule",
        received=np.zeros(iterations, np.int64),
        communication=CommunicationTimes(zero, zero, zero, zero, zero),
        phase_times=PhaseTimes((), None, (), ()),
        path=None,
        changes=(),
    )


def make_rank(
    index: int, host: str = "node1", *, pipeline: int = 0, stage: int | None = None
) -> Rank:
    """Return a rank on a host with eight GPUs."""
    return Rank(
        index=index,
        label=f"{host}:{index % 8} GPU {index % 8}",
        host=host,
        profile=0,
        pid=100 + index,
        device_id=index % 8,
        stage=index if stage is None else stage,
        pipeline=pipeline,
    )


def make_rank_iterations(values: Sequence[RankIteration]) -> RankIterations:
    """Return an iteration's rank results. All ranks must have windows for the same ratios."""
    rank = np.array([value.rank for value in values], np.int64)

    def column(of_rank: Sequence[object], dtype: type = np.int64) -> npt.NDArray[np.int64]:
        numbers: npt.NDArray[np.int64] = np.array(of_rank, dtype)
        table = np.zeros((1, rank.max(initial=-1) + 1, *numbers.shape[1:]), dtype)
        table[0, rank] = numbers
        return table

    def ratio(rank_iteration: RankIteration, name: str) -> float:
        return rank_iteration.bubble_ratio.get(name) or 0.0

    accounts = {}
    for name in values[0].accounts if values else ():
        of_ranks = [own.accounts[name] for own in values]
        work = [(1 - ratio(own, name)) * own.accounts[name].window_ns for own in values]
        times = {f.name: column([getattr(a, f.name) for a in of_ranks]) for f in fields(Account)}
        accounts[name] = AccountColumns(
            **times, work_ns=column(work, np.float64), is_known=(True,), bounds=None
        )
    phases = [phase.label for phase in COMPUTE]
    names = ("compute_ns", "active_ns", "first_ns", "last_ns", "kernel_ns", "gap_ns")
    columns = RankColumns(
        phase_ns=column([[own.busy_ns.get(phase, 0) for phase in phases] for own in values]),
        **{name: column([getattr(own, name) for own in values]) for name in names},
        missing=column(
            [not any(r is not None for r in own.bubble_ratio.values()) for own in values]
        ),
        reasons=(None, "no F with GPU work"),
        accounts=accounts,
    )
    return RankIterations(columns, 0, rank)


def make_iteration(number: int, ops: Sequence[Op]) -> Iteration:
    """Return a training iteration whose ``schedule`` ratio is the mean over its ranks.

    Ranks without device work are left out. The ``step`` ratio is set to the same value.
    """
    work: dict[int, list[Op]] = {}
    for op in ops:
        if op.phase in WORK and op.busy is not None:
            work.setdefault(op.rank, []).append(op)
    start = min((op.start for op in ops if op.phase in COMPUTE), default=0)
    end = max((op.end for op in ops if op.phase in COMPUTE), default=0)
    last = max((op.end for operations in work.values() for op in operations), default=start)
    window = last - start
    ranks = []
    for rank, operations in sorted(work.items()):
        spent = sum(b - a for op in operations for a, b in op.busy or ((op.start, op.end),))
        account = Account(start, last, spent, 0, 0, 0, window - spent)
        own_value = 1 - spent / window
        first, final = min(op.start for op in operations), max(op.end for op in operations)
        ranks.append(
            RankIteration(
                rank,
                {},
                spent,
                spent,
                first,
                final,
                {"schedule": account},
                {"schedule": own_value},
                {},
            )
        )
    value = sum(r.bubble_ratio["schedule"] or 0 for r in ranks) / len(ranks) if ranks else None
    ratios = {
        "schedule": Ratio(value, value, None, window),
        "step": Ratio(value, value, None, end - start),
    }
    return Iteration(
        number,
        str(number),
        "training",
        True,
        True,
        None,
        start,
        end,
        ratios,
        make_rank_iterations(ranks),
    )


def run_plan(
    plan: Plan,
    durations: Duration,
    *,
    iteration: int = 0,
    start: int = 0,
    latency: int = 0,
    optimizer: bool = False,
) -> list[Op]:
    """Simulate one iteration of a plan. Optimizers start once all devices have finished their work.

    Args:
        plan: The plan.
        durations: Duration of each task.
        iteration: Number of the iteration.
        start: Start time of the iteration, in ns.
        latency: Transfer time between two devices, in ns.
        optimizer: Whether each device ends the iteration with an optimizer step.
    """
    gate = make_barrier(plan.stages)
    simulation = simulate([plan], durations, optimizer=optimizer, transfer_ns=latency, gate=gate)
    names = ("device", "phase", "virtual_stage", "microbatch", "start_ns", "end_ns")
    ops = []
    for row in zip(*(getattr(simulation, name).tolist() for name in names), strict=True):
        rank, phase, stage, microbatch, begin_ns, end = row
        work = phase != Phase.OPTIMIZER
        chunk = plan.chunk_of(stage)
        ops.append(
            Op(
                rank,
                Phase(phase),
                microbatch if work else -1,
                start + begin_ns,
                start + end,
                chunk if work else -1,
                iteration,
                name=f"{Phase(phase).label}{microbatch}.{chunk}.0" if work else "",
            )
        )
    return ops


def run_1f1b(
    stages: int,
    microbatches: int,
    *,
    forward: int = 10 * MS,
    backward: int = 20 * MS,
    iteration: int = 0,
    start: int = 0,
) -> list[Op]:
    plan = one_forward_one_backward(stages, microbatches)
    durations = make_durations(forward, backward, 0)
    return run_plan(plan, durations, iteration=iteration, start=start)


def parse_svg(svg: str) -> ET.Element:
    return ET.fromstring(svg.encode())


def list_texts(svg: str) -> list[str]:
    """Return all texts of a picture, in document order."""
    return ["".join(element.itertext()) for element in parse_svg(svg).iter(f"{SVG}text")]


def list_tooltips(svg: str) -> list[str]:
    """Return the tooltips (``title`` elements) of a picture, except the title of the picture."""
    return [element.text or "" for element in parse_svg(svg).iter(f"{SVG}title")][1:]


HOSTILE = "<script>alert(1)</script>]]>&\"'\n\r\x00\x1b\u202e\ud800\uffff\U0001f600" * 300


def rename_all(report: Report, text: str) -> Report:
    """Return a copy of a report in which every text from the input is replaced with ``text``."""
    return replace(
        report,
        operations=replace(report.operations, names=(text,) * len(report.operations.names)),
        ranks=tuple(replace(r, label=text, host=text) for r in report.ranks),
        profiles=tuple(replace(p, path=text, host=text) for p in report.profiles),
        iterations=make_iteration_records(
            replace(iteration, name=text) for iteration in report.iterations
        ),
        limitations=(Limitation(text, text),) * 9,
        convention=text,
        command=text,
        headline_reason=text,
    )


def change_ratios(report: Report, ratio_of_rank: dict[int, float]) -> Report:
    """Return the report with new ratios in its first iteration. Other ranks have a ratio of 0.5."""
    first = report.iterations[0]
    ranks = tuple(
        replace(rank, bubble_ratio={"schedule": ratio_of_rank.get(rank.rank, 0.5)})
        for rank in first.ranks
    )
    changed = replace(first, ranks=make_rank_iterations(ranks))
    return replace(report, iterations=make_iteration_records((changed,)))


def make_pipelines(
    pipelines: int, stages: int, microbatches: int, slow: Sequence[int] = ()
) -> tuple[list[Op], tuple[Rank, ...]]:
    """Return ideal 1F1B pipelines and their ranks. Slow pipelines take 1.5 times as long."""
    ops: list[Op] = []
    for pipeline in range(pipelines):
        times = 1.5 if pipeline in slow else 1.0
        operations_of_pipeline = run_1f1b(
            stages, microbatches, forward=int(10 * MS * times), backward=int(20 * MS * times)
        )
        ops += [replace(op, rank=pipeline * stages + op.rank) for op in operations_of_pipeline]
    ranks = (
        make_rank(index, f"node{index // 8}", pipeline=index // stages, stage=index % stages)
        for index in range(pipelines * stages)
    )
    return ops, tuple(ranks)
