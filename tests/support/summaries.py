"""Builds saved reports from chosen numbers instead of a measured run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bubbleviz.explain.slowdown.slowdowns import ReplayError
from bubbleviz.report.idle_summary import IDLE_SCHEMA, IdleNumbers, IdleSummary
from bubbleviz.report.summary import (
    SCHEMA,
    AdviceEntry,
    Average,
    IterationEntry,
    KernelTimeEntry,
    LinkSlowdowns,
    Numbers,
    PhaseTimeEntry,
    RankEntry,
    RestrictionEntry,
    RunSummary,
    ScheduleEntry,
    SlowdownColumns,
    SlowdownEntry,
    StepSummary,
    TimePart,
)

#: Statistics of a ratio, and statistics of the window of the ratio.
Ratio = tuple[Average, Average]


def make_saved_run(
    ratios: Mapping[str, Ratio],
    *,
    headline: str = "schedule",
    version: str = "1",
    ranks: int = 4,
    microbatches: int | None = None,
    schedule: str | None = None,
    intervals: Mapping[str, tuple[float, float]] | None = None,
    stage_ns: Mapping[tuple[int, str], float] | None = None,
    slowdown: SlowdownEntry | None = None,
    advice: Sequence[AdviceEntry] = (),
    restrictions: Sequence[RestrictionEntry] = (),
    bubble_parts: Sequence[tuple[str, float]] = (),
    contradicted: bool = False,
) -> RunSummary:
    """Return a report on bubbles with chosen numbers.

    Args:
        ratios: Statistics of each ratio and its window, keyed by the name of the ratio.
        headline: Name of the primary ratio.
        version: Version of bubbleviz.
        ranks: Number of ranks. The last one is rank 13 on host node3.
        microbatches: Number of microbatches of the run's only iteration.
        schedule: Name of the schedule, or None if it is unknown.
        intervals: (lower, upper) bounds of each ratio due to clock uncertainty, keyed by name.
        stage_ns: Time of an operation in ns, keyed by (stage, phase).
        slowdown: Slowdowns of ranks and links, or None if they are unknown.
        advice: Pieces of advice, largest saving first.
        restrictions: Restrictions of the report.
        bubble_parts: (name, share of the primary ratio's window) of each part of the bubble.
        contradicted: Whether the clocks of the run contradict each other.
    """
    primary = ratios.get(headline) or next(iter(ratios.values()))
    summary = Numbers(
        iterations=primary[0].n,
        bubble_ratio={name: bubble for name, (bubble, _) in ratios.items()},
        bubble_interval=dict(intervals or {}),
        bubble_low={},
        bubble_overhead={},
        window_ns={name: window_ns for name, (_, window_ns) in ratios.items()},
        cause_ns={},
        bubble_parts=[TimePart(name, name, share, 0.0) for name, share in bubble_parts],
        kernel_time=KernelTimeEntry(0, 0, 0, 0, 0, 0, None, beside_headline=False, sentence=None),
        launch_gap=None,
        step=StepSummary("step", [], None),
    )
    return RunSummary(
        schema=SCHEMA,
        version=version,
        kind="training",
        headline=headline,
        headline_reason="",
        convention="",
        profiles=[],
        ranks=[*map(_make_rank, range(ranks - 1)), _make_rank(ranks - 1, 13, "node3 GPU 1")],
        what_to_do_first=None,
        first=[],
        then=[],
        advice=list(advice),
        restrictions=list(restrictions),
        typical_iteration=0,
        iterations_overlap=False,
        iterations=[_make_iteration(microbatches, contradicted=contradicted)],
        summary=summary,
        schedule=None if schedule is None else _make_schedule(schedule),
        plan=None,
        phase_times=[make_phase_time(*key, ns) for key, ns in (stage_ns or {}).items()],
        chunk_costs=[],
        even_chunks=None,
        transfer_ns=None,
        microbatch_lengths=(),
        imbalance={},
        stragglers=[],
        critical_path=None,
        changes=None,
        what_if=None,
        memory=None,
        longest_bubbles=[],
        slowdown=slowdown,
        coverage=[],
        unattributed_kernels=[],
        limitations=[],
        methods="",
        timeline=None,
    )


def make_saved_idle(bubble: Average, window_ns: Average, *, headline: str = "idle") -> IdleSummary:
    """Return a report on the idle time of four devices."""
    return IdleSummary(
        schema=IDLE_SCHEMA,
        version="1",
        headline=headline,
        iterations=(),
        summary=IdleNumbers(bubble.n, {headline: bubble}, {headline: window_ns}, []),
        restrictions=[],
        definitions={},
        shortest_ns=0,
        window=None,
        span_ns=0,
        idle_ns=0,
        proved_idle_ns=0,
        what_to_do_first="",
        activities=[],
        meanings={},
        kernels=[],
        copies=[],
        ranks=[],
        limitations=[],
    )


def make_slowdowns(*, last_rank: float, link: float) -> SlowdownEntry:
    """Return slowdowns of the last of four ranks, and of transfers between stages 0 and 1."""
    none = SlowdownColumns([], [])
    return SlowdownEntry(
        total=1.0,
        by_phase={},
        by_stage=none,
        by_replica=SlowdownColumns([0, 1], [1.0, 1.0]),
        by_rank=SlowdownColumns([3], [last_rank]),
        by_microbatch=none,
        by_link=LinkSlowdowns([0], [1], [link]),
        by_iteration=none,
        worker_share=None,
        last_stage_share=None,
        original_ns=1.0,
        ideal_ns=1.0,
        replay_error=ReplayError(0.0, 0.0, 0.0, 0.0),
    )


def make_phase_time(stage: int, phase: str, ns: float, **numbers: Any) -> PhaseTimeEntry:
    """Return the time statistics of a phase whose operations all have the same length."""
    values = {
        "phase": phase,
        "median_ns": ns,
        "stage": stage,
        "chunk": None,
        "virtual_stage": None,
        "gap_ns": None,
        "pipeline_ns": None,
        "mean_ns": 0.0,
        "std_ns": None,
        "n": 0,
        "min_ns": 0,
        "max_ns": 0,
        "first_ns": None,
        "last_ns": None,
    }
    return PhaseTimeEntry(**{**values, **numbers})


def _make_rank(index: int, number: int | None = None, label: str = "") -> RankEntry:
    """Return a rank whose stage equals its index.

    Args:
        index: Index of the rank.
        number: Number of the rank in its job, or None to use the index.
        label: Label of the rank, or "" for a GPU of node0.
    """
    return RankEntry(
        index=index,
        global_rank=index if number is None else number,
        label=label or f"node0 GPU {index}",
        host="node0",
        pid=1,
        device_id=index,
        uuid=None,
        gpu=None,
        pci=None,
        stage=index,
        pipeline=0,
        profile=0,
        relative_score=None,
        individual_score=None,
    )


def _make_iteration(microbatches: int | None, *, contradicted: bool) -> IterationEntry:
    """Return a complete training iteration without ratios."""
    return IterationEntry(
        index=0,
        name="0",
        kind="training",
        complete=True,
        averaged=True,
        microbatches=microbatches,
        start_ns=0,
        end_ns=1,
        window_ns={},
        bubble_ratio={},
        bubble_low={},
        bubble_overhead={},
        bubble_interval={},
        incomplete=False,
        clocks_contradict=contradicted,
        clock_set=False,
        cause_ns={},
        ranks=None,
    )


def _make_schedule(name: str) -> ScheduleEntry:
    """Return a recognized schedule that every iteration follows exactly."""
    return ScheduleEntry(
        name=name,
        also=(),
        exact=True,
        distance=None,
        reason=None,
        iterations=[],
        deviation_count=0,
        deviations=[],
    )
