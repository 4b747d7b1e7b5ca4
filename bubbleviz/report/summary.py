"""The saved report: a model of the JSON that ``bubbleviz analyze -o report.json`` writes.

The fields are in the same order as the keys in the JSON. Times are in ns on the clock of the
report. Ratios and shares are fractions of 1. :func:`.summarizing.summarize` creates the summary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct, to_builtins

from bubbleviz.explain.late_arrivals import Lateness
from bubbleviz.explain.path import PathCollective, PathPart
from bubbleviz.explain.recognition.recognition import IterationOrder
from bubbleviz.explain.slowdown.slowdowns import ReplayError
from bubbleviz.model.attribute_values import SummaryValue
from bubbleviz.model.limitations import HARMLESS, Limitation
from bubbleviz.model.operations import ProfileSummary, RankCoverage, UnattributedKernels
from bubbleviz.model.restrictions import Restriction
from bubbleviz.model.texts import format_count, format_percent
from bubbleviz.report.memory import Count, Finite, Positive, RunMemory
from bubbleviz.report.profiling_cost import ProfilingCost, describe_cost_and_bounds
from bubbleviz.report.promise import format_alternatives, format_saving

#: Name and version of this model.
SCHEMA = "bubbleviz.report/2"
#: Maximum number of barriers that a report lists.
_MAX_BARRIERS = 20_000
#: Lower and upper bounds of a ratio, given the uncertainty of the clocks.
Interval = tuple[Finite, Finite]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class Average(Struct, frozen=True):
    """Mean and spread over iterations.

    Attributes:
        mean: Mean, or None if there are no iterations.
        std: Standard deviation with n - 1 degrees of freedom, or None for fewer than two
            iterations.
        min: Smallest value, or None if there are no iterations.
        max: Largest value, or None if there are no iterations.
        ci95: Half-width of the 95 % confidence interval of the mean (Student's t), or None for
            fewer than two iterations.
        n: Number of iterations.
    """

    mean: Finite | None
    std: Positive | None
    min: Finite | None
    max: Finite | None
    ci95: Positive | None
    n: Count

    def __post_init__(self) -> None:
        """Raise a ``ValueError`` if the numbers contradict each other."""
        if (self.mean is None) != (self.n == 0) or (self.std is None) != (self.n < 2):
            raise ValueError(f"mean, std and n = {self.n} contradict each other")


class RankEntry(Struct, frozen=True):
    """A device as seen by one process; see :class:`.operations.Rank`.

    Attributes:
        index: Index of the rank in the report. Every field named ``rank`` contains this index.
        global_rank: Global rank in the job, or None if unknown.
        label: Name of the rank, unique in the report.
        host: Name of the host.
        pid: Process id.
        device_id: Device number from the process's point of view.
        uuid: UUID of the GPU, or None if unknown.
        gpu: Product name of the GPU, or None if unknown.
        pci: PCI address of the GPU, or None if unknown.
        stage: Pipeline stage of the rank, or None if unknown.
        pipeline: Index of the pipeline that the rank belongs to, or None if unknown.
        profile: Index of the profile that recorded the rank.
        relative_score: Kernel time of the fastest rank in the same stage divided by this rank's
            kernel time, or None if unknown.
        individual_score: Kernel time of the rank in its fastest iteration divided by its kernel
            time in its last averaged iteration, or None if unknown.
        work_ns: Mean time in compute operations per averaged iteration, or None if unknown.
    """

    index: int
    global_rank: int | None
    label: str
    host: str
    pid: int
    device_id: int
    uuid: str | None
    gpu: str | None
    pci: str | None
    stage: int | None
    pipeline: int | None
    profile: int
    relative_score: float | None
    individual_score: float | None
    work_ns: Positive | None = None


class OutlierEntry(Struct, frozen=True):
    """A rank, stage, pipeline or host that differs from the others; see :class:`.Standout`.

    Attributes:
        kind: What stands out: ``rank``, ``stage``, ``pipeline`` or ``host``.
        name: Printed name, such as "stage 3".
        ranks: Indices of the ranks that stand out, in ascending order.
        bubble_ratio: Mean bubble ratio of the ranks, or None if it is unknown.
        above_median: Mean bubble ratio of the ranks minus the median bubble ratio of all ranks in
            the run, or 0 if it is unknown.
        phase: The phase whose time differs most from the median of the stage, or "" if no phase
            differs enough.
        times_median: Time in ``phase`` as a multiple of the median, or 1 if ``phase`` is "".
        why: Description of the difference from the other ranks.
        is_marked: Whether pictures mark the ranks as outliers.
    """

    kind: str
    name: str
    ranks: tuple[Count, ...]
    bubble_ratio: Finite | None
    above_median: Finite
    phase: str
    times_median: Finite
    why: str
    is_marked: bool


class StepEntry(Struct, frozen=True):
    """A sentence from ``what_to_do_first``, in machine-readable form.

    Attributes:
        code: The subject of the sentence, or ``advice`` if the sentence is an entry in ``advice``.
        advice: Index of the entry in ``advice``, or None for any other subject.
        is_marked: Whether pictures mark the ranks that this advice names.
    """

    code: str
    advice: Count | None
    is_marked: bool


class LateRankEntry(Struct, frozen=True):
    """A rank that arrived last at barriers; see :class:`.LateRank`.

    Attributes:
        rank: Index of the rank.
        steps: Number of steps in which the rank arrived last at one or more barriers.
        barriers: Number of barriers at which it arrived last.
        late_ns: Sum over these barriers of the mean time by which the other ranks waited longer.
        parts_ns: Lateness by part of the step. A part is negative if the rank spent less time in
            it than the others.
    """

    rank: Count
    steps: Count
    barriers: Count
    late_ns: int
    parts_ns: dict[str, int]


class BarrierColumns(Struct, frozen=True):
    """The last arrival at each barrier, one element per barrier.

    Attributes:
        iteration: Index of the iteration.
        rank: Index of the rank that arrived last.
        late_ns: Mean time by which the other ranks waited longer.
        part: Part of the step that contributes most to the lateness, or "" if unknown.
    """

    iteration: tuple[Count, ...]
    rank: tuple[Count, ...]
    late_ns: tuple[int, ...]
    part: tuple[str, ...]

    @classmethod
    def of(cls, lateness: Lateness) -> BarrierColumns:
        """Return the last arrivals of all barriers."""
        arrivals = lateness.arrivals
        names = (*arrivals.names, "")
        largest = np.where(arrivals.is_divided, arrivals.part_ns.argmax(axis=1), -1)
        return cls(
            iteration=tuple(arrivals.step.tolist()),
            rank=tuple(arrivals.rank.tolist()),
            late_ns=tuple(arrivals.late_ns.tolist()),
            part=tuple(names[part] for part in largest.tolist()),
        )


class LatenessEntry(Struct, frozen=True):
    """Which ranks arrive last at the barriers of a run without a pipeline; see :class:`.Lateness`.

    Attributes:
        steps: Number of averaged iterations that contain barriers.
        n_barriers: Number of barriers at which several ranks met.
        main_rank: Index of the rank for which others usually wait, or None if there is none.
        hidden_part: Part of the step in which waiting was not told apart from work, or "".
        sentence: Description of the rank or host for which others wait, or "" if there is none.
        ranks: Ranks that arrived last at one or more barriers, largest sum of lateness first.
        barriers: The last arrival at each barrier, or None if there are too many barriers.
    """

    steps: Count
    n_barriers: Count
    main_rank: Count | None
    hidden_part: str
    sentence: str
    ranks: list[LateRankEntry]
    barriers: BarrierColumns | None

    @classmethod
    def of(cls, lateness: Lateness, sentence: str) -> LatenessEntry:
        """Return the entry of the ranks that arrive last at barriers.

        Args:
            lateness: Which ranks arrive last.
            sentence: Description of the main rank, or "" if there is none.
        """
        main, n_barriers = lateness.main, len(lateness.arrivals)
        return cls(
            steps=lateness.n_steps,
            n_barriers=n_barriers,
            main_rank=None if main is None else main.rank,
            hidden_part=lateness.hidden_part,
            sentence=sentence,
            ranks=[
                LateRankEntry(
                    rank=rank.rank,
                    steps=rank.steps,
                    barriers=rank.barriers,
                    late_ns=rank.late_ns,
                    parts_ns=dict(rank.parts),
                )
                for rank in lateness.ranks
            ],
            barriers=BarrierColumns.of(lateness) if n_barriers <= _MAX_BARRIERS else None,
        )


class ProfilingCostEntry(Struct, frozen=True):
    """How much longer profiled steps take than unprofiled ones; see :class:`.ProfilingCost`.

    Attributes:
        unprofiled_ns: Length of an unprofiled step, given by the user.
        profiled_ns: Mean length of the profiled steps.
        error_ns: Half-width of the 95 % confidence interval of ``profiled_ns``, or 0 if unknown.
        steps: Number of profiled steps.
        overhead_ns: Mean time per step during which the profiler recorded that it stopped a
            process, on the process that was stopped longest.
        unexplained_ns: Additional time of a profiled step that the recorded overhead does not
            explain, at least 0.
        ratio: Length of a profiled step divided by the length of an unprofiled one.
        is_equal: Whether both lengths are equal within their uncertainty.
        ratio_bounds: Lower and upper bound of the primary ratio without the profiler, or None if
            the profiled step is not longer.
        sentence: What this means, in words.
    """

    unprofiled_ns: Count
    profiled_ns: Positive
    error_ns: Positive
    steps: Count
    overhead_ns: Positive
    unexplained_ns: Positive
    ratio: Positive
    is_equal: bool
    ratio_bounds: Interval | None
    sentence: str

    @classmethod
    def of(
        cls, cost: ProfilingCost, ratio: float | None, window_ns: float | None, noun: str = "ratio"
    ) -> ProfilingCostEntry:
        """Return the entry of a comparison with an unprofiled step.

        Args:
            cost: The comparison.
            ratio: Mean of the primary ratio, or None if unknown.
            window_ns: Mean length of the ratio's window, or None if unknown.
            noun: Name of the ratio.
        """
        is_known = ratio is not None and window_ns is not None
        return cls(
            unprofiled_ns=cost.unprofiled_ns,
            profiled_ns=cost.profiled_ns,
            error_ns=cost.error_ns,
            steps=cost.steps,
            overhead_ns=cost.overhead_ns,
            unexplained_ns=cost.unexplained_ns,
            ratio=cost.ratio,
            is_equal=cost.is_equal,
            ratio_bounds=cost.bound_ratio(ratio or 0.0, window_ns or 0.0) if is_known else None,
            sentence=describe_cost_and_bounds(cost, ratio, window_ns, noun),
        )


class AdviceEntry(Struct, frozen=True):
    """A change that would shorten iterations, described in words; see :class:`.advice.Advice`.

    Attributes:
        kind: Kind of the advice, for example ``rank`` or ``schedule``. If several faults are
            removed together, their kinds are joined by ``+``.
        saving_ratio: Saved fraction of an iteration, or None if no saving is promised.
        action: What to do, without any evidence.
        place: Name of the fault or schedule. It is the same in every run of a job.
        error_ratio: Half-width of the 95 % confidence interval of ``saving_ratio``, or None if
            unknown.
        stages: Stages that have too much work.
        measure: (name, value) pairs that quantify the evidence, for example the time of a phase as
            a multiple of its usual time.
        ranks: Indices of the ranks to change. Empty if the advice applies to all ranks or to no
            rank in particular.
        rank_numbers: Numbers that the ranks in ``ranks`` have within their job, in ascending order.
        stage: Common stage of the ranks in ``ranks``, or None if there are no ranks or several
            stages.
        saving_ns: Mean saving per averaged iteration, or None if no saving is promised.
        iterations: Number of averaged iterations that the change shortens.
        example_iteration: Index of the typical iteration among the iterations with the fault, or
            None if the advice is neither about slow iterations nor about a fault that began during
            the run.
        since_iteration: Index of the first iteration with the fault if it began during the run,
            otherwise None.
        repaired_saving_ratio: Saved fraction of an iteration if a slow stage has a slow GPU that is
            repaired, or None if this is ruled out or not promised.
        repaired_error_ratio: Half-width of the 95 % confidence interval of
            ``repaired_saving_ratio``, or None if unknown.
        repaired_saving_ns: Mean saving per averaged iteration if the GPU is repaired, or None if
            this is ruled out or not promised.
        evidence: Sentences with evidence that the change would help, or "".
        sentence: The action and its saving.
        text: The action and its saving, followed by the evidence.
    """

    kind: str
    saving_ratio: Finite | None
    action: str
    place: str
    error_ratio: Finite | None = None
    stages: tuple[int, ...] = ()
    measure: tuple[tuple[str, float], ...] = ()
    ranks: tuple[Count, ...] = ()
    rank_numbers: tuple[int, ...] = ()
    stage: int | None = None
    saving_ns: int | None = None
    iterations: int = 0
    example_iteration: int | None = None
    since_iteration: int | None = None
    repaired_saving_ratio: Finite | None = None
    repaired_error_ratio: Finite | None = None
    repaired_saving_ns: int | None = None
    evidence: str = ""
    sentence: str = ""
    text: str = ""

    def __str__(self) -> str:
        """Return the action, its saving and the evidence."""
        return self.text

    def __repr__(self) -> str:
        return f"AdviceEntry({self.text!r})"

    @property
    def share(self) -> str:
        """Text that gives the promised saving in percent and its error, or "unknown".

        If repairing a slow GPU is an alternative, its saving follows.
        """
        saving = format_saving(self.kind, self.place, self.saving_ratio, self.error_ratio)
        return format_alternatives(
            saving, self.saving_ratio, self.repaired_saving_ratio, self.repaired_error_ratio
        )

    @property
    def largest_saving_ns(self) -> int | None:
        """The larger of the savings with and without a slow GPU, in ns. None if unknown."""
        if self.saving_ns is None or self.repaired_saving_ns is None:
            return self.saving_ns
        return max(self.saving_ns, self.repaired_saving_ns)

    @property
    def largest_saving_ratio(self) -> float | None:
        """:attr:`largest_saving_ns` as a fraction of an iteration, or None if unknown."""
        if self.saving_ratio is None or self.repaired_saving_ratio is None:
            return self.saving_ratio
        return max(self.saving_ratio, self.repaired_saving_ratio)

    @property
    def short(self) -> str:
        """The action, followed by the promised saving in percent."""
        return f"{self.action} ({self.share})"

    @property
    def action_and_evidence(self) -> str:
        """The action, followed by the evidence, without the saving."""
        return join_sentences(self.action, self.evidence)


def join_sentences(*sentences: str) -> str:
    """Join sentences that have no final period. Empty sentences are left out."""
    return ". ".join(filter(None, sentences))


class RestrictionEntry(Struct, frozen=True):
    """A reason why the ratios do not describe a complete pipeline.

    Attributes:
        code: Code of the reason, for example ``ranks-missing``. The codes are the same in all
            versions.
        text: A text that states the reason.
    """

    code: str = ""
    text: str = ""

    @classmethod
    def list_of(cls, restrictions: Iterable[Restriction]) -> list[RestrictionEntry]:
        """Return one entry per restriction, in the given order."""
        return [cls(restriction.code, restriction.text) for restriction in restrictions]


class Columns(Struct, frozen=True):
    """Base class of tables that are stored as columns, with one value per row in each column."""

    def __post_init__(self) -> None:
        """Raise a ``ValueError`` if columns have different lengths."""
        values = [getattr(self, name) for name in self.__struct_fields__]
        if len(set(_list_lengths(values))) > 1:
            raise ValueError("columns of one table have different lengths")


def _list_lengths(values: Iterable[object]) -> Iterator[int]:
    """Yield the lengths of columns, including columns in dictionaries and in nested tables."""
    for value in values:
        if isinstance(value, list):
            yield len(value)
        elif isinstance(value, dict):
            yield from _list_lengths(value.values())
        elif isinstance(value, Columns):
            yield from _list_lengths([getattr(value, value.__struct_fields__[0])])


class WindowColumns(Columns, frozen=True):
    """The window of one ratio on each rank, and what the rank did during the window.

    Attributes:
        start_ns: Start of the window.
        end_ns: End of the window.
        compute_ns: Time in the window during which any compute operation ran.
        optimizer_ns: Time in the window during which the optimizer ran.
        overlap_ns: Time in the window during which operations of other iterations ran.
        unattributed_ns: Time in the window during which compute ran outside operations.
        bubble_ns: Bubble time in the window.
        window_ns: Length of the window.
    """

    start_ns: list[int]
    end_ns: list[int]
    compute_ns: list[int]
    optimizer_ns: list[int]
    overlap_ns: list[int]
    unattributed_ns: list[int]
    bubble_ns: list[int]
    window_ns: list[int]


class CommunicationColumns(Columns, frozen=True):
    """Communication times, by rank; see :class:`.communication_times.CommunicationTimes`.

    Attributes:
        wait_ns: Time that the rank spent waiting for inputs and for other members of collectives.
        transfer_ns: Time spent in receives and collectives, excluding the time in ``wait_ns``.
        exposed_ns: Time during which data was being transferred while the rank was not computing.
        communication_ns: Time during which any communication kernel ran.
        overlapped_ns: Part of ``communication_ns`` during which compute kernels were running as
            well.
    """

    wait_ns: list[int]
    transfer_ns: list[int]
    exposed_ns: list[int]
    communication_ns: list[int]
    overlapped_ns: list[int]


class RankColumns(Columns, frozen=True):
    """The ranks of an iteration, as columns. Keys are names of ratios, phases or causes.

    Attributes:
        rank: Indices of the ranks.
        busy_ns: Time during which operations of each phase were running.
        compute_ns: Time during which any compute operation ran.
        active_ns: Time during which any compute kernel of a compute operation ran.
        kernel_ns: Time during which any kernel or copy ran.
        gap_ns: Time in operations during which no kernel ran.
        unattributed_ns: Compute time outside operations in the window of ``schedule``, or None if
            no rank has this window.
        overlap_ns: Time in the window of ``schedule`` during which operations of other iterations
            ran, or None if no rank has this window.
        bubble_ns: Bubble time for each ratio.
        bubble_ratio: Value of each ratio, or None if unknown.
        bubble_interval: Clock bounds of each ratio that requires a common clock. None if the bounds
            of all ranks are unknown.
        missing: Text that names the work that is missing on the rank for a ratio, or None if
            nothing is missing.
        windows: The windows for each ratio.
        cause_ns: Idle time in each ratio's windows, keyed by ratio and cause.
        communication: Communication times.
    """

    rank: list[int]
    busy_ns: dict[str, list[int]]
    compute_ns: list[int]
    active_ns: list[int]
    kernel_ns: list[int]
    gap_ns: list[int]
    unattributed_ns: list[int] | None
    overlap_ns: list[int] | None
    bubble_ns: dict[str, list[int]]
    bubble_ratio: dict[str, list[Finite | None]]
    bubble_interval: dict[str, list[Interval | None] | None]
    missing: list[str | None]
    windows: dict[str, WindowColumns]
    cause_ns: dict[str, dict[str, list[int]]]
    communication: CommunicationColumns


class IterationEntry(Struct, frozen=True):
    """One iteration; see :class:`.iterations.Iteration`. Keys are names of ratios.

    Attributes:
        index: Index of the iteration in the report. Every field named ``iteration`` contains this
            index.
        name: Name of the iteration in range names, or its number.
        kind: ``training``, ``evaluation`` or ``inference``.
        complete: Whether the capture contains the complete iteration.
        averaged: Whether the iteration is part of the averages.
        microbatches: Number of microbatches, or None if unknown.
        start_ns: Time at which work first started on any rank, or None if there was no work.
        end_ns: Time at which work last ended on any rank, or None if there was no work.
        window_ns: Length of each ratio's window, averaged over the ranks, or None if unknown.
        bubble_ratio: Value of each ratio, or None if unknown.
        bubble_low: Value that each ratio would have if compute outside operations counted as work.
        bubble_overhead: Bubble time divided by work time.
        bubble_interval: Clock bounds of each ratio that requires a common clock, or None if
            unknown.
        incomplete: Whether the report lacks a rank that took part in the iteration.
        clocks_contradict: Whether any ratio depends on clocks that contradict each other.
        clock_set: Whether a clock was set during the iteration.
        cause_ns: Idle time in each ratio's windows, keyed by ratio and cause, summed over the
            ranks.
        ranks: Ranks of the iteration, or None if the report does not contain them.
    """

    index: int
    name: str
    kind: str
    complete: bool
    averaged: bool
    microbatches: Count | None
    start_ns: int | None
    end_ns: int | None
    window_ns: dict[str, int | None]
    bubble_ratio: dict[str, Finite | None]
    bubble_low: dict[str, Finite | None]
    bubble_overhead: dict[str, Finite | None]
    bubble_interval: dict[str, Interval | None]
    incomplete: bool
    clocks_contradict: bool
    clock_set: bool
    cause_ns: dict[str, dict[str, int]]
    ranks: RankColumns | None


class TimePart(Struct, frozen=True):
    """A part of a bubble or of a step; see :class:`.bubble_parts.BubblePart`.

    Attributes:
        name: Cause of idle time, or kind of work, for example ``launch gaps``.
        meaning: What the name means.
        share: Fraction of the window, averaged over the averaged iterations.
        time_ns: Mean time per rank and averaged iteration.
    """

    name: str
    meaning: str
    share: Positive
    time_ns: Positive


class KernelTimeEntry(Struct, frozen=True):
    """How long kernels ran in averaged iterations; see :class:`.kernel_time.KernelTime`.

    Attributes:
        window_ns: Total length of the primary ratio's windows, summed over ranks and iterations.
        kernel_ns: Time in the windows during which any kernel or copy ran.
        bubble_ns: Bubble time in the windows.
        gap_ns: Time in operations during which no kernel ran.
        unattributed_ns: Time in the windows during which compute ran outside operations.
        work_ns: Total time of compute operations.
        share: ``kernel_ns`` divided by ``window_ns``, or None if there are no windows.
        beside_headline: Whether outputs show ``sentence`` next to the primary ratio.
        sentence: Sentence about how long kernels ran, or None if it is not needed next to the
            primary ratio.
    """

    window_ns: int
    kernel_ns: int
    bubble_ns: int
    gap_ns: int
    unattributed_ns: int
    work_ns: int
    share: float | None
    beside_headline: bool
    sentence: str | None


class StepSummary(Struct, frozen=True):
    """The parts that make up the time of a step.

    Attributes:
        window: Name of the ratio whose window is used as a step.
        parts: The parts of the step. Their shares add up to 1.
        flops_use: Model FLOPs utilization (MFU), or None if FLOPs are not given.
    """

    window: str
    parts: list[TimePart]
    flops_use: float | None


class Numbers(Struct, SummaryValue, frozen=True):
    """Statistics over averaged iterations. Keys are names of ratios.

    Attributes:
        iterations: Number of averaged iterations.
        bubble_ratio: Average of each ratio.
        bubble_interval: Clock bounds of the mean of each ratio that requires a common clock, or
            None if unknown.
        bubble_low: Average that each ratio would have if compute outside operations counted as
            work.
        bubble_overhead: Average of the bubble time divided by the work time.
        window_ns: Average length of each ratio's window.
        cause_ns: Idle time, keyed by ratio and cause, summed over the averaged iterations in which
            the ratio is known.
        bubble_parts: Parts of the bubble in the primary ratio, largest first.
        kernel_time: Time during which kernels ran, compared with the bubble.
        launch_gap: Fraction of the operation time during which no kernel ran, or None if unknown.
        step: The parts that make up the time of a step.
    """

    iterations: Count
    bubble_ratio: dict[str, Average]
    bubble_interval: dict[str, Interval | None]
    bubble_low: dict[str, Average]
    bubble_overhead: dict[str, Average]
    window_ns: dict[str, Average]
    cause_ns: dict[str, dict[str, int]]
    bubble_parts: list[TimePart]
    kernel_time: KernelTimeEntry
    launch_gap: Finite | None
    step: StepSummary


class DeviationEntry(Struct, frozen=True):
    """An operation that did not follow the planned order; see :class:`.deviations.Deviation`.

    Attributes:
        rank: Index of the rank.
        iteration: Index of the iteration.
        phase: Phase of the operation.
        microbatch: Microbatch of the operation.
        chunk: Model chunk of the operation, or None if there are no chunks.
        what: Kind of deviation: ``late``, ``early``, ``missing``, ``extra`` or ``repeated``.
        places: Number of operations by which the operation was too late or too early.
    """

    rank: int
    iteration: int
    phase: str
    microbatch: int
    chunk: int | None
    what: str
    places: int


class ScheduleEntry(Struct, frozen=True):
    """The schedule that ran, or how a plan was followed; see :class:`.recognition.Recognition`.

    Attributes:
        name: Name of the schedule, or None if no known schedule was recognized.
        also: Names of other schedules that have the same order.
        exact: Whether all averaged iterations followed the schedule exactly.
        distance: Mean fraction of the planned operations that did not run as planned, or None if
            the order was not compared with a plan.
        reason: Text that explains why there is no name or how the name was recognized, or None.
        iterations: Schedule of each training iteration.
        deviation_count: Total number of operations that deviate from the plan.
        deviations: The first operations that deviate from the plan.
    """

    name: str | None
    also: tuple[str, ...]
    exact: bool
    distance: float | None
    reason: str | None
    iterations: list[IterationOrder]
    deviation_count: int
    deviations: list[DeviationEntry]


class PhaseTimeEntry(Struct, frozen=True):
    """Times of one kind of operation; see :class:`.phase_times.PhaseTime`.

    Attributes:
        phase: Phase of the operations.
        median_ns: Median busy time. For transfers, the lower median of the transfer time.
        stage: Stage of the ranks, or None if unknown.
        chunk: Model chunk, or None if there are no chunks.
        virtual_stage: Position of the model chunk in the model, or None if unknown.
        gap_ns: Median time from the end of the previous operation to the start of an operation that
            did not have to wait, or None if unknown.
        pipeline_ns: Mean time in the slowest pipeline of the typical iteration, or None if unknown.
        mean_ns: The mean time.
        std_ns: Standard deviation of the time with n - 1 degrees of freedom, or None if unknown.
        n: Number of operations in all replicas and averaged iterations.
        min_ns: Minimum time.
        max_ns: Maximum time.
        first_ns: Median time of the first microbatch, or None if unknown.
        last_ns: Median time of the last microbatch, or None if unknown.
    """

    phase: str
    median_ns: Positive
    stage: int | None
    chunk: int | None
    virtual_stage: int | None
    gap_ns: Positive | None
    pipeline_ns: Positive | None
    mean_ns: Positive
    std_ns: Positive | None
    n: Count
    min_ns: Count
    max_ns: Count
    first_ns: Positive | None
    last_ns: Positive | None


class ChunkCostEntry(Struct, frozen=True):
    """Fitted time of prompt chunks on a virtual stage; see :class:`.chunk_costs.ChunkCost`.

    Attributes:
        stage: Stage of the ranks, or None if unknown.
        virtual_stage: Position of the model chunk in the model, or None if unknown.
        n: Number of prompt chunks.
        least_tokens: Number of tokens in the shortest prompt chunk.
        most_tokens: Number of tokens in the longest prompt chunk.
        fixed_ns: Constant term of the fit, or the mean time if there are no other terms.
        token_ns: Linear term of the fit: time per token. None if the fit is a constant.
        token_squared_ns: Quadratic term of the fit, in ns per squared token. None if the fit is a
            constant.
        residual_ns: Standard deviation of the residuals of the fit, or None if unknown.
        explained: Fraction of the variance in the times that is explained by the fit, or None if
            the times have no variance.
        prompt_tokens: Number of tokens in the longest prompt if the fit uses prefixes, or 0
            otherwise.
        max_fixed_ns: Upper bound of ``fixed_ns`` if all chunks have the same length and their times
            depend on the prefix. A larger ``fixed_ns`` makes ``token_ns`` smaller. None in all
            other cases.
    """

    stage: int | None
    virtual_stage: int | None
    n: int
    least_tokens: int
    most_tokens: int
    fixed_ns: float
    token_ns: float | None
    token_squared_ns: float | None
    residual_ns: float | None
    explained: float | None
    prompt_tokens: int
    max_fixed_ns: float | None = None


class EvenChunks(Struct, frozen=True):
    """Prompt chunks that take equal time; see :class:`.prompt_splits.PromptSplit`.

    Attributes:
        virtual_stage: Virtual stage with the slowest chunks, or None if unknown.
        tokens: Number of tokens in each chunk.
        equal_ns: Time that the prompt takes in chunks of equal length.
        even_ns: Time that the prompt takes if all chunks take equal time, or its upper bound.
        min_even_ns: Lower bound of ``even_ns`` if the fixed cost of a chunk is unknown, otherwise
            equal to ``even_ns``.
    """

    virtual_stage: int | None
    tokens: tuple[int, ...]
    equal_ns: float
    even_ns: float
    min_even_ns: float | None = None


class StageSlotsEntry(Struct, frozen=True):
    """What fits into the bubbles of a stage; see :class:`.extra_work.StageSlots`.

    Attributes:
        stage: The stage, or None if unknown.
        rank: Index of the rank of the stage that takes the fewest pieces. All numbers are those of
            this rank, as means over iterations.
        idle_ns: Time of the bubbles.
        warm_up_pieces: Number of pieces that fit into bubbles before the rank's first operation.
        between_pieces: Number of pieces that fit into bubbles between two operations.
        drain_pieces: Number of pieces that fit into bubbles after the rank's last operation.
        fitting_ns: Time of the job that fits if the stage runs the job alone.
        rest_ns: Time of the job that does not fit.
    """

    stage: int | None
    rank: Count
    idle_ns: Positive
    warm_up_pieces: Positive
    between_pieces: Positive
    drain_pieces: Positive
    fitting_ns: Positive
    rest_ns: Positive


class ExtraWorkEntry(Struct, frozen=True):
    """How much of a job fits into bubbles; see :class:`.extra_work.ExtraWork`.

    Attributes:
        work_ns: Length of the job.
        piece_ns: Length of an indivisible piece of the job.
        ratio: Name of the ratio whose windows contain the bubbles.
        iterations: Number of iterations over which means are taken.
        stages: One entry per stage, in pipeline order. If stages are unknown, one entry per rank.
        fitting_ns: Time of the job that fits if the stages share its pieces, as a mean over
            iterations.
        rest_ns: Time of the shared job that does not fit.
        longest_ns: Length of the longest bubble in which the job could run, on the ranks of
            ``stages``.
    """

    work_ns: Count
    piece_ns: Count
    ratio: str
    iterations: Count
    stages: list[StageSlotsEntry]
    fitting_ns: Positive
    rest_ns: Positive
    longest_ns: Count


class WarmUpEntry(Struct, frozen=True):
    """Extra time of a stage in the first iteration; see :class:`.first_step.WarmUp`.

    Attributes:
        stage: Stage.
        rank: Index of the stage's rank with the most extra time.
        forward_ns: Extra time of this rank's forwards and recomputations.
        backward_ns: Extra time of this rank's backwards.
        activity: Name of the range or API call in which the rank's launching thread spent most of
            the time before late launches, or None if unknown.
    """

    stage: int
    rank: int
    forward_ns: int
    backward_ns: int
    activity: str | None


class FirstStepEntry(Struct, frozen=True):
    """Extra time of the first iteration; see :class:`.first_step.FirstStep`.

    Attributes:
        iteration: Index of the iteration.
        length_ns: Time from the moment at which the first operation could start to the last end.
        usual_ns: Median of this time over the later iterations.
        stages: Stages with extra time.
        total_ns: Sum of the extra times of all stages.
        longest_ns: Longest extra time of any stage.
        elapsed_ns: Time during which at least one rank spent extra time.
        saving_ns: Time that would be saved if all stages warmed up at the same time.
    """

    iteration: int
    length_ns: int
    usual_ns: int
    stages: list[WarmUpEntry]
    total_ns: int
    longest_ns: int
    elapsed_ns: int
    saving_ns: int


class OperationEntry(Struct, frozen=True):
    """An operation of a rank.

    Attributes:
        rank: Index of the rank.
        iteration: Index of the iteration.
        phase: Phase of the operation.
        microbatch: Microbatch of the operation, or None if it has no microbatch.
        chunk: Model chunk of the operation, or None if there are no chunks.
        start_ns: Start of the operation.
        end_ns: End of the operation.
    """

    rank: int
    iteration: int
    phase: str
    microbatch: int | None
    chunk: int | None
    start_ns: int
    end_ns: int


class Straggler(OperationEntry, frozen=True):
    """An operation that took much longer than other operations of the same kind.

    Attributes:
        times_median: Time of the operation divided by the median time of all operations of its
            kind.
    """

    times_median: float


class SlackEntry(OperationEntry, frozen=True):
    """An operation that is not on the critical path.

    Attributes:
        slack_ns: How long the end of the operation could be delayed without making the iteration
            longer.
    """

    slack_ns: int


class CriticalPathEntry(Struct, frozen=True):
    """The critical path of an iteration; see :class:`.path.CriticalPath`.

    Attributes:
        iteration: Index of the iteration.
        length_ns: Length of the path.
        parts: Parts of the path's length, largest first.
        collectives: Collectives on the path, in order.
        operations: Operations on the path, in order.
        slack: Operations with slack, or None if there are too many to list.
    """

    iteration: int
    length_ns: int
    parts: list[PathPart]
    collectives: list[PathCollective]
    operations: list[OperationEntry]
    slack: list[SlackEntry] | None


class Change(Struct, frozen=True):
    """The typical iteration, replayed with a single change; see :class:`.changes.Change`.

    Attributes:
        name: Name of the change, which is stable across versions.
        change: Text that describes the change.
        makespan_ns: Length of the iteration with the change.
        bubble_ratio: Ratio ``schedule`` of the iteration with the change, or None if its length
            is 0.
    """

    name: str
    change: str
    makespan_ns: Count
    bubble_ratio: float | None


class Changes(Struct, frozen=True):
    """The typical iteration, replayed without changes and with single changes.

    Attributes:
        makespan_ns: Length of the iteration, replayed without changes.
        bubble_ratio: Ratio ``schedule`` of this replay, or None if its length is 0.
        rows: The replays that include a change.
    """

    makespan_ns: Count
    bubble_ratio: float | None
    rows: list[Change]


class StageTimesEntry(Struct, frozen=True):
    """Times of the stages for one microbatch, in ms; see :class:`.measured_times.StageTimes`.

    Attributes:
        forward_ms: Time of the forward pass, as one value for all stages or one value per stage.
        backward_ms: Time of the backward pass that computes the input gradient, in the same form as
            ``forward_ms``.
        weight_ms: Time of the backward pass that computes the weight gradients, in the same form as
            ``forward_ms``.
        transfer_ms: Time of a transfer between two devices.
        lengths: Each microbatch's length divided by the mean length. Empty if all microbatches have
            the same length.
    """

    forward_ms: tuple[float, ...]
    backward_ms: tuple[float, ...]
    weight_ms: tuple[float, ...]
    transfer_ms: float
    lengths: tuple[float, ...]


class SimulatedTimes(Struct, frozen=True):
    """The sizes and times that are used to simulate other schedules.

    Attributes:
        stages: Number of stages.
        microbatches: Number of microbatches.
        chunks: Number of model chunks per stage.
        times: Stage times.
        split: Whether B and W were measured separately.
    """

    stages: int
    microbatches: int
    chunks: int
    times: StageTimesEntry
    split: bool


class ChoiceEntry(Struct, frozen=True):
    """An iteration simulated with a particular schedule; see :class:`.choices.Choice`.

    Attributes:
        name: Name of the schedule, ``measured`` for the order that ran, or ``no-delay`` for the
            same order without delays.
        makespan_ms: Time from the first start to the last end over all stages, or None if unknown.
        cost_ms: Longest time from the first start to the last end on a single stage, or None if
            unknown.
        bubble_ratio: Bubble ratio in the window used to compare schedules, or None if unknown.
        peak_activations: Maximum number of microbatches whose activations a stage stores at once,
            or None if unknown.
        speedup: Fraction of the window of the order that ran that the schedule saves, or None if
            unknown. If schedules are compared by makespan, this is its simulated window without
            delays. Otherwise it is the measured window.
        fits: Whether the schedule needs no more memory than the run, or than the memory limit if
            there is one. None if memory is not compared.
        reason: Reason why the schedule cannot be simulated, or "".
        peaks: For each stage, the maximum number of microbatches whose activations it stores at
            once. Empty if unknown.
        replicas: Number of model replicas.
        peak_bytes: Memory in bytes on the device that needs the most, or None if memory was not
            measured.
    """

    name: str
    makespan_ms: float | None
    cost_ms: float | None
    bubble_ratio: float | None
    peak_activations: float | None
    speedup: float | None
    fits: bool | None
    reason: str
    peaks: tuple[float, ...]
    replicas: int
    peak_bytes: float | None


class WhatIfEntry(Struct, frozen=True):
    """Other schedules, simulated with the times of the run; see :class:`.what_if.WhatIf`.

    Attributes:
        reason: Reason why there are no rows, or "".
        window: Name of the ratio whose window is compared.
        times: Sizes and times of the run, or None if unknown.
        rows: The order that ran, followed by other schedules, best first.
        reordered: The best microbatch order, and the fraction of the makespan that it saves. None
            if all microbatches have the same length.
        limit_bytes: Memory limit of a device, or None if the run's peak memory is the limit.
    """

    reason: str
    window: str
    times: SimulatedTimes | None
    rows: list[ChoiceEntry]
    reordered: tuple[tuple[int, ...], float] | None
    limit_bytes: Positive | None


class LongBubble(Struct, frozen=True):
    """One of the longest bubbles in the run.

    Attributes:
        rank: Index of the rank.
        iteration: Index of the iteration.
        start_ns: Start of the bubble.
        end_ns: End of the bubble.
        cause: Name of the cause.
        sentence: A sentence that describes the bubble.
    """

    rank: int
    iteration: int
    start_ns: int
    end_ns: int
    cause: str
    sentence: str


class SlowdownColumns(Columns, frozen=True):
    """Slowdowns of stages, replicas, ranks, microbatches or iterations, as columns.

    Attributes:
        number: The number or index of the stage, replica, rank, microbatch or iteration.
        slowdown: Slowdown caused by the stage, replica, rank, microbatch or iteration. A value of 1
            means no slowdown.
    """

    number: list[int]
    slowdown: list[Positive]


class LinkSlowdowns(Columns, frozen=True):
    """Slowdowns of transfers between stages, as columns.

    Attributes:
        source: The sending stage.
        target: The receiving stage.
        slowdown: Slowdown of the transfers.
    """

    source: list[int]
    target: list[int]
    slowdown: list[Positive]


class SlowdownEntry(Struct, frozen=True):
    """Cost of stragglers; see :class:`.slowdowns.Slowdowns`. A value of 1 means no slowdown.

    Attributes:
        total: Slowdown caused by all work together.
        by_phase: Slowdown caused by each phase.
        by_stage: Slowdown caused by each stage.
        by_replica: Slowdown caused by each replica of the pipeline.
        by_rank: Slowdown caused by each rank.
        by_microbatch: Slowdown caused by each microbatch.
        by_link: Slowdown caused by the transfers between each pair of stages.
        by_iteration: Slowdown in each iteration.
        worker_share: Fraction of the slowdown caused by the slowest 3 % of the workers, or None if
            there is no slowdown.
        last_stage_share: Fraction of the slowdown caused by the last stage, or None if there is no
            slowdown.
        original_ns: Mean length of the iterations when replayed with the measured durations.
        ideal_ns: Mean length of ideal iterations.
        replay_error: Differences between the replayed and measured iterations.
    """

    total: Positive
    by_phase: dict[str, Positive]
    by_stage: SlowdownColumns
    by_replica: SlowdownColumns
    by_rank: SlowdownColumns
    by_microbatch: SlowdownColumns
    by_link: LinkSlowdowns
    by_iteration: SlowdownColumns
    worker_share: float | None
    last_stage_share: float | None
    original_ns: Positive
    ideal_ns: Positive
    replay_error: ReplayError


class LimitationEntry(Struct, frozen=True):
    """A result that could not be determined; see :class:`.limitations.Limitation`.

    Attributes:
        what: Subject of the limitation.
        reason: The reason for the limitation, and its consequences.
        count: Number of affected items, such as kernels or files.
        affects_times: Whether times or ratios may be wrong because of the limitation.
    """

    what: str
    reason: str
    count: int
    affects_times: bool = True

    @classmethod
    def list_of(cls, limitations: Iterable[Limitation]) -> list[LimitationEntry]:
        """Return one entry per limitation, in the given order."""
        return [
            cls(note.what, note.reason, note.count, note.kind not in HARMLESS)
            for note in limitations
        ]


class SavedTimeline(Struct, frozen=True):
    """Tables from which pictures are drawn; see :class:`.timeline.Timeline`.

    Attributes:
        base_ns: Reference time of the tables. All other times are relative to it.
        names: The names that the tables refer to by index.
        tables: Columns, keyed by table and column. Unknown or missing values are None.
    """

    base_ns: int
    names: tuple[str, ...]
    tables: dict[str, dict[str, list[Int64 | None]]]


class RunSummary(Struct, frozen=True):
    """A report in JSON form.

    Attributes:
        schema: Name and version of this model.
        version: Version of bubbleviz that wrote the report.
        kind: ``training`` or ``inference``.
        headline: Name of the primary ratio.
        headline_reason: Sentence that explains the choice of the primary ratio.
        convention: Name of the convention that range names follow.
        profiles: Profiles, in the given order.
        ranks: Ranks, in pipeline order.
        what_to_do_first: The most important advice as sentences, or None if nothing is advised.
        first: The most important advice in machine-readable form, one step per sentence. Empty if
            nothing is advised.
        then: The advice to follow next, as indices into ``advice``.
        advice: Changes that would shorten iterations, largest saving first.
        restrictions: Reasons why the ratios do not describe a complete pipeline, most severe first.
        typical_iteration: Index of the typical iteration, or None if no iteration has work.
        iterations_overlap: Whether consecutive iterations overlap, so that ``period`` is the
            primary ratio.
        iterations: All iterations.
        summary: Statistics over averaged iterations.
        schedule: The schedule that ran, or None if no attempt was made to recognize it.
        plan: Comparison of the run with the given plan, or None if no plan was given.
        phase_times: Times of each kind of operation.
        chunk_costs: Fitted times of prompt chunks, one entry per virtual stage.
        even_chunks: Prompt chunks that take equal time, or None if they would not save enough.
        transfer_ns: Median of all measured transfer times, or None if none were measured.
        microbatch_lengths: Each microbatch's length divided by the mean length, with one row per
            training iteration and pipeline. Empty if unknown, or if lengths vary only by chance.
        imbalance: For each phase, the time of the slowest stage divided by the mean of all stages,
            minus 1.
        stragglers: The slowest operations.
        critical_path: Critical path of the typical iteration, or None if unknown.
        changes: Replays of the typical iteration with single changes, or None if it was not
            replayed.
        what_if: Other schedules, simulated with the measured times. None if they were not
            simulated.
        memory: Memory use of ranks and operations, or None if it was not recorded.
        longest_bubbles: The longest bubbles.
        slowdown: Cost of stragglers, or None if unknown.
        coverage: GPU time inside and outside operations, for each rank.
        unattributed_kernels: The kernels outside operations that took the most time.
        limitations: Results that could not be determined, along with the reasons.
        methods: A sentence for the methods section of a paper.
        timeline: Tables from which pictures are drawn, or None for large runs.
        outliers: The ranks, stages, pipelines and hosts that differ most from the others, largest
            difference first.
        extra_work: How much of a given job fits into the bubbles, or None if no job was given.
        first_step: Extra time of the first iteration, or None if it has little or if it is unknown.
        profiling_cost: Comparison with an unprofiled step, or None if none was given.
        lateness: Which ranks arrive last at the barriers of a run without a pipeline, or None if
            the run has a pipeline or shows no barriers.
    """

    schema: str
    version: str
    kind: str
    headline: str
    headline_reason: str
    convention: str
    profiles: list[ProfileSummary]
    ranks: list[RankEntry]
    what_to_do_first: str | None
    first: list[StepEntry]
    then: list[Count]
    advice: list[AdviceEntry]
    restrictions: list[RestrictionEntry]
    typical_iteration: int | None
    iterations_overlap: bool
    iterations: list[IterationEntry]
    summary: Numbers
    schedule: ScheduleEntry | None
    plan: ScheduleEntry | None
    phase_times: list[PhaseTimeEntry]
    chunk_costs: list[ChunkCostEntry]
    even_chunks: EvenChunks | None
    transfer_ns: Positive | None
    microbatch_lengths: tuple[tuple[Positive, ...], ...]
    imbalance: dict[str, float]
    stragglers: list[Straggler]
    critical_path: CriticalPathEntry | None
    changes: Changes | None
    what_if: WhatIfEntry | None
    memory: RunMemory | None
    longest_bubbles: list[LongBubble]
    slowdown: SlowdownEntry | None
    coverage: list[RankCoverage]
    unattributed_kernels: list[UnattributedKernels]
    limitations: list[LimitationEntry]
    methods: str
    timeline: SavedTimeline | None
    outliers: tuple[OutlierEntry, ...] = ()
    extra_work: ExtraWorkEntry | None = None
    first_step: FirstStepEntry | None = None
    profiling_cost: ProfilingCostEntry | None = None
    lateness: LatenessEntry | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """Profile paths."""
        return tuple(profile.path for profile in self.profiles)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host name of each profile."""
        return tuple(profile.host for profile in self.profiles)

    @property
    def typical(self) -> IterationEntry | None:
        """The typical iteration, or None if there is none."""
        iterations = enumerate(self.iterations)
        return next((entry for index, entry in iterations if index == self.typical_iteration), None)

    @property
    def makespan_ns(self) -> int | None:
        """Length of the typical iteration, or None if it is unknown."""
        return None if self.changes is None else self.changes.makespan_ns

    @property
    def bubble_ratio(self) -> float | None:
        """Mean of the primary ratio, or None if it is unknown."""
        return self.summary.bubble_ratio[self.headline].mean

    @property
    def microbatches(self) -> int | None:
        """Number of microbatches in the typical iteration, or None if it is unknown."""
        return None if self.typical is None else self.typical.microbatches

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def num_stages(self) -> int | None:
        """Number of pipeline stages that have a rank in the report, or None if unknown."""
        return len({rank.stage for rank in self.ranks} - {None}) or None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document as dictionaries, lists and values."""
        return to_values(self)

    @property
    def schedule_name(self) -> str | None:
        """Name of the schedule that ran, or None if it is unknown."""
        return None if self.schedule is None else self.schedule.name

    def __repr__(self) -> str:
        """Return the primary ratio and the sizes of the run, without the long tables."""
        ratio = f"{self.headline} bubble ratio {format_percent(self.bubble_ratio)}"
        ranks = format_count(len(self.ranks), "rank")
        iterations = format_count(self.summary.iterations, "averaged iteration")
        return f"RunSummary({ratio}, {ranks}, {iterations})"


def to_values(summary: Struct) -> dict[str, Any]:
    """Convert a summary to nested dictionaries and lists that can be written as JSON."""
    values: dict[str, Any] = to_builtins(summary, enc_hook=_to_python_float)
    return values


def _to_python_float(value: object) -> float:
    """Convert a numpy float to a Python float.

    Raises:
        NotImplementedError: The value is not a float.
    """
    if isinstance(value, float):
        return float(value)
    raise NotImplementedError(f"{type(value)} is not a type of the summary")
