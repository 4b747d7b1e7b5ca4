"""The saved report: a model of the JSON that ``bubbleviz analyze -o report.json`` writes.

The order of the fields is the order of the keys. Times are nanoseconds on the report's clock, and
ratios and shares are fractions of 1. :func:`.summarizing.summarize` creates the summary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from msgspec import Meta, Struct, to_builtins

from bubbleviz.explain.path import PathCollective, PathPart
from bubbleviz.explain.recognition.recognition import IterationOrder
from bubbleviz.explain.slowdown.slowdowns import ReplayError
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.operations import ProfileSummary, RankCoverage, UnattributedKernels
from bubbleviz.model.restrictions import Restriction
from bubbleviz.model.texts import format_count, format_percent
from bubbleviz.report.memory import Count, Finite, Positive, RunMemory
from bubbleviz.report.promise import format_saving

#: Name and version of this model.
SCHEMA = "bubbleviz.report/2"
#: Lower and upper bound of a ratio, given the uncertainty of the clocks.
Interval = tuple[Finite, Finite]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class Average(Struct, frozen=True):
    """Mean and spread over iterations.

    Attributes:
        mean: Mean, or None if there are no iterations.
        std: Standard deviation (n - 1), or None for fewer than two iterations.
        min: Smallest value.
        max: Largest value.
        ci95: Half width of the 95 % confidence interval of the mean (Student's t).
        n: Number of iterations.
    """

    mean: Finite | None
    std: Positive | None
    min: Finite | None
    max: Finite | None
    ci95: Positive | None
    n: Count

    def __post_init__(self) -> None:
        """Refuse numbers that contradict each other."""
        if (self.mean is None) != (self.n == 0) or (self.std is None) != (self.n < 2):
            raise ValueError(f"mean, std and n = {self.n} contradict each other")


class RankEntry(Struct, frozen=True):
    """A device as one process sees it; see :class:`.operations.Rank`.

    Attributes:
        index: Index in the report, to which all fields called ``rank`` refer.
        global_rank: Number in the job, or None if it is unknown.
        label: Name that is unique in the report.
        host: Name of the host.
        pid: Process id.
        device_id: Device number as the process sees it.
        uuid: UUID of the GPU, or None if it is unknown.
        gpu: Product name of the GPU, or None if it is unknown.
        pci: PCI address of the GPU, or None if it is unknown.
        stage: Stage of the pipeline, or None if it is unknown.
        pipeline: Index of the pipeline, or None if it is unknown.
        profile: Index of the profile that recorded the rank.
        relative_score: Kernel time of the fastest rank of the same stage divided by the kernel time
            of this rank, or None if it is unknown.
        individual_score: Kernel time of the rank's fastest iteration divided by the kernel time of
            its last iteration, or None if it is unknown.
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


class StepEntry(Struct, frozen=True):
    """A sentence of ``what_to_do_first``, as data.

    Attributes:
        code: Subject of the sentence; ``advice`` if it describes an entry of the report's
            ``advice``.
        advice: Index of that entry, or None for any other subject.
        is_marked: Whether the advice is about at most half of the ranks, which pictures mark.
    """

    code: str
    advice: Count | None
    is_marked: bool


class AdviceEntry(Struct, frozen=True):
    """A change that would shorten iterations, in words; see :class:`.advice.Advice`.

    Attributes:
        kind: Kind of the advice; kinds of faults that are removed together are joined by ``+``.
        saving_ratio: Saved share of an iteration, or None if nothing is promised.
        action: What to do, without the evidence.
        place: Name of the fault or schedule, the same in every run of a job.
        error_ratio: Half width of the 95 % confidence interval of ``saving_ratio``, or None if it
            is unknown.
        stages: Stages that have too much work.
        measure: Names and values of the evidence.
        ranks: Indices of the ranks to change; empty for all ranks or no specific ones.
        rank_numbers: Numbers of these ranks in their job, ascending.
        stage: Common stage of these ranks, or None if there are no ranks or several stages.
        saving_ns: Mean saving over the averaged iterations, or None if nothing is promised.
        iterations: Number of averaged iterations that the change shortens.
        example_iteration: Index of the typical iteration among those in which the ranks are slow,
            or None if the advice is not about slow iterations.
        since_iteration: Index of the first iteration with the fault if it began during the run,
            otherwise None.
        evidence: Evidence that the change would help, in sentences, or "".
        sentence: Action with its saving.
        text: The sentence, followed by the evidence.
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
    evidence: str = ""
    sentence: str = ""
    text: str = ""

    @property
    def share(self) -> str:
        """The promised saving in percent with its error, or "unknown"."""
        return format_saving(self.kind, self.place, self.saving_ratio, self.error_ratio)

    @property
    def short(self) -> str:
        """The action, and the promised saving in percent."""
        return f"{self.action} ({self.share})"

    @property
    def action_and_evidence(self) -> str:
        """The action and the evidence, without the saving."""
        return join_sentences(self.action, self.evidence)


def join_sentences(*sentences: str) -> str:
    """Join sentences that have no full stop; empty ones are left out."""
    return ". ".join(filter(None, sentences))


class RestrictionEntry(Struct, frozen=True):
    """A reason why the ratios do not describe a complete pipeline.

    Attributes:
        code: Name of the reason, the same in every version.
        text: The reason in words.
    """

    code: str = ""
    text: str = ""

    @classmethod
    def list_of(cls, restrictions: Iterable[Restriction]) -> list[RestrictionEntry]:
        """Return the entries of restrictions, in their order."""
        return [cls(restriction.code, restriction.text) for restriction in restrictions]


class Columns(Struct, frozen=True):
    """Base of tables that are stored as columns, one value per row."""

    def __post_init__(self) -> None:
        """Refuse columns of different lengths."""
        values = [getattr(self, name) for name in self.__struct_fields__]
        if len(set(_list_lengths(values))) > 1:
            raise ValueError("columns of one table have different lengths")


def _list_lengths(values: Iterable[object]) -> Iterator[int]:
    """Yield the lengths of columns, including those in dictionaries of columns."""
    for value in values:
        if isinstance(value, list):
            yield len(value)
        elif isinstance(value, dict):
            yield from _list_lengths(value.values())
        elif isinstance(value, Columns):
            yield from _list_lengths([getattr(value, value.__struct_fields__[0])])


class WindowColumns(Columns, frozen=True):
    """The window of one ratio on each rank, and the time spent on each kind of work in it.

    Attributes:
        start_ns: Start of the window.
        end_ns: End of the window.
        compute_ns: Time during which any compute operation ran.
        optimizer_ns: Time during which the optimizer ran.
        overlap_ns: Time during which operations of other iterations ran.
        unattributed_ns: Time of compute outside operations.
        bubble_ns: Time that counts as bubble.
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
    """Times of communication by rank; see :class:`.communication_times.CommunicationTimes`.

    Attributes:
        wait_ns: Time of waiting for inputs and for other members of collectives.
        transfer_ns: Time of transfers after their input was ready.
        exposed_ns: Time of transfers during which the rank computed no operation.
        communication_ns: Time during which any communication kernel ran.
        overlapped_ns: Part of ``communication_ns`` during which compute kernels ran.
    """

    wait_ns: list[int]
    transfer_ns: list[int]
    exposed_ns: list[int]
    communication_ns: list[int]
    overlapped_ns: list[int]


class RankColumns(Columns, frozen=True):
    """The ranks of an iteration, as columns. Keys are names of ratios, phases or causes.

    Attributes:
        rank: Index of the rank.
        busy_ns: Time during which operations of each phase ran.
        compute_ns: Time during which any compute operation ran.
        active_ns: Time during which any compute kernel of these operations ran.
        kernel_ns: Time during which any kernel or copy ran.
        gap_ns: Time in operations during which no kernel ran.
        unattributed_ns: Compute outside operations in the windows of ``schedule``, or None without
            these windows.
        overlap_ns: Time of other iterations' operations in the windows of ``schedule``, or None
            without these windows.
        bubble_ns: Bubble time of each ratio.
        bubble_ratio: Value of each ratio, or None if it is unknown.
        bubble_interval: Bounds of each ratio that needs a common clock, or None if they are
            unknown for all ranks.
        missing: Work that the rank lacks for a ratio, in words, or None if it lacks nothing.
        windows: Windows of each ratio.
        cause_ns: Idle time, keyed by ratio and cause.
        communication: Times of communication.
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
        index: Index in the report, to which all fields called ``iteration`` refer.
        name: Name of the iteration in the names of ranges, or its number.
        kind: ``training``, ``evaluation`` or ``inference``.
        complete: Whether the capture contains the complete iteration.
        averaged: Whether the iteration is part of the averages.
        microbatches: Number of microbatches, or None if it is unknown.
        start_ns: First start of work on any rank, or None without work.
        end_ns: Last end of work on any rank, or None without work.
        window_ns: Mean length of the ranks' windows.
        bubble_ratio: Value of each ratio, or None if it is unknown.
        bubble_low: The ratio if compute outside operations were work.
        bubble_overhead: Bubble relative to the work.
        bubble_interval: Bounds of each ratio that needs a common clock, or None if they are
            unknown.
        incomplete: Whether a rank that takes part in the iteration is missing.
        clocks_contradict: Whether clocks that a ratio needs contradict each other.
        clock_set: Whether a clock was set during the iteration.
        cause_ns: Idle time, keyed by ratio and cause, summed over the ranks.
        ranks: Ranks of the iteration, or None in reports without ranks.
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
        name: Cause of the idle time, or kind of work.
        meaning: Meaning of the name.
        share: Mean share of the window.
        time_ns: Mean time over averaged iterations and ranks.
    """

    name: str
    meaning: str
    share: Positive
    time_ns: Positive


class KernelTimeEntry(Struct, frozen=True):
    """How long kernels ran in averaged iterations; see :class:`.kernel_time.KernelTime`.

    Attributes:
        window_ns: Length of the windows of the primary ratio, summed over ranks.
        kernel_ns: Time in these windows during which any kernel or copy ran.
        bubble_ns: Bubble in these windows.
        gap_ns: Time in operations during which no kernel ran.
        unattributed_ns: Compute outside operations in these windows.
        work_ns: Time of the compute operations.
        share: ``kernel_ns`` as a share of ``window_ns``, or None without windows.
        beside_headline: Whether outputs quote ``sentence`` next to the primary ratio.
        sentence: Sentence on how long kernels ran, or None if the primary ratio needs none.
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
    """Parts of the time of a step.

    Attributes:
        window: Name of the ratio whose window is a step.
        parts: Parts of the step, whose shares add up to 1.
        flops_use: Model FLOPs utilization, or None if FLOPs are not given.
    """

    window: str
    parts: list[TimePart]
    flops_use: float | None


class Numbers(Struct, frozen=True):
    """Statistics over averaged iterations. Keys are names of ratios.

    Attributes:
        iterations: Number of averaged iterations.
        bubble_ratio: Average of each ratio.
        bubble_interval: Bounds of the mean of each ratio that needs a common clock, or None if
            they are unknown.
        bubble_low: Each ratio if compute outside operations were work.
        bubble_overhead: Bubble relative to the work.
        window_ns: Length of each ratio's window.
        cause_ns: Idle time, keyed by ratio and cause, summed over iterations that have the ratio.
        bubble_parts: Parts of the bubble of the primary ratio, the largest first.
        kernel_time: Time for which kernels ran, compared with the bubble.
        launch_gap: Share of the time of operations during which no kernel ran, or None if it is
            unknown.
        step: Parts of the time of a step.
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
    """An operation that deviates from the schedule's order; see :class:`.deviations.Deviation`.

    Attributes:
        rank: Index of the rank.
        iteration: Index of the iteration.
        phase: Phase of the operation.
        microbatch: Number of its microbatch.
        chunk: Number of its chunk, or None if there is none.
        what: ``late``, ``early``, ``missing``, ``extra`` or ``repeated``.
        places: Number of operations by which the operation is late or early.
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
        name: Name of the schedule, or None if it has none.
        also: Other schedules with the same order.
        exact: Whether all averaged iterations ran it exactly.
        distance: Mean share of the planned operations that are not as planned, or None if the
            order was not compared with a plan.
        reason: Reason why there is no name, or how the name was recognized, or None.
        iterations: Schedule of each training iteration.
        deviation_count: Number of operations that deviate from the plan.
        deviations: The first of these operations.
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
    """Times of the operations of one kind; see :class:`.phase_times.PhaseTime`.

    Attributes:
        phase: Phase of the operations.
        median_ns: Median busy time; for transfers the lower median of the transfer time.
        stage: Stage of the ranks, or None if it is unknown.
        chunk: Chunk of the model, or None if there is none.
        virtual_stage: Position of the chunk in the model, or None if it is unknown.
        gap_ns: Median time between the previous operation and an operation that waited for nothing,
            or None if it is unknown.
        pipeline_ns: Mean time in the slowest pipeline of the typical iteration, or None if it is
            unknown.
        mean_ns: Mean time.
        std_ns: Standard deviation (n - 1) of the time, or None if it is unknown.
        n: Number of operations in all replicas and averaged iterations.
        min_ns: Minimum time.
        max_ns: Maximum time.
        first_ns: Median time of the first microbatch, or None if it is unknown.
        last_ns: Median time of the last microbatch, or None if it is unknown.
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
    """Costs of prompt chunks on a virtual stage; see :class:`.chunk_costs.ChunkCost`.

    Attributes:
        stage: Stage of the ranks, or None if it is unknown.
        virtual_stage: Position of the chunk of the model, or None if it is unknown.
        n: Number of chunks.
        least_tokens: Number of tokens of the shortest chunk.
        most_tokens: Number of tokens of the longest chunk.
        fixed_ns: Time of a chunk without tokens, or the mean if all chunks are equally long.
        token_ns: Time per token, or None if all chunks are equally long.
        token_squared_ns: Time per token and token before it, or None if all chunks are equally
            long.
        residual_ns: Standard deviation of the residuals of the fit, or None if it is unknown.
        explained: Share of the variance that the length explains, or None without variance.
        prompt_tokens: Number of tokens of the longest prompt, or 0 if no chunk reads a prefix.
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


class EvenChunks(Struct, frozen=True):
    """Chunks of a prompt that take equally long; see :func:`.prompt_chunks.find_even_chunks`.

    Attributes:
        virtual_stage: The slowest virtual stage, or None if it is unknown.
        tokens: Number of tokens of each chunk.
        equal_ns: Time of the prompt in chunks of equal length.
        even_ns: Time of the prompt in these chunks.
    """

    virtual_stage: int | None
    tokens: tuple[int, ...]
    equal_ns: float
    even_ns: float


class OperationEntry(Struct, frozen=True):
    """An operation of a rank.

    Attributes:
        rank: Index of the rank.
        iteration: Index of the iteration.
        phase: Phase of the operation.
        microbatch: Number of its microbatch, or None if there is none.
        chunk: Number of its chunk, or None if there is none.
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
    """An operation that took much longer than others of its kind.

    Attributes:
        times_median: Time of the operation divided by the median of its kind.
    """

    times_median: float


class SlackEntry(OperationEntry, frozen=True):
    """An operation off the critical path.

    Attributes:
        slack_ns: Maximum delay of the operation's end that does not make the iteration longer.
    """

    slack_ns: int


class CriticalPathEntry(Struct, frozen=True):
    """The critical path of an iteration; see :class:`.path.CriticalPath`.

    Attributes:
        iteration: Index of the iteration.
        length_ns: Length of the path.
        parts: Parts of the length, the largest first.
        collectives: Collectives on the path, in order.
        operations: Operations on the path, in order.
        slack: Operations off the path, or None if there are too many to list.
    """

    iteration: int
    length_ns: int
    parts: list[PathPart]
    collectives: list[PathCollective]
    operations: list[OperationEntry]
    slack: list[SlackEntry] | None


class Change(Struct, frozen=True):
    """The typical iteration, replayed with one change; see :class:`.changes.Change`.

    Attributes:
        name: Name of the change, the same in every version.
        change: The change in words.
        makespan_ns: Length of the iteration.
        bubble_ratio: Its ``schedule`` ratio, or None for an iteration without length.
    """

    name: str
    change: str
    makespan_ns: Count
    bubble_ratio: float | None


class Changes(Struct, frozen=True):
    """The replayed typical iteration, and the same iteration under single changes.

    Attributes:
        makespan_ns: Length of the iteration as measured.
        bubble_ratio: Its ``schedule`` ratio, or None for an iteration without length.
        rows: The changes.
    """

    makespan_ns: Count
    bubble_ratio: float | None
    rows: list[Change]


class StageTimesEntry(Struct, frozen=True):
    """Times of the stages for one microbatch, in ms; see :class:`.measured_times.StageTimes`.

    Attributes:
        forward_ms: Time of the forward, one value for all stages or one per stage.
        backward_ms: Time of the backward for the input, in the same form.
        weight_ms: Time of the backward for the weights, in the same form.
        transfer_ms: Time of a transfer between two devices.
        lengths: Length of each microbatch relative to the mean; empty if all are equal.
    """

    forward_ms: tuple[float, ...]
    backward_ms: tuple[float, ...]
    weight_ms: tuple[float, ...]
    transfer_ms: float
    lengths: tuple[float, ...]


class SimulatedTimes(Struct, frozen=True):
    """The times with which other schedules are simulated.

    Attributes:
        stages: Number of stages.
        microbatches: Number of microbatches.
        chunks: Number of model chunks per stage.
        times: Times of the stages.
        split: Whether both halves of the backward were measured.
    """

    stages: int
    microbatches: int
    chunks: int
    times: StageTimesEntry
    split: bool


class ChoiceEntry(Struct, frozen=True):
    """The iteration as simulated with one schedule; see :class:`.choices.Choice`.

    Attributes:
        name: Name of the schedule; ``measured``, or ``no-delay`` for the same order without delays.
        makespan_ms: Window over all stages, or None if it is unknown.
        cost_ms: Maximum length of the window of a single stage, or None if it is unknown.
        bubble_ratio: Ratio of the window that is compared.
        peak_activations: Maximum number of microbatches whose activations a stage stores.
        speedup: Share of the measured window that the schedule saves.
        fits: Whether the schedule needs no more memory than the run, or than the memory limit.
        reason: Reason why the schedule cannot be simulated, or "".
        peaks: Peak activations of each stage; empty if they are unknown.
        replicas: Number of copies of the model.
        peak_bytes: Maximum memory of a device, or None if memory was not measured.
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
    """Other schedules at the times of the run; see :class:`.what_if.WhatIf`.

    Attributes:
        reason: Reason why there are no rows, or "".
        window: Name of the ratio whose window is compared.
        times: Times of the run, or None if they are unknown.
        rows: The run, then other schedules, the best first.
        reordered: Best order of unequal microbatches, and the share that it saves, or None.
        limit_bytes: Memory of a device that schedules must fit in, or None for the memory of the
            run.
    """

    reason: str
    window: str
    times: SimulatedTimes | None
    rows: list[ChoiceEntry]
    reordered: tuple[tuple[int, ...], float] | None
    limit_bytes: Positive | None


class LongBubble(Struct, frozen=True):
    """One of the longest bubbles.

    Attributes:
        rank: Index of the rank.
        iteration: Index of the iteration.
        start_ns: Start of the bubble.
        end_ns: End of the bubble.
        cause: Name of the cause.
        sentence: Sentence that describes the bubble.
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
        number: Number or index of the stage, replica, rank, microbatch or iteration.
        slowdown: Slowdown that it causes; 1 is no slowdown.
    """

    number: list[int]
    slowdown: list[Positive]


class LinkSlowdowns(Columns, frozen=True):
    """Slowdowns of transfers between stages, as columns.

    Attributes:
        source: Stage that sends.
        target: Stage that receives.
        slowdown: Slowdown of the transfers.
    """

    source: list[int]
    target: list[int]
    slowdown: list[Positive]


class SlowdownEntry(Struct, frozen=True):
    """Cost of stragglers; see :class:`.slowdowns.Slowdowns`. A value of 1 is no slowdown.

    Attributes:
        total: Slowdown of all work.
        by_phase: Slowdown by phase.
        by_stage: Slowdown by stage.
        by_replica: Slowdown by replica of the pipeline.
        by_rank: Slowdown by index of the rank.
        by_microbatch: Slowdown by microbatch.
        by_link: Slowdown by the stages of transfers.
        by_iteration: Slowdown by index of the iteration.
        worker_share: Share of the slowdown that the slowest 3 % of workers cause, or None.
        last_stage_share: Share of the slowdown that the last stage causes, or None.
        original_ns: Mean length of the replayed iterations.
        ideal_ns: Mean length of ideal iterations.
        replay_error: Error of the replay.
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
    """A limit of the analysis; see :class:`.limitations.Limitation`.

    Attributes:
        what: Subject of the limitation.
        reason: The reason and its consequences.
        count: Number of affected items, such as kernels or files.
    """

    what: str
    reason: str
    count: int

    @classmethod
    def list_of(cls, limitations: Iterable[Limitation]) -> list[LimitationEntry]:
        """Return the entries of limitations, in their order."""
        return [cls(note.what, note.reason, note.count) for note in limitations]


class SavedTimeline(Struct, frozen=True):
    """Tables from which pictures are drawn; see :class:`.timeline.Timeline`.

    Attributes:
        base_ns: Time to which all times of the tables are relative.
        names: Texts; columns of names contain indices of them.
        tables: Columns, keyed by table and column. Unknown or missing values are None.
    """

    base_ns: int
    names: tuple[str, ...]
    tables: dict[str, dict[str, list[Int64 | None]]]


class RunSummary(Struct, frozen=True):
    """A report as JSON.

    Attributes:
        schema: Name and version of this model.
        version: Version of bubbleviz that wrote the report.
        kind: ``training`` or ``inference``.
        headline: Name of the primary ratio.
        headline_reason: Why it is the primary ratio.
        convention: Convention that the names of ranges follow.
        profiles: Profiles, in the order given.
        ranks: Ranks, in the order of the pipeline.
        what_to_do_first: The most important advice in words, or None.
        first: The most important advice as data, one step per sentence; empty without advice.
        then: Advice to follow next, as indices of ``advice``.
        advice: Changes that would shorten iterations, the largest saving first.
        restrictions: Reasons why the ratios do not describe a complete pipeline, most severe first.
        typical_iteration: Index of the typical iteration, or None.
        iterations_overlap: Whether consecutive iterations overlap, so that ``period`` is the
            primary ratio.
        iterations: All iterations.
        summary: Statistics over averaged iterations.
        schedule: The schedule that ran, or None if it was not looked for.
        plan: Comparison of the run with the given plan, or None without a plan.
        phase_times: Times of operations by kind.
        chunk_costs: Costs of chunks of prompts by virtual stage.
        even_chunks: Chunks that take equally long, or None if they save nothing.
        transfer_ns: Median transfer time of an input that was waited for, or None if none was.
        microbatch_lengths: Lengths of microbatches relative to their mean, by iteration; empty if
            all are equal.
        imbalance: For each phase, the time of the slowest stage divided by the mean of all stages,
            minus 1.
        stragglers: The slowest operations.
        critical_path: Critical path of the typical iteration, or None.
        changes: The typical iteration with single changes, or None if it was not replayed.
        what_if: Other schedules at the same times, or None if they were not simulated.
        memory: Memory of ranks and operations, or None if it was not recorded.
        longest_bubbles: The longest bubbles.
        slowdown: Cost of stragglers, or None if it is unknown.
        coverage: GPU time inside and outside operations, by rank.
        unattributed_kernels: The kernels outside operations with the most time.
        limitations: Results that could not be determined, and the reasons.
        methods: Sentence for the methods section of a paper.
        timeline: Tables from which pictures are drawn, or None for large runs.
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

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the profiles."""
        return tuple(profile.path for profile in self.profiles)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts of the profiles."""
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
        """Number of microbatches of the typical iteration, or None if it is unknown."""
        return None if self.typical is None else self.typical.microbatches

    @property
    def schedule_name(self) -> str | None:
        """Name of the schedule that ran, or None if it is unknown."""
        return None if self.schedule is None else self.schedule.name

    def __repr__(self) -> str:
        """Return the primary ratio and the sizes of the run; the tables would be too long."""
        ratio = f"{self.headline} bubble ratio {format_percent(self.bubble_ratio)}"
        ranks = format_count(len(self.ranks), "rank")
        iterations = format_count(self.summary.iterations, "averaged iteration")
        return f"RunSummary({ratio}, {ranks}, {iterations})"


def to_values(summary: Struct) -> dict[str, Any]:
    """Return a summary as nested dictionaries and lists, ready to be written as JSON."""
    values: dict[str, Any] = to_builtins(summary, enc_hook=_to_python_float)
    return values


def _to_python_float(value: object) -> float:
    """Convert a float of numpy to a float of Python.

    Raises:
        NotImplementedError: The value is of another type.
    """
    if isinstance(value, float):
        return float(value)
    raise NotImplementedError(f"{type(value)} is not a type of the summary")
