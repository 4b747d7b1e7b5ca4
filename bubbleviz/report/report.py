"""The report: all results of an analysis. Every output is rendered from it.

:func:`bubbleviz.analyze` returns a ``Report``, and every renderer receives one. Ratios are
fractions of 1, or None if unknown. Times are integer nanoseconds on the clock of the report, which
is the clock of the first profile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from math import fsum
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bubbleviz._version import __version__
from bubbleviz.align.run import Run, RunHints, merge
from bubbleviz.count.count import Counts, count
from bubbleviz.count.damage import locate_damage
from bubbleviz.count.iterations import Iteration, choose_typical, make_iteration_records
from bubbleviz.count.missing_operations import find_missing_operations
from bubbleviz.count.rank_iterations import (
    compute_rank_ratios,
    get_account_column,
    get_rank_column,
    list_indices,
    list_missing,
)
from bubbleviz.count.summary import Summary
from bubbleviz.errors import UsageError
from bubbleviz.explain.causes.bubbles import Bubbles
from bubbleviz.explain.explanation import Explanation, explain
from bubbleviz.explain.extra_work import ExtraWork
from bubbleviz.explain.recognition.reasons import NO_PIPELINE, SINGLE_STAGE
from bubbleviz.explain.recognition.recognition import Recognition, recognize_schedule
from bubbleviz.explain.slowness import Slowness, measure_slowness
from bubbleviz.interpret.listed_gpus import find_gpus_without_work
from bubbleviz.interpret.recording import Recording, Recordings, list_hosts
from bubbleviz.interpret.start_skew import describe_skew, find_unclear_waits
from bubbleviz.model import operations as tables
from bubbleviz.model.arrow import Kind, Records, make_records
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.limitations import Limitation, LimitationKind, merge_limitations
from bubbleviz.model.phase_masks import has_phase
from bubbleviz.model.phases import BACKWARD, COUNTED, Phase
from bubbleviz.model.restrictions import Restriction
from bubbleviz.model.run_kinds import EVALUATION, INFERENCE, TRAINING
from bubbleviz.model.texts import format_count, list_and_count, list_first
from bubbleviz.report.kernel_time import NOTICEABLE, KernelTime
from bubbleviz.report.restrictions import drop_few_left_out, list_restrictions

if TYPE_CHECKING:
    from bubbleviz.explain.slowdown.slowdowns import Slowdowns
    from bubbleviz.explain.what_if import WhatIf
    from bubbleviz.report.memory import RunMemory
    from bubbleviz.schedules.plan import Plan

DerivedT = TypeVar("DerivedT")

#: Format of the profile of a simulated run.
SIMULATION = "simulation"


@dataclass(frozen=True)
class Report:
    """The result of an analysis.

    Attributes:
        version: Version of bubbleviz.
        convention: Name of the NVTX convention that range names follow.
        headline: Name of the primary ratio, the one to quote.
        headline_reason: Sentence that explains the choice of the primary ratio.
        profiles: The input files, in the given order.
        ranks: All ranks, in pipeline order.
        iterations: All iterations, whether averaged or not.
        summary: Statistics over the averaged iterations.
        operations: All operations, sorted by (rank, start).
        busy: Busy intervals of the operations.
        unattributed: Intervals during which compute ran outside all compute operations, for each
            rank.
        coverage: GPU time that is attributed to operations, for each rank.
        unattributed_kernels: The kernels outside compute operations that took the most time.
        explanation: What caused the bubbles.
        limitations: Results that could not be determined, along with the reasons.
        schedule: The schedule recognized from the order of operations, or None if not analyzed.
        plan: Differences between the actual order of operations and the given plan, or None if no
            plan was given.
        planned_order: The plan that was given, or None.
        other_schedules: Other schedules, simulated with the measured times, or None if not
            simulated. The method ``what_if`` simulates them if needed.
        theory: The schedule that ran, simulated with the measured times, or None if not simulated.
            If other schedules were simulated as well, it equals ``other_schedules``.
        command: Command line, or "" if there was none.
        exposed: Intervals during which only collectives ran on a rank.
        overheads: Intervals during which the profiler stopped a rank.
        collectives: Intervals during which ranks were in collectives.
        pauses: Intervals during which a rank ran without being recorded.
        memory: Memory use of ranks and operations, or None if it was not read or recorded.
        flops: Model FLOPs per iteration over all ranks, and a GPU's peak FLOPs per second. None if
            not given.
        extra_work: How much of a given job fits into the bubbles, or None if no job was given.
        hosts: Names of all hosts and clocks that may appear in the report's texts.
        unprofiled_step_ns: Length of a step without a profiler, or None if not given.
    """

    version: str
    convention: str
    headline: str
    headline_reason: str
    profiles: tuple[tables.ProfileSummary, ...]
    ranks: Records[tables.Rank] | tuple[tables.Rank, ...]
    iterations: Records[Iteration]
    summary: Summary
    operations: tables.Operations
    busy: tables.BusyIntervals
    unattributed: tables.RankIntervals
    coverage: tuple[tables.RankCoverage, ...]
    unattributed_kernels: tuple[tables.UnattributedKernels, ...]
    explanation: Explanation
    limitations: tuple[Limitation, ...]
    schedule: Recognition | None = None
    plan: Recognition | None = None
    planned_order: Plan | None = None
    other_schedules: WhatIf | None = None
    theory: WhatIf | None = None
    command: str = ""
    exposed: tables.RankIntervals = field(default_factory=tables.RankIntervals.make_empty)
    overheads: tables.RankIntervals = field(default_factory=tables.RankIntervals.make_empty)
    collectives: CollectiveIntervals = field(default_factory=CollectiveIntervals.make_empty)
    pauses: tables.RankIntervals = field(default_factory=tables.RankIntervals.make_empty)
    memory: RunMemory | None = None
    flops: tuple[float, float] | None = None
    extra_work: ExtraWork | None = None
    hosts: tuple[str, ...] = ()
    unprofiled_step_ns: int | None = None

    def __repr__(self) -> str:
        spread = self.summary.bubble_ratio.get(self.headline)
        mean = None if spread is None else spread.mean
        return (
            f"Report({self.headline} bubble ratio {'unknown' if mean is None else f'{mean:.4f}'}, "
            f"{format_count(len(self.ranks), 'rank')}, "
            f"{format_count(len(self.iterations), 'iteration')}, "
            f"{format_count(len(self.operations), 'operation')}, "
            f"{format_count(len(self.limitations), 'limitation')})"
        )

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the profiles."""
        return tuple(profile.path for profile in self.profiles)

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def num_stages(self) -> int | None:
        """Number of pipeline stages that have a rank in the report, or None if unknown."""
        return len({rank.stage for rank in self.ranks} - {None}) or None

    @property
    def num_microbatches(self) -> int | None:
        """Number of microbatches in the typical iteration, or None if unknown."""
        typical = self.typical_iteration()
        return None if typical is None else typical.microbatches

    @property
    def num_iterations(self) -> int:
        """Number of iterations, whether averaged or not."""
        return len(self.iterations)

    @property
    def is_simulated(self) -> bool:
        """Whether the run was simulated instead of recorded."""
        return any(profile.format == SIMULATION for profile in self.profiles)

    @property
    def kind(self) -> str:
        """Kind of the run: ``"training"``, or ``"inference"`` if it has no backward passes."""
        forward = any(iteration.kind == INFERENCE for iteration in self.iterations)
        return INFERENCE if forward else TRAINING

    @property
    def iteration_noun(self) -> str:
        """The noun that sentences use for an iteration."""
        if self.kind == TRAINING:
            return "training iteration"
        return "iteration" if len(self.iterations) > 1 else "window"

    @property
    def bubbles(self) -> Bubbles:
        """Idle intervals in the windows of the primary ratio, along with their causes."""
        return self.explanation.bubbles

    @property
    def slowdowns(self) -> Slowdowns | None:
        """Cost of stragglers over all averaged iterations, or None if it is unknown.

        It is computed on first access, which takes seconds for a million operations.
        """
        return self.explanation.slowdowns

    @cached_property
    def slowness(self) -> Slowness:
        """Slowness of each rank, compared with other ranks and over time."""
        return measure_slowness(
            tuple(self.ranks), tuple(self.iterations), self._get_slowdown_by_rank
        )

    def _get_slowdown_by_rank(self) -> Mapping[int, float]:
        """Return the slowdowns that are known, keyed by rank index."""
        return {} if self.slowdowns is None else self.slowdowns.by_rank

    @cached_property
    def kernel_time(self) -> KernelTime:
        """Time during which kernels ran in the averaged iterations.

        The windows of the primary ratio are used. Times are summed over iterations and ranks.
        """
        averaged = [iteration.ranks for iteration in self.iterations if iteration.averaged]
        window, running, bubble, loose = (
            sum(int(get_account_column(ranks, self.headline, name).sum()) for ranks in averaged)
            for name in ("window_ns", "running_ns", "bubble_ns", "unattributed_ns")
        )
        gap, work = (
            sum(int(get_rank_column(ranks, name).sum()) for ranks in averaged)
            for name in ("gap_ns", "compute_ns")
        )
        return KernelTime(window, running, bubble, gap, loose, work)

    def derive(self, make: Callable[[Report], DerivedT]) -> DerivedT:
        """Return ``make(self)``, calling ``make`` only once per report.

        Other modules use this method to cache their own results in the report.
        """
        if make not in self._derived:
            self._derived[make] = make(self)
        result: DerivedT = self._derived[make]
        return result

    @cached_property
    def _derived(self) -> dict[Callable[[Report], Any], Any]:
        return {}

    @property
    def launch_gap(self) -> float | None:
        """Fraction of the operations' busy time during which none of their compute kernels ran.

        Only forwards and backwards of averaged iterations are included. The result is None if these
        operations have no busy time.
        """
        averaged = [iteration.index for iteration in self.iterations if iteration.averaged]
        operations = self.operations
        rows = np.isin(operations.phase, COUNTED) & np.isin(operations.iteration, averaged)
        busy_ns = int(operations.busy_ns[rows].sum())
        active_ns = int(operations.active_ns[rows].sum())
        # Because of rounding in tables, kernels can appear to be longer than their operation.
        return max(1 - active_ns / busy_ns, 0.0) if busy_ns else None

    @property
    def single_stage(self) -> bool:
        """Whether the active ranks form a single stage, so that no pipeline schedule applies."""
        return self.no_pipeline == SINGLE_STAGE

    @property
    def no_pipeline(self) -> str | None:
        """Reason why the active ranks may not form a pipeline, or None if there is no reason."""
        reason = None if self.schedule is None else self.schedule.reason
        return reason if reason in NO_PIPELINE else None

    @property
    def incomplete(self) -> bool:
        """Whether ranks that took part in averaged iterations are known to be missing."""
        return any(
            ratio.incomplete
            for iteration in self.iterations
            if iteration.averaged
            for ratio in iteration.ratios.values()
        )

    @property
    def restrictions(self) -> tuple[Restriction, ...]:
        """Reasons why the ratios do not describe a complete pipeline, most severe first."""
        kernels = sum(profile.kernels for profile in self.profiles)
        limitations = drop_few_left_out(self.limitations, kernels)
        return list_restrictions(
            None if self.schedule is None else self.schedule.reason,
            limitations,
            ranks_missing=self.incomplete,
        )

    @property
    def operations_lacking(self) -> bool:
        """Whether some ranks lack operations that others have, so their work is unknown."""
        return any(note.kind is LimitationKind.OPERATIONS_LACKING for note in self.limitations)

    @property
    def stages_contradicted(self) -> bool:
        """Whether the stage order given by the user contradicts the data dependencies."""
        return any(note.kind is LimitationKind.STAGES_CONTRADICTED for note in self.limitations)

    def clock_uncertainty_ns(self, rank: tables.Rank) -> int | None:
        """Return the maximum clock error of a rank's host in ns, or None if unbounded."""
        return self.profiles[rank.profile].clock_uncertainty_ns

    def clock(self, profile: int) -> tuple[str, float, int | None]:
        """Return host, drift (ppm) and uncertainty (ns) of a profile's clock.

        Profiles with equal values share a clock.
        """
        summary = self.profiles[profile]
        return summary.host, summary.clock_drift_ppm, summary.clock_uncertainty_ns

    def contradicted(self, name: str) -> bool:
        """Return whether a ratio depends on contradictory clocks in any iteration."""
        return any(
            name in iteration.ratios and iteration.ratios[name].contradicted
            for iteration in self.iterations
        )

    def lower_bound(self, name: str) -> float | None:
        """Return the mean ratio that would result if compute outside operations counted as work.

        The result is None if this mean is unknown, or if it is not noticeably lower than the
        ratio's actual mean. A difference is noticeable if it is larger than ``NOTICEABLE``. If
        ranks lack operations, any difference is noticeable.
        """
        ratio, low = self.summary.bubble_ratio.get(name), self.summary.bubble_low.get(name)
        if ratio is None or low is None or ratio.mean is None or low.mean is None:
            return None
        noticeable = 0.0 if self.operations_lacking else NOTICEABLE
        return low.mean if ratio.mean - low.mean > noticeable else None

    def iteration(self, index: int) -> Iteration:
        """Return the iteration with this index.

        Raises:
            IndexError: The index is out of range.
            UsageError: The index is not an integer.
        """
        if not isinstance(index, Integral):
            raise UsageError(f"iteration {index!r:.60}: must be an integer")
        if not 0 <= index < len(self.iterations):
            raise IndexError(f"no iteration {index}; there are {len(self.iterations)}")
        return self.iterations[index]

    def typical_iteration(self) -> Iteration | None:
        """Return the iteration whose length is the lower median among all candidates.

        An iteration lasts from its first start to its last end. If several iterations have the
        median length, the one with the smallest index is returned. The candidates are the first of
        the following groups that is not empty:

        1. Averaged iterations that have the primary ratio.
        2. All averaged iterations.
        3. Complete iterations that are not evaluations.
        4. All iterations with work.

        Returns:
            The iteration, or None if no iteration has work.
        """
        return choose_typical(tuple(self.iterations), self.headline)


#: Fields of :class:`.ProfileSummary`, grouped by origin. The fields come from the source, the
#: coverage, sums over ranks, and the clock.
_SOURCE_FIELDS = ("path", "format", "nsys_version", "schema_version", "session_utc_ns")
_COVERAGE_FIELDS = (
    *("kernels", "linked_kernels", "attributed_kernels"),
    *("cross_thread_kernels", "ambiguous_kernels"),
)
_SUMMED_FIELDS = ("gpu_ns", "attributed_gpu_ns", "comm_ns", "copy_ns")
_CLOCK_FIELDS = ("offset_ns", "drift_ppm", "t0_ns", "uncertainty_ns")
#: Maximum number of ranks that a sentence lists.
_MAX_LISTED = 8
#: Maximum number of items that a limitation lists. An item is a rank without a ratio, or an
#: iteration without work.
_MAX_NAMED = 32
#: Column types, keyed by the annotation of the attribute.
_KINDS: Mapping[str, Kind] = {"str": "string", "int": "int64", "float": "float64"}

ReportT = TypeVar("ReportT", bound=Report)


def build_report(
    report: type[ReportT],
    recordings: Sequence[Recording],
    run: Run,
    counts: Counts,
    explanation: Explanation,
    unreadable: Sequence[Limitation],
) -> ReportT:
    """Combine the results from all parts of the analysis into a report.

    Args:
        report: The class of report to create.
        recordings: One recording per profile, in the given order.
        run: The run that the recordings were merged into.
        counts: The bubble ratios of the iterations.
        explanation: What caused the idle time.
        unreadable: Limitations about profiles that could not be read.
    """
    coverage: list[tables.RankCoverage] = []
    kernels: list[tables.UnattributedKernels] = []
    for recording, rank_of_local in zip(recordings, run.rank_of_local, strict=True):
        rank_index = rank_of_local.tolist()
        coverage.extend(replace(r, rank=rank_index[r.rank]) for r in recording.coverage.ranks)
        kernels.extend(replace(k, rank=rank_index[k.rank]) for k in recording.coverage.unattributed)
    return report(
        version=__version__,
        convention=", ".join(dict.fromkeys(r.convention for r in recordings)),
        headline=counts.headline,
        headline_reason=counts.headline_reason,
        profiles=_summarize_profiles(recordings, run),
        ranks=_add_bubble_ratios(run.ranks, counts),
        iterations=make_iteration_records(
            replace(i, bubble_ratio=i.ratios[counts.headline].value) for i in counts.iterations
        ),
        summary=counts.summary,
        operations=run.operations,
        busy=run.busy,
        unattributed=run.unattributed,
        coverage=tuple(sorted(coverage, key=lambda c: c.rank)),
        unattributed_kernels=tuple(sorted(kernels, key=lambda k: (k.rank, -k.gpu_ns, k.name))),
        explanation=explanation,
        limitations=(
            *merge_limitations(unreadable),
            *_list_limitations(recordings, run, counts),
            *_list_explanation_limits(explanation, counts),
        ),
        hosts=(*list_hosts(recordings), *(host for note in unreadable for host in note.hosts)),
        exposed=run.exposed,
        overheads=run.overheads,
        collectives=run.collectives,
        pauses=run.pauses,
    )


def _add_bubble_ratios(ranks: Sequence[tables.Rank], counts: Counts) -> Records[tables.Rank]:
    """Return a table of the ranks, including each rank's mean primary ratio.

    The mean is over the averaged iterations whose ratio is known for the rank. It is None if there
    are no such iterations.

    Args:
        ranks: The ranks, without the ratio.
        counts: The bubble ratios of the iterations.
    """
    ratios: list[list[float]] = [[] for _ in ranks]
    for rank_iterations in (
        iteration.ranks for iteration in counts.iterations if iteration.averaged
    ):
        for index, ratio in zip(
            list_indices(rank_iterations),
            compute_rank_ratios(rank_iterations, counts.headline),
            strict=True,
        ):
            ratios[index] += [] if ratio is None else [ratio]
    ranks_with_ratios = zip(ranks, ratios, strict=True)
    return make_records(
        (
            replace(rank, bubble_ratio=fsum(of) / len(of) if of else None)
            for rank, of in ranks_with_ratios
        ),
        {
            rank_iterations.name: _KINDS[str(rank_iterations.type).partition(" ")[0]]
            for rank_iterations in fields(tables.Rank)
        },
    )


def make_report(read: Recordings) -> Report:
    """Analyze recordings with default settings."""
    recordings, run = read.recordings, merge(read, RunHints())
    counts = count(run)
    report = build_report(Report, recordings, run, counts, explain(run, counts), ())
    return add_schedule(report, find_schedule(recordings, run, counts), None)


def find_schedule(recordings: Sequence[Recording], run: Run, counts: Counts) -> Recognition:
    """Recognize the schedule of a run; see :func:`recognize_schedule`.

    Args:
        recordings: One recording per profile.
        run: The run that the recordings were merged into.
        counts: The bubble ratios of the iterations.
    """
    notes = (*run.limitations, *(note for r in recordings for note in r.limitations))
    return recognize_schedule(
        run.ranks,
        run.operations,
        counts.iterations,
        noted=frozenset(note.kind for note in notes),
        stages_missing=run.stages_missing,
        pipeline_unproven=run.pipeline_unproven,
        ends_early=run.ends_early,
        order_refutes=run.order_refutes,
    )


def add_schedule(
    report: ReportT, schedule: Recognition, plan_comparison: Recognition | None
) -> ReportT:
    """Add the recognized schedule, and the comparison with a plan, to a report.

    The name of the schedule is also stored in ``explanation.ran``. If the run followed the schedule
    exactly on all of its stages, the limitation that stages may be missing is dropped.
    """
    limitations = tuple(
        note
        for note in report.limitations
        if not (schedule.exact and note.kind is LimitationKind.STAGES_MAY_BE_MISSING)
    )
    return replace(
        report,
        limitations=limitations,
        schedule=schedule,
        plan=plan_comparison,
        explanation=replace(report.explanation, ran=schedule.name),
    )


def _summarize_profiles(
    recordings: Sequence[Recording], run: Run
) -> tuple[tables.ProfileSummary, ...]:
    """Return one summary per profile, which describes the profile's source, coverage and clock.

    The times of kernels and copies are sums over the profile's ranks.
    """
    summaries = []
    for recording, clock, host in zip(recordings, run.clocks, run.profile_hosts, strict=True):
        source, coverage = recording.source, recording.coverage
        values: dict[str, Any] = {"host": host}
        values |= {name: getattr(source, name) for name in _SOURCE_FIELDS}
        values |= {name: getattr(coverage, name) for name in _COVERAGE_FIELDS}
        values |= {name: sum(getattr(r, name) for r in coverage.ranks) for name in _SUMMED_FIELDS}
        values |= {f"clock_{name}": getattr(clock, name) for name in _CLOCK_FIELDS}
        summaries.append(tables.ProfileSummary(**values))
    return tuple(summaries)


def _list_limitations(
    recordings: Sequence[Recording], run: Run, counts: Counts
) -> tuple[Limitation, ...]:
    """Return the limitations of the run, followed by limitations of files, ratios and averages.

    The limitations of the ratios and averages are:

    - ranks without a ratio, and iterations that are not averaged;
    - unrecorded waits, missing operations, and ranks without work;
    - missing averages or missing backwards;
    - ratios that depend on unattributed compute (last).
    """
    file_limitations = merge_limitations(
        chain.from_iterable(locate_damage(recordings, run, counts))
    )
    listed_gpus = chain.from_iterable(recording.listed_gpus for recording in recordings)
    limitations = [*run.limitations, *file_limitations, *find_gpus_without_work(listed_gpus)]
    ranks_by_missing_part: dict[str, set[int]] = {}
    for iteration in counts.iterations:
        missing_by_rank = zip(
            list_indices(iteration.ranks), list_missing(iteration.ranks), strict=True
        )
        for rank, missing_part in missing_by_rank:
            if missing_part and iteration.complete:
                ranks_by_missing_part.setdefault(missing_part, set()).add(rank)
    limitations.extend(
        Limitation(
            "ranks without a ratio",
            f"{missing_part}: "
            + list_and_count([run.ranks[r].label for r in sorted(ranks)], _MAX_NAMED),
            len(ranks),
        )
        for missing_part, ranks in sorted(ranks_by_missing_part.items())
    )
    is_inferred = any(
        note.kind is LimitationKind.MICROBATCHES_INFERRED for note in file_limitations
    )
    limitations.extend(_list_unaveraged(counts, is_numbered=not is_inferred))
    limitations.extend(_list_other_sizes(counts))
    limitations.extend(_list_unrecorded_waits(run, counts))
    limitations.extend(_find_missing_operations(run, counts))
    limitations.extend(merge_limitations(_describe_idle_ranks(run, counts)))
    if not counts.summary.iterations:
        limitations.append(Limitation("averages", counts.headline_reason))
    if not has_phase(run.operations.phase, (*BACKWARD, Phase.FB)):
        limitations.append(
            Limitation(
                "backward",
                "no range name is recognized as a backward pass, so the run counts as inference. "
                "If it trains, name its backward ranges in a convention file, and pass it with "
                "--convention",
            )
        )
    limitations.extend(_list_ambiguous_ratios(counts))
    return tuple(limitations)


def _describe_idle_ranks(run: Run, counts: Counts) -> Iterator[Limitation]:
    """Yield a limitation for each rank that did no work in some complete iterations in the window.

    In such iterations, the rank is treated as present but idle (its work has length 0).
    """
    extents = counts.extents
    is_complete = np.array([i.complete for i in counts.iterations], np.bool_)
    has_no_work = extents.present & (extents.first_ns == extents.last_ns)
    is_idle = has_no_work & (is_complete & counts.is_in_window)[:, None]
    for index in np.flatnonzero(is_idle.any(axis=0)).tolist():
        rank = run.ranks[index]
        stage = "" if rank.stage is None else f" (stage {rank.stage})"
        idle_in = np.flatnonzero(is_idle[:, index]).tolist()
        names = list_and_count([counts.iterations[k].name for k in idle_in], _MAX_NAMED)
        noun = "iteration" if len(idle_in) == 1 else "iterations"
        yield Limitation(
            "iterations without work",
            f"{rank.label}{stage} ran no forward or backward in {noun} {names}, so it counts "
            "as idle there",
            len(idle_in),
        )


def _list_unaveraged(counts: Counts, *, is_numbered: bool) -> Iterator[Limitation]:
    """Yield a limitation for each reason why iterations are not averaged.

    Args:
        counts: The bubble ratios of the iterations.
        is_numbered: Whether range names contain the numbers of microbatches.
    """
    remedy = (
        "check the microbatch numbers in the range names"
        if is_numbered
        else "microbatches are numbered in the order they ran in, so check that no range is missing"
    )
    incomplete = [i for i in counts.iterations if not (i.complete or i.began_unrecorded)]
    unmatched = sum(i.unmatched for i in incomplete)
    evaluations = sum(i.kind == EVALUATION for i in counts.iterations)
    cut, other = len(incomplete) - unmatched, LimitationKind.OTHER
    mostly_cut = LimitationKind.ITERATIONS_MOSTLY_CUT
    for subject, reason, number, kind in (
        (
            "iterations in which a forward has no backward with the same number",
            f"their ranks continued, so the capture did not cut them off: {remedy}. These "
            "iterations are listed but not averaged",
            unmatched,
            other,
        ),
        (
            "iterations cut off by the capture",
            "they are listed but not averaged",
            cut,
            mostly_cut if 2 * cut > len(counts.iterations) else other,
        ),
        (
            "evaluation iterations",
            "they contain only forwards, so they are listed but not averaged with the others",
            evaluations,
            other,
        ),
    ):
        if number:
            yield Limitation(subject, reason, number, kind)


def _list_other_sizes(counts: Counts) -> Iterator[Limitation]:
    """Yield a limitation if complete iterations have another number of microbatches than usual."""
    training = [
        i
        for i in counts.iterations
        if i.complete and i.kind == TRAINING and counts.is_in_window[i.index]
    ]
    usual = next((i.microbatches for i in training if i.averaged), None)
    n_others = sum(i.microbatches != usual for i in training)
    if usual is not None and n_others:
        yield Limitation(
            "iterations with another number of microbatches",
            f"the averaged iterations have {usual:,} microbatches, the most frequent number, so "
            "these iterations are listed but not averaged",
            n_others,
        )


def _list_unrecorded_waits(run: Run, counts: Counts) -> Iterator[Limitation]:
    """Yield limitations about iterations that began before every rank was being recorded.

    In such iterations, ranks may have waited for a rank whose recording began later. If no averaged
    iterations are left, the limitation also restricts the report.
    """
    left_out = [i for i in counts.iterations if i.began_unrecorded and counts.is_in_window[i.index]]
    if counts.awaited_ns is not None and left_out:
        verb = "is" if len(left_out) == 1 else "are"
        consequence = (
            f"{format_count(len(left_out), 'iteration')} that began {{}} before that {verb} "
            "listed but not averaged"
        )
        note = describe_skew(run.recorded, counts.awaited_ns, consequence)
        is_none_averaged = not counts.summary.iterations
        yield replace(note, kind=LimitationKind.RECORDINGS_AWAITED) if is_none_averaged else note
    yield from find_unclear_waits(run.recorded)


def _find_missing_operations(run: Run, counts: Counts) -> Iterator[Limitation]:
    """Yield one limitation if any ranks lack operations that other ranks have.

    Only averaged iterations are examined. If no iterations are averaged, all iterations are
    examined.
    """
    averaged = [i for i in counts.iterations if i.averaged] or counts.iterations
    doubtful_iterations = (i for i in averaged if not counts.is_uniform[i.index])
    n_missing = find_missing_operations(run, doubtful_iterations).tolist()
    ranks = [(rank.label, count) for rank, count in zip(run.ranks, n_missing, strict=True) if count]
    if ranks:
        yield Limitation(
            "operations that some ranks lack",
            "a backward has no forward, or a microbatch ran only on other stages, so the true "
            "ratio may be smaller: check the range names on "
            f"{list_first((f'{label} ({count:,})' for label, count in ranks), _MAX_LISTED)}",
            sum(count for _, count in ranks),
            LimitationKind.OPERATIONS_LACKING,
        )


def _list_explanation_limits(explanation: Explanation, counts: Counts) -> Iterator[Limitation]:
    """Yield limitations on the causes of idle time and on the critical path.

    - The causes are limited if they describe a ratio other than the primary one.
    - The critical path is limited if it is unknown, or if only some pipelines were replayed.
    """
    ratio = explanation.listed_ratio
    if ratio != counts.headline and explanation.causes.idle_ns[ratio].any():
        yield Limitation(
            "idle intervals and their causes",
            f"no rank has a window for the ratio {counts.headline}, so these refer to the ratio "
            f"{ratio}",
        )
    if explanation.no_path_reason:
        yield Limitation("critical path, slack and effects of changes", explanation.no_path_reason)
    elif part := explanation.replayed_ranks:
        yield Limitation(
            "critical path, slack, effects of changes and advice",
            f"only {part.pipelines:,} of {format_count(part.of, 'pipeline')} are replayed: the "
            "slowest, which determine the length of iterations, and a sample of the others",
        )


def _list_ambiguous_ratios(counts: Counts) -> Iterator[Limitation]:
    """Yield a limitation for each ratio that depends noticeably on unattributed compute."""
    for name, ratio in counts.summary.bubble_ratio.items():
        low = counts.summary.bubble_low[name].mean
        if ratio.mean is not None and low is not None and ratio.mean - low > NOTICEABLE:
            yield Limitation(
                f"the ratio {name}",
                f"is between {low:.4f} and {ratio.mean:.4f}, depending on whether compute kernels "
                "outside operations count as work; the largest of these kernels are listed",
            )
