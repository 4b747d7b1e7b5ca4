"""Findings: faults, and how much time each would save if it were removed, according to a replay.

Savings do not add up. For example, if two ranks are equally slow, removing the fault of only one
rank saves nothing. So each fault is removed on its own first, and then sets of faults are removed
together. A set becomes a finding if it saves significantly more than its faults do individually, or
if it contains a fault that another one hides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.count.statistics import estimate_difference, estimate_mean_error
from bubbleviz.explain.causes.bubbles import Bubbles
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.cause_times import sum_idle_by_cause
from bubbleviz.explain.causes.tokens import compute_usual_depth, list_token_waits
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.diagnosis.effects import (
    compute_quantile,
    estimate_deviation,
    measure_effects,
    measure_stage_effects,
)
from bubbleviz.explain.diagnosis.fault_names import (
    BETWEEN_ITERATIONS,
    ENOUGH,
    ITERATION_PAUSE,
    ONE_MORE,
    ONLY_REPAIR,
    OUTPUT_LAYER,
)
from bubbleviz.explain.diagnosis.faults import (
    SHAPES,
    Evidence,
    Fault,
    build_token_fault,
    find_host_activity,
    select_host_activities,
)
from bubbleviz.explain.diagnosis.late_starts import MIN_LATE_NS, measure_late_starts
from bubbleviz.explain.diagnosis.launch_steps import (
    LaunchSteps,
    append_launch_steps,
    find_launch_steps,
)
from bubbleviz.explain.diagnosis.link_changes import find_link_changes
from bubbleviz.explain.diagnosis.slow_ranks import explain_slow_ranks
from bubbleviz.explain.idle import IdleIntervals
from bubbleviz.explain.slowdown.delays import measure_iterations
from bubbleviz.explain.slowdown.replay import Replay, build_replay
from bubbleviz.explain.slowdown.replayed_run import ReplayedRun
from bubbleviz.explain.slowdown.run_work import (
    build_work_of_run,
    find_computing_rows,
    select_outer_collectives,
)
from bubbleviz.explain.slowdown.slowdowns import Scenarios, build_scenarios
from bubbleviz.explain.slowdown.work import COMPUTING, POINT_TO_POINT, Role, Work, has_role
from bubbleviz.explain.slowdown.work_order import find_queued_collectives, find_queued_transfers
from bubbleviz.model.columns import NONE, Bools, Floats, Ints, scatter
from bubbleviz.model.grouping import (
    find_distinct,
    find_first_rows,
    find_positions,
    find_run_starts,
    group_rows,
    lookup_values,
    sort_rows,
)
from bubbleviz.model.intervals import group_extents, group_latest, group_sum
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COMPUTE, Phase
from bubbleviz.model.run_kinds import INFERENCE, run_kind
from bubbleviz.schedules.timing import count_scenarios_together

if TYPE_CHECKING:
    from bubbleviz.schedules.layout.best_layouts import LayoutQuestion

#: Minimum saving that is reported, as a fraction of an iteration.
_MIN_SAVING = 0.001
#: Maximum number of faults that are combined into pairs. Minimum saving of a set of faults, as a
#: multiple of the sum of the individual savings. Minimum gain of a set of faults over its best
#: part, as a fraction of an iteration.
_MAX_PAIRED, _MIN_SET_RATIO, _MIN_SET_GAIN = 8, 1.2, 0.02
#: Maximum saving of a hidden fault, as a fraction of an iteration. Minimum saving of a set with a
#: hidden fault beyond the sum of the individual savings, as a fraction of an iteration.
_MAX_HIDDEN, _MIN_HIDDEN_GAIN = 0.01, 0.01
#: Minimum number of iterations that must show a saving before a confidence interval is computed.
_MIN_SAVED_ITERATIONS = 3
#: Minimum length of a warm-up iteration, as a multiple of the median of the other iterations.
_MIN_WARM_UP = 1.5
#: Minimum length of a pause between two iterations, as a fraction of an iteration. Minimum length
#: of a usual pause that is reported, and minimum mean of a single pause that is reported. The
#: framework's own step takes 1 to 5 %.
_MIN_PAUSE, _MIN_USUAL_PAUSE = 0.01, 0.05
#: Minimum error of a replayed saving, as a fraction of the saving, even if the replay of the
#: unchanged run is exact. It was measured with jobs from two simulators, with and without faults.
_MIN_REPLAY_ERROR = 0.01
#: Part of the difference between replayed and measured iterations that is an error of each saving.
#: It was chosen so that the intervals cover the true saving in 95 % of jobs from two simulators.
_MISSED_WEIGHT = 0.5
#: Maximum relative replay error at which reports still promise savings.
MAX_MISSED = 0.08
#: Half width of a 95 % interval of a normal distribution, in standard deviations.
_NORMAL_QUANTILE = 1.96
#: Fault kinds for which one fault can contain another of the same kind.
_NESTED = ("link", "iteration", "launch", "late-start")
#: Function that takes a replay, the times of its rows and the delays of its rows, and returns
#: iteration lengths.
_LengthMeasure = Callable[[Replay, Ints, Ints], Ints]


@dataclass(frozen=True)
class Finding:
    """Faults, and the time that iterations would save without them.

    Attributes:
        faults: One fault, or several faults that save more when they are removed together than one
            at a time.
        saving_ns: Mean saving over all iterations, in ns.
        length_ns: Mean length of the iterations in ns. If iterations overlap, this is the mean time
            from the start of one iteration to the start of the next, because removing a fault
            shortens this time.
        saved_iterations: Number of iterations whose saving is noticeable.
        error_ns: Half width of the 95 % confidence interval of ``saving_ns``. None if fewer than
            three iterations save time, or if the saving is an upper bound because it is a pause
            between iterations. The interval combines the errors of :func:`estimate_mean_saving`
            with two more: half the mean difference between replayed and measured iterations, and
            the error of the times without the faults.
        is_measured: Whether the saving was measured directly, without a replay.
        is_single_pause: Whether this is the only pause between several iterations. It may not
            recur, because a checkpoint or an evaluation may have caused it.
        repaired: What is saved if slow stages have slow GPUs that are repaired instead of moving
            layers; see :attr:`.Fault.repaired`. None if that explanation is ruled out.
    """

    faults: tuple[Fault, ...]
    saving_ns: float
    length_ns: float
    saved_iterations: int
    error_ns: float | None
    is_measured: bool = False
    is_single_pause: bool = False
    repaired: Finding | None = None

    @property
    def largest_saving_ns(self) -> float:
        """The larger of :attr:`saving_ns` and the saving of :attr:`repaired`, in ns."""
        if self.repaired is None:
            return self.saving_ns
        return max(self.saving_ns, self.repaired.saving_ns)

    @property
    def is_of_period(self) -> bool:
        """Whether the saving is a measured pause between iterations."""
        return self.is_measured and self.faults[0].detail == ITERATION_PAUSE

    @property
    def fault_names(self) -> frozenset[str]:
        """Names of the faults."""
        return frozenset(fault.name for fault in self.faults)

    @property
    def saving_ratio(self) -> float:
        """:attr:`saving_ns` as a fraction of :attr:`length_ns`."""
        return self.saving_ns / max(self.length_ns, 1.0)


@dataclass(frozen=True)
class Diagnosis:
    """The reasons why iterations are long, and how accurate the replay is.

    Attributes:
        findings: Findings that save at least 0.1 % of an iteration, sorted by saving, largest
            first. If there are two explanations, the larger saving counts. A single pause comes
            last.
        iterations: Number of replayed iterations, excluding a warm-up.
        length_ns: Mean length of the iterations; see :attr:`Finding.length_ns`.
        warm_up: Length of the first iteration as a multiple of the median of all other iterations.
            0 if the first iteration is not a warm-up. A warm-up is excluded from all means.
        missed_ratio: Mean difference between replayed and measured iterations, as a fraction of the
            measured length. Replicas that drift apart make the whole iteration longer than the
            replay. So the measured length is the length of the whole iteration or of its longest
            replica, whichever is closer on average.
        pause_ratio: Mean time between two iterations in which all ranks are idle, as a fraction of
            the mean period. The period is the time from the start of one iteration to the start of
            the next. 0 if no optimizer was recorded, which may run in this time.
    """

    findings: tuple[Finding, ...]
    iterations: int
    length_ns: float
    warm_up: float
    missed_ratio: float = 0.0
    pause_ratio: float = 0.0

    @property
    def misses_measurement(self) -> bool:
        """Whether the replay differs from the measured iterations by more than 8 % on average.

        If this is true, reports do not promise any savings.
        """
        return self.missed_ratio > MAX_MISSED


@dataclass(frozen=True, eq=False, repr=False)
class _FaultReplay:
    """Replays iterations as if certain faults did not exist.

    Attributes:
        evidence: Measured effects, delays and other evidence about the run.
        delays_ns: Delay of each row of the work table with all faults.
        measure_lengths: Function that returns the iteration lengths of a replay.
    """

    evidence: Evidence
    delays_ns: Ints
    measure_lengths: _LengthMeasure

    def measure_without(self, scenarios: Sequence[Sequence[Fault]], replay: Replay) -> Ints:
        """Replay the iterations without the faults of each scenario, and return their lengths.

        Args:
            scenarios: The faults that are removed in each scenario.
            replay: Replay of the run.

        Returns:
            Lengths in ns, shape (iterations, scenarios).
        """
        lengths = [np.zeros((len(replay.iterations), 0), np.int64)]
        n_together = count_scenarios_together(len(self.evidence.work))
        for low in range(0, len(scenarios), n_together):
            times_ns = self._remove_faults(scenarios[low : low + n_together], replay)
            lengths.append(self.measure_lengths(replay, *times_ns))
        return np.concatenate(lengths, axis=1)

    def _remove_faults(
        self, scenarios: Sequence[Sequence[Fault]], replay: Replay
    ) -> tuple[Ints, Ints]:
        """Return the times and delays of the replayed rows without the faults of each scenario.

        Each fault multiplies the times of its ``rows`` by its ``scale``, and subtracts ``late_ns``
        from the delays of its ``delayed`` rows. Pauses are removed last, by subtracting their
        length in ns, so that other faults do not scale them.

        Args:
            scenarios: The faults that are removed in each scenario.
            replay: Replay that determines the order of the returned rows.

        Returns:
            Times and delays in ns, each of shape (rows, scenarios).
        """
        own_ns = self.evidence.own_ns
        n_rows = len(replay.rows)
        # Rows that are not replayed are written to an extra row at the end, which is cut off.
        position = scatter(len(own_ns), replay.rows, np.arange(n_rows))
        time_ns, delay_ns = (
            np.repeat(np.append(column[replay.rows], 0)[:, None], len(scenarios), axis=1)
            for column in (own_ns, self.delays_ns)
        )
        for number, faults in enumerate(scenarios):
            for fault in sorted(faults, key=lambda fault: fault.family == "pauses"):
                rows = position[fault.rows]
                if fault.family == "pauses":
                    remaining_ns = time_ns[rows, number] - own_ns[fault.rows] * (1 - fault.scale)
                else:
                    remaining_ns = time_ns[rows, number] * fault.scale
                time_ns[rows, number] = np.rint(np.maximum(remaining_ns, 0))
                delay_ns[position[fault.delayed], number] -= fault.late_ns
        together = self.evidence.launch_steps.take_starting_together()
        delay_ns[position[together.row]] = delay_ns[position[together.previous]]
        return time_ns[:n_rows], delay_ns[:n_rows]


@dataclass(frozen=True, eq=False, repr=False)
class _Baseline:
    """Lengths of the iterations with all faults. Savings are measured relative to them.

    Attributes:
        evidence: Measured effects, delays and other evidence about the run.
        warm_up: Length of the warm-up iteration, or 0; see :attr:`Diagnosis.warm_up`.
        counts: Slice that selects all replayed iterations except a warm-up. All other attributes
            cover only these iterations.
        replayed_ns: Replayed length of each selected iteration.
        length_ns: Mean length of the iterations; see :attr:`Finding.length_ns`.
        missed_ratio: Mean difference between replayed and measured lengths, as a fraction of the
            measured length.
        iterations: Number of each selected iteration.
        measured_ns: Measured length of each selected iteration, or None if iterations overlap.
    """

    evidence: Evidence
    warm_up: float
    counts: slice
    replayed_ns: Ints
    length_ns: float
    missed_ratio: float
    iterations: Ints
    measured_ns: Ints | None

    def build_findings(
        self, scenarios: Sequence[tuple[Fault, ...]], without_ns: Ints
    ) -> list[Finding]:
        """Build one finding per scenario.

        Args:
            scenarios: The faults that are removed in each scenario.
            without_ns: Length of each replayed iteration without these faults, including a warm-up,
                shape (iterations, scenarios).
        """
        return list(map(self._build_finding, scenarios, without_ns.T))

    def _build_finding(self, faults: tuple[Fault, ...], without_ns: Ints) -> Finding:
        """Build the finding for a set of faults from the replayed iteration lengths without them.

        The saving of an iteration is its replayed length minus its length without the faults. The
        finding contains the mean saving over all iterations. A saving is noticeable if it is more
        than 0.1 % of the iteration.
        """
        saved_ns = self.replayed_ns - without_ns[self.counts]
        is_saved = saved_ns > _MIN_SAVING * self.replayed_ns
        mean_ns, error_ns = estimate_mean_saving(saved_ns, without_ns[self.counts], is_saved)
        if error_ns is not None:
            missed_ns = _MISSED_WEIGHT * self.missed_ratio * self.length_ns
            scale_errors_ns = [_estimate_scale_error(self.evidence, fault) for fault in faults]
            error_ns = float(np.linalg.norm([error_ns, missed_ns, *scale_errors_ns]))
        return Finding(faults, mean_ns, self.length_ns, int(is_saved.sum()), error_ns)

    def measure_change(self, finding: Finding, *, others_vary: bool) -> Finding | None:
        """Replace the replayed saving of a link that became slow with a measured saving.

        The measured saving is ``(mean length since the change - mean length before it) * fraction
        of slow iterations``. The measured saving is more reliable than the replay, which cannot
        change transfers that have no rows in the work table. However, it also contains what other
        faults cost since the change. So it is not used if other faults vary over the run
        (``others_vary``), unless the slow transfers have no rows or the replay differs from the
        measured iterations by more than 8 %.

        Args:
            finding: Finding for a single fault.
            others_vary: Whether other faults cost more in some iterations than in others.

        Returns:
            The finding with the measured saving. None unless the fault is a link that became slow,
            iterations do not overlap, and some but not all of the selected iterations are slow.
        """
        fault, length_ns = finding.faults[0], self.measured_ns
        since = fault.since_iteration
        if fault.change is None or since is None or length_ns is None:
            return None
        is_slow = self.iterations >= since
        is_replayed = len(fault.rows) > 0 and self.missed_ratio <= MAX_MISSED
        if is_slow.all() or not is_slow.any() or (is_replayed and others_vary):
            return None
        rise_ns, error_ns = estimate_difference(length_ns[~is_slow], length_ns[is_slow])
        slow_fraction = float(is_slow.mean())
        return Finding(
            finding.faults,
            saving_ns=rise_ns * slow_fraction,
            length_ns=float(length_ns.mean()),
            saved_iterations=int(is_slow.sum()),
            error_ns=None if error_ns is None else error_ns * slow_fraction,
            is_measured=True,
        )


def _estimate_length_error(length_ns: Ints) -> float:
    """Estimate how much the mean length of the iterations of another run would differ by chance.

    Two standard deviations are estimated as 1.4826 times a median, and the smaller one is used:

    - The median absolute deviation of the lengths from their median. A few iterations that are long
      for another reason have no effect.
    - The median absolute difference between consecutive lengths, divided by the square root of 2. A
      drift has almost no effect.

    Args:
        length_ns: Length of each iteration in ns.

    Returns:
        Half width of the 95 % confidence interval of the mean in ns.
    """
    values_ns = length_ns.astype(np.float64)
    of_lengths_ns = estimate_deviation(values_ns - compute_quantile(values_ns, 0.5))
    of_differences_ns = estimate_deviation(np.diff(values_ns)) / math.sqrt(2)
    deviation_ns = min(of_lengths_ns, of_differences_ns)
    return _NORMAL_QUANTILE * deviation_ns / math.sqrt(len(length_ns))


def _estimate_scale_error(evidence: Evidence, fault: Fault) -> float:
    """Estimate the error of a saving that is due to noise in the times without the fault.

    The times without the fault follow from two medians of noisy times: the median of the slow work
    and the median of its norm. The standard error of a median of n times is 1.25 standard
    deviations / sqrt(n), where n is the mean number of slow rows per kind of work. This relative
    error applies to the time that the slow rows would take without the fault, as a mean per rank
    and iteration.

    Args:
        evidence: Measured effects, delays and other evidence about the run.
        fault: The fault.

    Returns:
        Half width of the 95 % confidence interval in ns. 0 if the fault changes no rows, or if its
        saving is an upper bound.
    """
    rows, work = fault.rows, evidence.work
    if not len(rows) or fault.bound:
        return 0.0
    remaining_ns = evidence.own_ns[rows] * fault.scale
    parts = group_rows(work.rank[rows], work.iteration[rows])
    remaining_of_rank_ns = float(remaining_ns.sum()) / len(parts)
    n_times = len(rows) / len(find_distinct(work.kind[rows]))
    relative_error = 1.25 * evidence.effects.noise * math.sqrt(2 / n_times)
    return _NORMAL_QUANTILE * relative_error * remaining_of_rank_ns


def build_diagnosis(
    run: ReplayedRun,
    scenarios: Scenarios,
    layout: LayoutQuestion | None = None,
    schedule: str | None = None,
    period_ns: float | None = None,
) -> Diagnosis:
    """Find the reasons why the iterations of a run are long, and how much time each reason costs.

    Each fault is first removed on its own. Then sets of faults are removed together
    (:func:`_find_sets_of_faults`). Findings that save less than 0.1 % of an iteration are left out.
    The first iteration is ignored if it is a warm-up.

    Args:
        run: The replayed run.
        scenarios: The work of the run and its replay.
        layout: Layers of the stages, or None if they are unknown.
        schedule: Name of the schedule that ran, or None if it is unknown.
        period_ns: Mean time from the start of one iteration to the start of the next if iterations
            overlap, or None if they do not.
    """
    rows = find_computing_rows(run.operations, run.averaged)
    late_ns = _measure_delays(run, scenarios, rows, Cause.HOST)
    scenarios, steps = _add_launch_steps(run, scenarios, late_ns)
    evidence = _collect_evidence(run, scenarios, steps, late_ns, layout, schedule)
    faultless, length_ns = _build_fault_replay(run, scenarios, evidence, period_ns)
    baseline = _measure_baseline(faultless, scenarios.replay, length_ns)
    pauses = _measure_idle_between_iterations(run)
    return Diagnosis(
        findings=_list_findings(run, scenarios, faultless, baseline, pauses),
        iterations=len(baseline.replayed_ns),
        length_ns=baseline.length_ns,
        warm_up=baseline.warm_up,
        missed_ratio=_compute_smallest_missed_ratio(baseline, scenarios.replay.iterations),
        pause_ratio=pauses.mean_ratio if pauses and _has_optimizer(run.operations) else 0.0,
    )


def _build_fault_replay(
    run: ReplayedRun, scenarios: Scenarios, evidence: Evidence, period_ns: float | None
) -> tuple[_FaultReplay, float | None]:
    """Return the replay of iterations without faults, and the length that savings refer to.

    Args:
        run: The replayed run.
        scenarios: The work of the run and its replay.
        evidence: Measured effects, delays and other evidence about the run.
        period_ns: Mean time from the start of one iteration to the start of the next if iterations
            overlap, or None if they do not.

    Returns:
        faultless: Replays iterations without certain faults.
        length_ns: Mean iteration length that savings are compared with, or None to use the mean of
            the replayed lengths.
    """
    delays_ns = _sum_delays(scenarios, evidence)
    measure_lengths, length_ns = _choose_length_measure(
        evidence, scenarios.replay, delays_ns, period_ns, run_kind(run.operations.phase)
    )
    return _FaultReplay(evidence, delays_ns, measure_lengths), length_ns


def _list_findings(
    run: ReplayedRun,
    scenarios: Scenarios,
    faultless: _FaultReplay,
    baseline: _Baseline,
    pauses: _Pauses | None,
) -> tuple[Finding, ...]:
    """Return the findings that save at least 0.1 % of an iteration, largest saving first.

    A stage from which no layers should be moved is also listed if repairing its GPU saves enough
    (:func:`_keep_only_repair`).

    Args:
        run: The replayed run.
        scenarios: The work of the run and its replay.
        faultless: Replays iterations without certain faults.
        baseline: Lengths of the iterations with all faults.
        pauses: Idle time between iterations, or None if it is unknown.
    """
    single = _find_single_faults(run, scenarios, faultless, baseline)
    findings = [*_find_sets_of_faults(single, faultless, scenarios.replay, baseline), *single]
    findings = _add_repairs(findings, faultless, scenarios.replay, baseline)
    findings = [
        listed
        for finding in findings
        if (listed := _keep_only_repair(finding)).largest_saving_ns
        >= _MIN_SAVING * finding.length_ns
    ]
    if pauses is not None:
        findings.extend(_find_pause_between_iterations(run, pauses))

    def get_sort_key(finding: Finding) -> tuple[bool, float]:
        """Return a key that sorts larger savings first, and a single pause last."""
        return finding.is_single_pause, -finding.largest_saving_ns

    return tuple(sorted(findings, key=get_sort_key))


def _add_repairs(
    findings: Sequence[Finding], faultless: _FaultReplay, replay: Replay, baseline: _Baseline
) -> list[Finding]:
    """Add what is saved if slow stages have slow GPUs that are repaired (:attr:`Finding.repaired`).

    Args:
        findings: Findings with one or several faults each.
        faultless: Replays iterations without certain faults.
        replay: Replay of the run.
        baseline: Lengths of the iterations with all faults.
    """
    has_repair = [any(fault.repaired for fault in finding.faults) for finding in findings]
    scenarios = [
        tuple(fault.repaired or fault for fault in finding.faults)
        for finding, is_repairable in zip(findings, has_repair, strict=True)
        if is_repairable
    ]
    repairs = iter(baseline.build_findings(scenarios, faultless.measure_without(scenarios, replay)))
    return [
        replace(finding, repaired=next(repairs)) if is_repairable else finding
        for finding, is_repairable in zip(findings, has_repair, strict=True)
    ]


def _keep_only_repair(finding: Finding) -> Finding:
    """Return a finding that is listed only if its saving, or that of the repair, is large enough.

    If moving layers off a single stage saves less than 0.1 % of an iteration, this saving becomes
    0, and only the repair of its GPU is worth advising. The repair is dropped for the last stage
    (it also takes longer than other stages in healthy runs), for several stages, and for sets of
    faults.
    """
    fault, repaired = finding.faults[0], finding.repaired
    if repaired is None or finding.saving_ratio >= _MIN_SAVING:
        return finding
    if len(finding.faults) > 1 or fault.stage is None or fault.detail == OUTPUT_LAYER:
        return replace(finding, repaired=None)
    faults = (replace(fault, detail=ONLY_REPAIR),)
    return replace(finding, faults=faults, saving_ns=0.0, error_ns=0.0)


def _compute_smallest_missed_ratio(baseline: _Baseline, iterations: Ints) -> float:
    """Return the smaller of two errors of the replay; see :attr:`Diagnosis.missed_ratio`.

    Args:
        baseline: Lengths of the iterations with all faults.
        iterations: Numbers of all replayed iterations.
    """
    longest_replicas_ns = _measure_longest_replicas(baseline.evidence.work, iterations)
    of_replicas = _compute_missed_ratio(baseline.replayed_ns, longest_replicas_ns[baseline.counts])
    return min(baseline.missed_ratio, of_replicas)


def _add_launch_steps(
    run: ReplayedRun, scenarios: Scenarios, late_ns: Ints
) -> tuple[Scenarios, LaunchSteps]:
    """Return the scenarios of a run with its launch steps, and these steps (:mod:`.launch_steps`).

    Inference runs have no launch steps.

    Args:
        run: The replayed run.
        scenarios: The work of the run and its replay, without launch steps.
        late_ns: Delay of each row of the work in ns that is due to a late launch, or 0.
    """
    if run_kind(run.operations.phase) == INFERENCE:
        return scenarios, LaunchSteps.make_empty()
    rows = find_computing_rows(run.operations, run.averaged)
    launched_ns = run.operations.launched_ns[rows]
    steps = find_launch_steps(scenarios, launched_ns, late_ns)
    if not len(steps):
        return scenarios, steps
    work, order = append_launch_steps(scenarios.work, scenarios.order, steps)
    extended = build_scenarios(work, order, clocks_apart=scenarios.clocks_apart)
    return (scenarios, LaunchSteps.make_empty()) if extended is None else (extended, steps)


def _sum_delays(scenarios: Scenarios, evidence: Evidence) -> Ints:
    """Return the delay in ns of each row with all faults, as it is replayed.

    Early starts are negative delays. A late launch that a launch step explains is not a delay. A
    step that starts at the same time as an operation has the same delay as that operation.

    Args:
        scenarios: The work of the run and its replay.
        evidence: Measured effects, delays and other evidence about the run.
    """
    late_ns = evidence.late_ns.copy()
    late_ns[evidence.launch_steps.operation] = 0
    delays_ns = scenarios.early_ns + late_ns + evidence.start_late_ns + evidence.profiler_ns
    together = evidence.launch_steps.take_starting_together()
    delays_ns[together.row] = delays_ns[together.previous]
    return delays_ns


def _measure_baseline(
    faultless: _FaultReplay, replay: Replay, length_ns: float | None
) -> _Baseline:
    """Replay the iterations with all faults, and leave out the first one if it is a warm-up.

    Measured lengths extend from the first start to the last end of all work except sends, receives
    and launch steps.

    Args:
        faultless: Replays iterations without certain faults.
        replay: Replay of the run.
        length_ns: Mean iteration length that savings are compared with, or None to use the mean of
            the replayed lengths.
    """
    work = faultless.evidence.work
    measured_ns = measure_iterations(_select_bounding_work(work), replay.iterations)
    warm_up = _measure_warm_up(measured_ns)
    counts = slice(1 if warm_up else 0, None)
    replayed_ns = faultless.measure_without([()], replay)[counts, 0]
    return _Baseline(
        faultless.evidence,
        warm_up,
        counts,
        replayed_ns,
        float(replayed_ns.mean()) if length_ns is None else length_ns,
        _compute_missed_ratio(replayed_ns, measured_ns[counts]),
        replay.iterations[counts],
        measured_ns[counts] if length_ns is None else None,
    )


def _find_single_faults(
    run: ReplayedRun, scenarios: Scenarios, faultless: _FaultReplay, baseline: _Baseline
) -> list[Finding]:
    """Return one finding per fault, sorted by saving, largest first.

    Savings are replayed, except that the saving of a link that became slow is measured if possible
    (:meth:`_Baseline.measure_change`).

    Args:
        run: The replayed run.
        scenarios: The work of the run and its replay.
        faultless: Replays iterations without certain faults.
        baseline: Lengths of the iterations with all faults.
    """
    faults = [(fault,) for find in SHAPES for fault in find(faultless.evidence)]
    without_ns = faultless.measure_without(faults, scenarios.replay)
    findings = baseline.build_findings(faults, without_ns)
    varying = [finding for finding in findings if _varies_over_run(finding)]
    findings = [
        baseline.measure_change(finding, others_vary=any(other is not finding for other in varying))
        or finding
        for finding in findings
    ]
    for fault, eased in _list_eased_replays(run, scenarios):
        without_ns = faultless.measure_without([(fault,)], eased)
        findings += baseline.build_findings([(fault,)], without_ns)
    findings.sort(key=lambda finding: -finding.saving_ns)
    return findings


def _varies_over_run(finding: Finding) -> bool:
    """Return whether a fault may cost more in some iterations than in others.

    Ranks that slow down and links that became slow always vary. Slow iterations, pauses, late
    launches, and collectives that became slow vary if they save at least 1 % of an iteration.
    """
    fault = finding.faults[0]
    if fault.kind in ("slowed", "drift") or fault.change is not None:
        return True
    is_partial = fault.kind in ("iteration", "launch", "late-start") or fault.lasts
    return is_partial and finding.saving_ratio >= _MAX_HIDDEN


def _find_sets_of_faults(
    single: Sequence[Finding], faultless: _FaultReplay, replay: Replay, baseline: _Baseline
) -> list[Finding]:
    """Return the sets of faults that save more together than individually.

    Three kinds of sets are tried (:func:`_select_sets_with_gain` then selects from them):

    - Pairs of the eight most important faults (:func:`_choose_candidates`).
    - Slow ranks and stages that hide one another (:func:`_list_slow_sets`).
    - Each of these sets together with one of the eight faults.

    Args:
        single: Findings with one fault each, sorted by saving, largest first.
        faultless: Replays iterations without certain faults.
        replay: Replay of the run.
        baseline: Lengths of the iterations with all faults.
    """
    candidates = _choose_candidates(single, faultless.evidence)
    slow_sets = _list_slow_sets([finding.faults[0] for finding in single])
    extended = [
        (*members, fault)
        for members in slow_sets
        for fault in candidates
        if fault.name not in {member.name for member in members}
    ]
    listed = [*_list_fault_pairs(candidates), *slow_sets, *extended]
    set_of_names = {frozenset(fault.name for fault in members): members for members in listed}
    sets = list(set_of_names.values())
    combined = baseline.build_findings(sets, faultless.measure_without(sets, replay))
    return _select_sets_with_gain(combined, single)


def _measure_warm_up(length_ns: Ints) -> float:
    """Return the first iteration's length as a multiple of the usual, or 0 if it is not a warm-up.

    The multiple is the first length divided by the upper median of all other lengths. The iteration
    is not a warm-up if this multiple is at most 1.5, or if there are fewer than three other
    iterations.
    """
    other_ns = np.sort(length_ns[1:])
    if len(other_ns) < 3:
        return 0.0
    ratio = float(length_ns[0] / max(other_ns[len(other_ns) // 2], 1))
    return ratio if ratio > _MIN_WARM_UP else 0.0


def _choose_candidates(single: Sequence[Finding], evidence: Evidence) -> list[Fault]:
    """Choose the eight most important faults that can be removed together with others.

    Faults that save at least 0.1 % of an iteration come first, largest saving first. A fault that
    saves less may be hidden by another one, so such faults are sorted by the time that their ranks
    lose (:func:`_measure_lost_time`). Faults whose saving is only an upper bound, and waits for
    tokens, cannot be combined.

    Args:
        single: Findings with one fault each.
        evidence: Measured effects, delays and other evidence about the run.
    """
    combinable = [
        finding
        for finding in single
        if not finding.faults[0].bound and finding.faults[0].kind != "token"
    ]

    def get_sort_key(finding: Finding) -> tuple[float, float]:
        saving_ns = finding.saving_ns if finding.saving_ratio >= _MIN_SAVING else 0.0
        return -saving_ns, -_measure_lost_time(evidence, finding.faults[0])

    combinable.sort(key=get_sort_key)
    return [finding.faults[0] for finding in combinable[:_MAX_PAIRED]]


def _measure_lost_time(evidence: Evidence, fault: Fault) -> float:
    """Return how much time a fault costs its rows in total, in ns, divided by the number of ranks.

    Args:
        evidence: Measured effects, delays and other evidence about the run.
        fault: The fault.
    """
    slow_ns = evidence.own_ns[fault.rows] * (1 - fault.scale)
    ranks = find_distinct(evidence.work.rank[fault.rows], evidence.work.rank[fault.delayed])
    return float(slow_ns.sum() + fault.late_ns.sum()) / max(len(ranks), 1)


def _list_fault_pairs(faults: Sequence[Fault]) -> list[tuple[Fault, Fault]]:
    """List the pairs of faults that may save more together than individually.

    Two faults of the same kind ``link``, ``iteration``, ``launch`` or ``late-start`` are not
    paired, because one may contain the other.
    """
    return [(a, b) for a, b in combinations(faults, 2) if a.kind != b.kind or a.kind not in _NESTED]


def _list_slow_sets(faults: Sequence[Fault]) -> list[tuple[Fault, ...]]:
    """List sets of slow ranks and stages that may save time only if all of them are repaired.

    If several ranks of a stage are slow, all other ranks wait for the slowest one. The sets are:

    - The slow ranks of each stage.
    - All slow ranks, hosts and replicas.
    - All slow ranks, hosts and replicas, together with the slow stages.

    Sets of a single fault are left out.

    Args:
        faults: All single faults of the run.
    """
    slow = [fault for fault in faults if fault.kind in ("rank", "host")]
    of_stage: dict[int, list[Fault]] = {}
    for fault in slow:
        if len(fault.ranks) == 1 and fault.stage is not None:
            of_stage.setdefault(fault.stage, []).append(fault)
    with_stages = [*slow, *(fault for fault in faults if fault.kind == "stage")]
    sets = (*of_stage.values(), slow, with_stages)
    return [tuple(members) for members in sets if len(members) > 1]


def _select_sets_with_gain(combined: Sequence[Finding], single: Sequence[Finding]) -> list[Finding]:
    """Return the sets of faults that save significantly more than their parts.

    A set must meet two conditions:

    - Its saving is more than 1.2 times the sum of the savings of its faults. If one of its faults
      is hidden (saves less than 1 % of an iteration on its own), it is enough that the saving
      exceeds this sum by more than 1 % of an iteration.
    - Its saving exceeds the saving of its best part by more than 2 % of an iteration. Parts are the
      individual faults in the set, and smaller sets of its faults that were already selected.

    Sets are tried in ascending order of size.

    Args:
        combined: Findings with several faults each.
        single: Findings with one fault each, including one for every fault in ``combined``.
    """
    saving_ns = {finding.faults[0].name: finding.saving_ns for finding in single}
    selected: list[Finding] = []
    for finding in sorted(combined, key=lambda finding: len(finding.faults)):
        names = finding.fault_names
        parts_ns = [saving_ns[name] for name in names]
        subsets_ns = [part.saving_ns for part in selected if part.fault_names < names]
        gain_ns = finding.saving_ns - max(parts_ns + subsets_ns)
        saves_more = finding.saving_ns > _MIN_SET_RATIO * sum(parts_ns)
        if min(parts_ns) < _MAX_HIDDEN * finding.length_ns:
            saves_more |= finding.saving_ns - sum(parts_ns) > _MIN_HIDDEN_GAIN * finding.length_ns
        if saves_more and gain_ns > _MIN_SET_GAIN * finding.length_ns:
            selected.append(finding)
    return selected


def _compute_missed_ratio(replayed_ns: Ints, measured_ns: Ints) -> float:
    """Return the mean absolute difference of two lengths, divided by the mean measured length."""
    missed_ns = np.abs(replayed_ns - measured_ns)
    return float(missed_ns.mean() / max(measured_ns.mean(), 1))


def _select_bounding_work(work: Work) -> Work:
    """Return the work that determines when an iteration begins and ends.

    Receives that are posted before their iteration begins only wait, so transfers are left out.
    Launch steps are also left out, because a host may launch work before the iteration begins.
    """
    return work.take(~has_role(work.role, (*POINT_TO_POINT, Role.LAUNCH)))


def _measure_longest_replicas(work: Work, iterations: Ints) -> Ints:
    """Return the measured length of each iteration on the replica that takes longest, in ns.

    Replicas that never wait for each other drift apart, but the replay starts all of them at once.
    So each replica is measured from its own first start to its own last end.

    Args:
        work: Work table of all ranks.
        iterations: Numbers of the iterations, ascending. Each iteration must contain work that is
            not a send or receive.
    """
    work = _select_bounding_work(work)
    work = work.take(find_positions(iterations, work.iteration) != NONE)
    parts = group_rows(work.iteration, work.replica)
    start_ns, end_ns = group_extents(parts.of_row, len(parts), work.start_ns, work.end_ns)
    iteration_row = find_positions(iterations, work.iteration[parts.first])
    return group_latest(iteration_row, len(iterations), end_ns - start_ns, 0)


def _choose_length_measure(
    evidence: Evidence, measured: Replay, delays_ns: Ints, period_ns: float | None, kind: str
) -> tuple[_LengthMeasure, float | None]:
    """Choose how the lengths of replayed iterations are measured.

    If iterations do not overlap, or if no rows are replayed, the length of the replay is used.

    If iterations overlap, removing a fault shortens the period. The period cannot become shorter
    than the longest span of any rank (:func:`_measure_lengths_and_spans`). So the saving is limited
    to the time by which the longest span gets shorter, plus the mean pause after it (period minus
    longest span).

    Args:
        evidence: Measured effects, delays and other evidence about the run.
        measured: Replay of the run.
        delays_ns: Measured delay of each row of the work table.
        period_ns: Mean time from the start of one iteration to the start of the next, or None if
            iterations do not overlap.
        kind: Kind of the run, ``"training"`` or ``"inference"``.

    Returns:
        measure_lengths: Function that takes a replay, the times of its rows and the delays of its
            rows, and returns the lengths of iterations in ns.
        length_ns: Mean iteration length that savings are compared with, or None to use the mean of
            the replayed lengths.
    """
    if period_ns is None or not len(measured.rows):
        return lambda replay, *times: replay.lengths_ns(*times, in_replay_order=True), None
    measure = partial(_measure_lengths_and_spans, evidence.work, is_inference=kind == INFERENCE)
    rows = measured.rows
    whole_ns, spans_ns = measure(measured, evidence.own_ns[rows, None], delays_ns[rows, None])
    # Replicas that never wait for each other have separate periods. The longest period is used.
    span_ns = float(spans_ns.mean())
    period_ns = max(period_ns, span_ns)
    beyond_ns = whole_ns - spans_ns - round(period_ns - span_ns)

    def measure_bounded(replay: Replay, own_ns: Ints, delay_ns: Ints) -> Ints:
        lengths_ns, spans_ns = measure(replay, own_ns, delay_ns)
        return np.maximum(lengths_ns, spans_ns + beyond_ns)

    return measure_bounded, period_ns


def _measure_lengths_and_spans(
    work: Work, replay: Replay, own_ns: Ints, delay_ns: Ints, *, is_inference: bool
) -> tuple[Ints, Ints]:
    """Return the length of each iteration, and the longest span of any rank in it.

    In training, the span of a rank is the time from the start of its first to the end of its last
    compute operation or optimizer in the iteration. In inference, a rank may wait between two
    chunks of an iteration only because the replay does not contain the previous iteration. So its
    span is the sum of its compute times.

    Args:
        work: Work table of all ranks.
        replay: Replay of this work.
        own_ns: Time of each row in replay order, shape (rows, scenarios).
        delay_ns: Delay of each row, in the same order and shape.
        is_inference: Whether the run has only forward passes.

    Returns:
        Lengths and spans in ns, both of shape (iterations, scenarios).
    """
    ends_ns = replay.compute_ends(own_ns, delay_ns, in_replay_order=True)
    computing = np.flatnonzero(has_role(work.role[replay.rows], (*COMPUTING, Role.OPTIMIZER)))
    rows = replay.rows[computing]
    order = sort_rows(work.iteration[rows], work.rank[rows])
    rows, computing = rows[order], computing[order]
    first = find_run_starts(work.iteration[rows], work.rank[rows])
    if is_inference:
        spans_ns = np.add.reduceat(own_ns[computing], first, axis=0)
    else:
        begin_ns = np.minimum.reduceat(ends_ns[computing] - own_ns[computing], first, axis=0)
        spans_ns = np.maximum.reduceat(ends_ns[computing], first, axis=0) - begin_ns
    first = find_run_starts(work.iteration[rows[first]])
    return replay.find_iteration_ends(ends_ns), np.maximum.reduceat(spans_ns, first, axis=0)


def estimate_mean_saving(
    saved_ns: Ints, without_ns: Ints, is_saved: Bools | None = None
) -> tuple[float, float | None]:
    """Return the mean saving of iterations, and the half width of its 95 % confidence interval.

    The mean covers all iterations. The interval combines three errors:

    - The error of the mean (:func:`.estimate_mean_error`). It is computed for the iterations with
      a noticeable saving, because the fault does not occur in the other iterations. The half width
      is multiplied by the fraction of iterations with a noticeable saving. If the savings vary less
      as fractions of their iterations, because some iterations are longer for another reason, the
      error of the mean fraction is used.
    - The noise of the iterations without the fault (:func:`_estimate_length_error`).
    - The error of a replay, which is 1 % of the saving (``_MIN_REPLAY_ERROR``).

    Args:
        saved_ns: Saving of each iteration.
        without_ns: Length of each iteration without the fault.
        is_saved: Mask of the iterations whose saving is noticeable, or None for all.

    Returns:
        The mean and the half width in ns. The half width is None if fewer than three iterations
        save time.
    """
    if is_saved is None:
        is_saved = np.ones(len(saved_ns), bool)
    noticeable_ns, lengths_ns = saved_ns[is_saved], (saved_ns + without_ns)[is_saved]
    mean_ns = float(saved_ns.mean())
    if len(noticeable_ns) < _MIN_SAVED_ITERATIONS:
        return mean_ns, None
    error_ns = min(
        estimate_mean_error(noticeable_ns),
        estimate_mean_error(noticeable_ns / lengths_ns) * float(lengths_ns.mean()),
    )
    error_ns *= len(noticeable_ns) / len(saved_ns)
    noise_ns = _estimate_length_error(without_ns)
    return mean_ns, float(np.linalg.norm([error_ns, noise_ns, _MIN_REPLAY_ERROR * mean_ns]))


@dataclass(frozen=True, eq=False, repr=False)
class _Boundaries:
    """Boundaries between consecutive iterations of a rank, one row per boundary.

    Attributes:
        rank: Index of the rank.
        iteration: Index of the later iteration.
        period_ns: Time from the start of the earlier iteration to the start of the later one.
        end_ns: End of the earlier iteration.
        begin_ns: Start of the later iteration.
        first_row: Row of the first compute operation of the later iteration.
    """

    rank: Ints
    iteration: Ints
    period_ns: Ints
    end_ns: Ints
    begin_ns: Ints
    first_row: Ints


@dataclass(frozen=True, eq=False, repr=False)
class _Pauses:
    """Times between iterations during which all ranks are idle.

    Attributes:
        boundaries: Boundaries between the consecutive iterations of each rank.
        idle_ns: Time in ns for which all ranks are idle before each later iteration.
        length_ns: Mean time in ns from the start of one iteration to the start of the next.
    """

    boundaries: _Boundaries
    idle_ns: Ints
    length_ns: float

    @property
    def mean_ratio(self) -> float:
        """Mean of :attr:`idle_ns` as a fraction of :attr:`length_ns`."""
        return float(self.idle_ns.mean()) / max(self.length_ns, 1.0)


def _measure_idle_between_iterations(run: ReplayedRun) -> _Pauses | None:
    """Measure the pauses between the iterations of a run, in which all ranks are idle.

    ::

        stage 0   ... B ├ Optimizer ┤          ├ F ...
        stage 1   ... B   ├ Optimizer ┤            ├ F ...
                                      │ pause  │

    :func:`_measure_shared_pauses` defines the pause before an iteration. The result is None for
    inference runs, and if there are no consecutive averaged iterations.
    """
    if run_kind(run.operations.phase) == INFERENCE:
        return None
    boundaries = _list_boundaries(run)
    if not len(boundaries.rank):
        return None
    of_iteration = group_rows(boundaries.iteration)
    n_periods = np.bincount(of_iteration.of_row)
    # Each iteration counts once, like its pause, even if some ranks have no boundary there.
    period_ns = np.bincount(of_iteration.of_row, boundaries.period_ns) / n_periods
    return _Pauses(boundaries, _measure_shared_pauses(boundaries), float(period_ns.mean()))


def _find_pause_between_iterations(run: ReplayedRun, pauses: _Pauses) -> Iterator[Finding]:
    """Yield a finding if all ranks are idle between iterations for a considerable time.

    The usual pause is the lower median. It is subtracted from each pause in two cases:

    - It is shorter than 5 % of the mean period, so the framework itself may need this time.
    - No optimizer was recorded, so an optimizer without a name may run in this time.

    The remaining pauses are reported under two conditions:

    - Their mean is at least 1 % of the mean period, which is the time from one start to the next.
    - At least two of them are longer than 1 % of the mean period. A single pause, for example for a
      checkpoint, is also reported if the mean is at least 5 % of the mean period, or if the run has
      only two iterations.

    Args:
        run: The replayed run.
        pauses: Pauses between the iterations of the run.
    """
    boundaries, pause_ns, length_ns = pauses.boundaries, pauses.idle_ns, pauses.length_ns
    usual_ns = int(np.sort(pause_ns)[(len(pause_ns) - 1) // 2])
    if usual_ns < _MIN_USUAL_PAUSE * length_ns or not _has_optimizer(run.operations):
        pause_ns = np.maximum(pause_ns - usual_ns, 0)
    has_paused = pause_ns > _MIN_PAUSE * length_ns
    saving_ns = float(pause_ns.mean())
    is_long = saving_ns >= _MIN_USUAL_PAUSE * length_ns
    n_required = 1 if is_long else min(2, len(has_paused))
    if saving_ns < _MIN_PAUSE * length_ns or has_paused.sum() < n_required:
        return

    fault = _build_pause_fault(run, boundaries, int(pause_ns.argmax()), has_paused)
    n_paused = int(has_paused.sum())
    yield Finding(
        (fault,),
        saving_ns,
        length_ns,
        n_paused,
        error_ns=None,
        is_measured=True,
        is_single_pause=n_paused == 1 and len(has_paused) > 1,
    )


def _has_optimizer(operations: Operations) -> bool:
    """Return whether any optimizer was recorded."""
    is_optimizer = mask_phases(operations.phase, (Phase.OPTIMIZER,))
    return bool((is_optimizer & (operations.has_span == 1)).any())


def _build_pause_fault(
    run: ReplayedRun, boundaries: _Boundaries, longest: int, has_paused: Bools
) -> Fault:
    """Build the fault for the time between iterations during which all ranks are idle.

    :func:`_find_pausing_ranks` chooses the ranks of the fault. ``host`` describes what the host was
    doing on the first of those ranks in the longest pause.

    Args:
        run: The replayed run.
        boundaries: Boundaries between the iterations of each rank.
        longest: Index of the longest pause among the distinct iterations of ``boundaries``.
        has_paused: For each distinct iteration of ``boundaries``, ascending, whether there is a
            pause before it.
    """
    of_iteration = group_rows(boundaries.iteration)
    in_longest = np.flatnonzero(of_iteration.of_row == longest)
    pausing = _find_pausing_ranks(run, boundaries, in_longest)
    is_unknown = run.operations.launched_ns[boundaries.first_row[in_longest]] == NONE
    since_ns, until_ns = (
        int(time_ns[pausing[0]]) for time_ns in (boundaries.end_ns, boundaries.begin_ns)
    )
    rank = int(boundaries.rank[pausing[0]])
    lost_ns = float(until_ns - since_ns)
    return Fault(
        "launch",
        BETWEEN_ITERATIONS,
        ranks=tuple(find_distinct(boundaries.rank[pausing]).tolist()),
        iterations=tuple(boundaries.iteration[of_iteration.first[has_paused]].tolist()),
        detail=ITERATION_PAUSE,
        host=find_host_activity(run.hosts, rank, since_ns, until_ns, lost_ns),
        may_miss_ranks=bool(is_unknown.any()) and len(pausing) < len(in_longest),
    )


def _find_pausing_ranks(run: ReplayedRun, boundaries: _Boundaries, in_pause: Ints) -> Ints:
    """Find the ranks that all have to begin an iteration earlier to shorten the pause before it.

    These are the ranks that launched their first operation of the iteration late: in the second
    half of the pause or even later, but before the input of the operation was ready. Unless all of
    them launch earlier, more than half of the pause remains. A rank that launches its first
    operation only after the input is ready may have waited for the input, so it is not late.

    If no launch is late or known, the ranks that were idle for the shortest time are returned.

    Args:
        run: The replayed run.
        boundaries: Boundaries between the iterations of each rank.
        in_pause: Rows of ``boundaries`` before the iteration. Must not be empty.

    Returns:
        The rows of these ranks in ``boundaries``.
    """
    operations, dependencies = run.operations, run.explained().dependencies
    begin_ns, end_ns = boundaries.begin_ns[in_pause], boundaries.end_ns[in_pause]
    middle_ns = (int(end_ns.max()) + int(begin_ns.min())) // 2
    produced_ns = operations.end_ns[dependencies.predecessor]
    ready_ns = group_latest(dependencies.successor, len(operations), produced_ns, NEVER)
    first_row = boundaries.first_row[in_pause]
    launched_ns, ready_ns = operations.launched_ns[first_row], ready_ns[first_row]
    is_before_input = (ready_ns <= middle_ns) | (launched_ns < ready_ns)
    is_late = (launched_ns != NONE) & (launched_ns >= middle_ns) & is_before_input
    if is_late.any():
        return np.asarray(in_pause[is_late], np.int64)
    idle_ns = np.maximum(begin_ns - end_ns, 0)
    return np.asarray(in_pause[idle_ns == idle_ns.min()], np.int64)


def _list_boundaries(run: ReplayedRun) -> _Boundaries:
    """List the boundaries between averaged iterations that follow each other in time.

    On a rank, an iteration lasts from the start of its first to the end of its last compute
    operation. The iterations of the run are ordered by their first start on any rank, because their
    numbers may have another order. There is no boundary between two iterations if recording paused
    between them, or if they do not start in this order on the rank.

    Returns:
        Boundaries, sorted by rank and then by time.
    """
    operations = run.operations
    first_row, end_ns = _find_first_and_end(operations)
    rank, iteration, begin_ns = (
        column[first_row] for column in (operations.rank, operations.iteration, operations.start_ns)
    )
    position = _order_iterations(iteration, begin_ns)
    order = sort_rows(rank, position)
    rank, iteration, position = rank[order], iteration[order], position[order]
    begin_ns, end_ns, first_row = begin_ns[order], end_ns[order], first_row[order]
    follows = (rank[1:] == rank[:-1]) & (position[1:] == position[:-1] + 1)
    follows &= begin_ns[1:] > begin_ns[:-1]
    follows &= run.averaged[iteration[1:]] & run.averaged[iteration[:-1]]
    if run.paused is not None:
        follows &= ~run.paused[iteration[:-1]]
    later = np.flatnonzero(follows) + 1
    return _Boundaries(
        rank=rank[later],
        iteration=iteration[later],
        period_ns=begin_ns[later] - begin_ns[later - 1],
        end_ns=end_ns[later - 1],
        begin_ns=begin_ns[later],
        first_row=first_row[later],
    )


def _find_first_and_end(operations: Operations) -> tuple[Ints, Ints]:
    """Find the first compute operation of each rank in each iteration, and the end of the last one.

    Returns:
        first_row: Row of the first operation of each rank and iteration, in order of rank and then
            iteration.
        end_ns: For each rank and iteration, the end of the compute operation that ends last.
    """
    is_compute = mask_phases(operations.phase, COMPUTE) & (operations.has_span == 1)
    rows = np.flatnonzero(is_compute & (operations.iteration >= 0))
    parts = group_rows(operations.rank[rows], operations.iteration[rows])
    first_row = rows[find_first_rows(parts.of_row, operations.start_ns[rows])]
    return first_row, group_latest(parts.of_row, len(parts), operations.end_ns[rows], NONE)


def _order_iterations(iteration: Ints, begin_ns: Ints) -> Ints:
    """Return the position of each row's iteration among all iterations, in order of time.

    Args:
        iteration: Iteration index of each row.
        begin_ns: Start time of each row. The earliest start of an iteration determines its
            position. At equal times, the iteration with the smaller index comes first.
    """
    iterations = group_rows(iteration)
    first_ns = group_extents(iterations.of_row, len(iterations), begin_ns, begin_ns)[0]
    by_time = np.argsort(first_ns, kind="stable")
    position = np.empty(len(iterations), np.int64)
    position[by_time] = np.arange(len(iterations))
    return position[iterations.of_row]


def _measure_shared_pauses(boundaries: _Boundaries) -> Ints:
    """Return the time in ns during which all ranks are idle before each later iteration.

    The idle time is the smaller of two times, but at least 0:

    - The shortest idle time of any rank between the two iterations.
    - The time from when the last rank ended the earlier iteration to when the first rank began the
      later one.

    Returns:
        One value per distinct iteration of ``boundaries``, ascending.
    """
    begin_ns, end_ns = boundaries.begin_ns, boundaries.end_ns
    of_iteration = group_rows(boundaries.iteration)
    group = of_iteration.of_row, len(of_iteration)
    gap_ns = np.maximum(begin_ns - end_ns, 0)
    shortest_ns = group_extents(*group, gap_ns, gap_ns)[0]
    first_begin_ns = group_extents(*group, begin_ns, begin_ns)[0]
    last_end_ns = group_extents(*group, end_ns, end_ns)[1]
    return np.asarray(
        np.maximum(np.minimum(shortest_ns, first_begin_ns - last_end_ns), 0), np.int64
    )


def _collect_evidence(
    run: ReplayedRun,
    scenarios: Scenarios,
    steps: LaunchSteps,
    late_ns: Ints,
    layout: LayoutQuestion | None,
    schedule: str | None,
) -> Evidence:
    """Collect the evidence from a run that is used to find faults.

    ``late_ns`` of the evidence contains the delays of late operations and of late collectives.

    Args:
        run: The replayed run.
        scenarios: The work of the run and its replay, with launch steps.
        steps: The launch steps.
        late_ns: Delay of each row of the work without launch steps, in ns, that is due to a late
            launch of an operation, or 0.
        layout: Layers of the stages, or None if they are unknown.
        schedule: Name of the schedule that ran, or None if it is unknown.
    """
    work, operations = scenarios.work, run.operations
    rows = find_computing_rows(operations, run.averaged)
    gap_ns = _spread_over_work(work, np.maximum(operations.busy_ns - operations.active_ns, 0)[rows])
    host_of_rank = _number_hosts(run)
    effects = measure_effects(work, gap_ns)
    slow_ranks, cell_ns = explain_slow_ranks(effects, host_of_rank)
    stages = measure_stage_effects(effects.computes, effects.copies, cell_ns)
    return Evidence(
        work=work,
        own_ns=scenarios.bounded_ns,
        effects=replace(effects, stages=stages),
        launch_share=_measure_launch_share(run, work, gap_ns),
        host_of_rank=host_of_rank,
        late_ns=_add_late_collectives(run, late_ns, len(steps)),
        profiler_ns=_measure_delays(run, scenarios, rows, Cause.PROFILER),
        n_kernels=_spread_over_work(work, operations.kernels[rows]),
        hosts=select_host_activities(
            run.hosts, find_distinct(operations.name_id), operations.phase
        ),
        layout=layout,
        schedule=schedule,
        slow_ranks=slow_ranks,
        link_changes=find_link_changes(run),
        start_late_ns=_spread_over_work(work, measure_late_starts(run, rows)),
        launch_steps=steps,
    )


def _number_hosts(run: ReplayedRun) -> Ints:
    """Return the host number of each rank. Hosts are numbered in alphabetical order."""
    host_numbers = {host: n for n, host in enumerate(sorted({rank.host for rank in run.ranks}))}
    return np.array([host_numbers[rank.host] for rank in run.ranks], np.int64)


def _spread_over_work(work: Work, values: Ints) -> Ints:
    """Return a column of the work table with the values of its compute operations, and 0 elsewhere.

    Args:
        work: Work table of all ranks, which starts with the compute operations.
        values: One value per compute operation.
    """
    column = np.zeros(len(work), np.int64)
    column[: len(values)] = values
    return column


def _add_late_collectives(run: ReplayedRun, late_ns: Ints, n_steps: int) -> Ints:
    """Return the launch delay of each row of the work table in ns, including collectives.

    Args:
        run: The replayed run.
        late_ns: Delay of each row without launch steps, in ns. It is 0 for collectives.
        n_steps: Number of launch steps. The work table ends with the collectives, followed by the
            launch steps.
    """
    collectives = select_outer_collectives(run.collectives, run.operations, run.averaged)
    total_late_ns = np.append(late_ns, np.zeros(n_steps, np.int64))
    total_late_ns[len(late_ns) - len(collectives) : len(late_ns)] += collectives.late_ns
    return total_late_ns


def _measure_launch_share(run: ReplayedRun, work: Work, gap_ns: Ints) -> Floats | None:
    """Return the fraction of each row's gaps during which no kernel of any kind ran.

    A gap is time inside an operation during which no compute kernel ran, although a communication
    kernel may have run. The time without any kernel is known only per rank and iteration. So it is
    divided by all gaps of the rank in the iteration, and all rows there get the same fraction, at
    most 1. Optimizers are left out. The result is None if the time without any kernel is unknown.

    Args:
        run: The replayed run.
        work: Work table of all ranks in the replayed iterations.
        gap_ns: For each row, the time during which no compute kernel ran.
    """
    if run.launch_gap_ns is None:
        return None
    n_ranks = run.launch_gap_ns.shape[1]
    cell = work.iteration * n_ranks + work.rank
    without_optimizers_ns = np.where(has_role(work.role, COMPUTING), gap_ns, 0)
    total_ns = group_sum(cell, run.launch_gap_ns.size, without_optimizers_ns)
    fraction = run.launch_gap_ns.ravel() / np.maximum(total_ns, 1)
    return np.asarray(np.minimum(fraction, 1.0)[cell], np.float64)


def _list_eased_replays(run: ReplayedRun, scenarios: Scenarios) -> Iterator[tuple[Fault, Replay]]:
    """Yield the faults whose removal changes the order of work, each with a replay without it.

    There are two kinds: work that queues behind transfers, and too few chunks in flight.
    """
    yield from _find_queued_work(run, scenarios)
    operations, tokens = run.operations, run.explained().tokens
    if len(tokens):
        rank = int(operations.rank[tokens.successor[0]])
        depth = compute_usual_depth(operations, tokens)
        remaining = list_token_waits(operations, tokens, 1), Dependencies.make_empty()
        for n_more, waits in zip((ONE_MORE, ENOUGH), remaining, strict=True):
            fault = build_token_fault(n_more, rank, depth)
            # Only inference runs have tokens, and they have no launch steps.
            yield fault, build_replay(*build_work_of_run(run, waits))


def _find_queued_work(run: ReplayedRun, scenarios: Scenarios) -> Iterator[tuple[Fault, Replay]]:
    """Yield the fault for work that queued behind transfers, and a replay without this queueing.

    The work consists of transfers and of collectives inside operations. In the replay, queued
    transfers no longer follow any other transfer. Nothing is yielded if no work is queued, or if
    removing the fault reduces the number of iterations that can be replayed.
    """
    work, order = scenarios.work, scenarios.order
    transfers = find_queued_transfers(work, order)[0]
    rows = find_computing_rows(run.operations, run.averaged)
    collectives, queued_ns = find_queued_collectives(run, work, rows)
    if not (len(transfers) or len(collectives)):
        return
    is_queued = np.isin(order.successor, transfers) & has_role(
        work.role[order.predecessor], POINT_TO_POINT
    )
    eased = build_replay(work, order.take(~is_queued))
    if len(eased.iterations) == len(scenarios.replay.iterations):
        counts = ("transfer", float(len(transfers))), ("collective", float(len(collectives)))
        fault = Fault(
            "queue",
            "queued-transfers",
            rows=collectives,
            scale=1 - queued_ns / np.maximum(work.own_ns[collectives], 1),
            ranks=tuple(find_distinct(work.rank[transfers], work.rank[collectives]).tolist()),
            phases=counts,
        )
        yield fault, eased


def _measure_delays(run: ReplayedRun, scenarios: Scenarios, rows: Ints, cause: Cause) -> Ints:
    """Return how long one cause delayed each row of ``scenarios.work`` after its input was ready.

    The delay is 0 for communication. For the cause HOST, a late launch of the first operation of an
    iteration is included (:func:`_measure_late_first_launches`).

    Args:
        run: The replayed run.
        scenarios: The work of the run and its replay. The work table starts with the compute
            operations.
        rows: Rows of the compute operations in the run, in the order of the work table.
        cause: ``HOST`` or ``PROFILER``.

    Returns:
        Delays in ns, one per row of the work table.
    """
    operations, explained, work = run.operations, run.explained(), scenarios.work
    bubbles = explained.bubbles
    bubbles = bubbles.take((bubbles.cause == cause) & (bubbles.after >= 0))
    delay_ns = bubbles.end_ns - _find_delay_starts(run, bubbles, cause)
    # If two windows overlap, an idle interval can be in both. Count it once.
    is_own = bubbles.iteration == operations.iteration[bubbles.after]
    of_operation = group_sum(bubbles.after[is_own], len(operations), delay_ns[is_own])
    late_ns = np.zeros(len(work), np.int64)
    late_ns[: len(rows)] = of_operation[rows]
    if cause == Cause.HOST:
        at_begin_ns = _measure_late_first_launches(run, scenarios, rows)
        late_ns[: len(rows)] = np.maximum(late_ns[: len(rows)], at_begin_ns)
    optimizers = np.flatnonzero(work.role == Role.OPTIMIZER)
    late_ns[optimizers] = _sum_idle_before(scenarios, optimizers, explained.idle)[:, cause]
    return late_ns


def _sum_idle_before(scenarios: Scenarios, rows: Ints, idle: IdleIntervals) -> Ints:
    """Return the idle time from the end of each row's last predecessor to its start, by cause.

    The times are in ns and have the shape (rows, causes).

    Args:
        scenarios: The work of the run and its replay.
        rows: Rows of the work table ``scenarios.work``.
        idle: Idle intervals of all ranks.
    """
    start_ns = scenarios.work.start_ns[rows]
    ready_ns = start_ns - np.maximum(scenarios.delays_ns[rows], 0)
    return sum_idle_by_cause(idle, scenarios.work.rank[rows], ready_ns, start_ns)


def _find_delay_starts(run: ReplayedRun, bubbles: Bubbles, cause: Cause) -> Ints:
    """Return when each bubble starts to delay the operation after it.

    - Profiler overhead delays the operation from the time at which its input is ready.
    - In training, a bubble with any other cause delays the operation from its own start.
    - In inference, a bubble that starts after the input is ready also delays the operation from its
      own start. A bubble that starts earlier does not delay the operation, because a delay on an
      earlier rank may have caused it.

    If a bubble does not delay the operation, the end of the bubble is returned.

    Args:
        run: The replayed run.
        bubbles: Bubbles of one cause, each followed by an operation.
        cause: Cause of the bubbles.
    """
    operations, dependencies = run.operations, run.explained().dependencies
    if cause != Cause.PROFILER and run_kind(operations.phase) != INFERENCE:
        return bubbles.start_ns
    produced_ns = operations.end_ns[dependencies.predecessor]
    ready_ns = group_latest(dependencies.successor, len(operations), produced_ns, NEVER)
    ready_ns = ready_ns[bubbles.after]
    if cause == Cause.PROFILER:
        return np.clip(ready_ns, bubbles.start_ns, bubbles.end_ns)
    return np.where(bubbles.start_ns >= ready_ns, bubbles.start_ns, bubbles.end_ns)


def _measure_late_first_launches(run: ReplayedRun, scenarios: Scenarios, rows: Ints) -> Ints:
    """Return how late the host launched the first operation of each rank and iteration, in ns.

    An operation is late if it was launched after its input had arrived. Idle time before the first
    operation is treated as pipeline warm-up regardless of its cause, so this delay is measured
    here::

        stage 0   ├ F0 ┤├ F1 ┤├ F2 ┤├ F3 ┤
        stage 1         │ late │├ F0 ┤├ F1 ┤

    Args:
        run: The replayed run.
        scenarios: The work of the run, which contains the transfer time of each input.
        rows: For each row of ``scenarios.work[: len(rows)]``, its row in the operations table.

    Returns:
        Delay of each entry of ``rows``. The delay is 0 if the operation is not the first one, if
        its launch is unknown, or if it is at most 20 us late. All delays of inference runs are 0.
    """
    operations = run.operations
    late_ns = np.zeros(len(rows), np.int64)
    start_ns, launched_ns = operations.start_ns[rows], operations.launched_ns[rows]
    parts = group_rows(operations.rank[rows], operations.iteration[rows])
    begin_ns = group_extents(parts.of_row, len(parts), start_ns, start_ns)[0]
    first = np.flatnonzero(start_ns == begin_ns[parts.of_row])
    if run_kind(operations.phase) == INFERENCE or (launched_ns[first] == NONE).all():
        return late_ns
    moved_ns = _find_longest_transfers(scenarios, len(rows))
    could_start_ns = (np.minimum(start_ns, launched_ns) - moved_ns)[first]
    delay_ns = could_start_ns - _find_needed_times(run, rows[first])
    is_late = (launched_ns[first] != NONE) & (delay_ns > MIN_LATE_NS)
    late_ns[first[is_late]] = delay_ns[is_late]
    return late_ns


def _find_longest_transfers(scenarios: Scenarios, n_rows: int) -> Ints:
    """For each operation, return the longest transfer time of its predecessors, in ns.

    The result is never negative. The result is 0 if no predecessor is communication.

    Args:
        scenarios: The work of the run and its replay. The work table starts with the operations.
        n_rows: Number of operations.
    """
    successor, predecessor = scenarios.order.successor, scenarios.order.predecessor
    is_moved = scenarios.work.communicates[predecessor] & (successor < n_rows)
    transfer_ns = scenarios.own_ns[predecessor[is_moved]]
    return np.maximum(group_latest(successor[is_moved], n_rows, transfer_ns, 0), 0)


def _find_needed_times(run: ReplayedRun, first_rows: Ints) -> Ints:
    """Return the earliest possible start of the first operation of each rank and iteration.

    The operation could start as soon as both of the following had happened:

    - Its last input from the same iteration had been produced. If it has no inputs, the first rank
      had begun the iteration.
    - Its rank had ended the previous iteration.

    Args:
        run: The replayed run.
        first_rows: Rows of the first operations.
    """
    operations, dependencies = run.operations, run.explained().dependencies
    rank, iteration = operations.rank[first_rows], operations.iteration[first_rows]
    start_ns = operations.start_ns[first_rows]
    iterations = group_rows(iteration)
    begin_ns = group_extents(iterations.of_row, len(iterations), start_ns, start_ns)[0]

    iteration_of = operations.iteration
    inputs = dependencies.take(
        iteration_of[dependencies.successor] == iteration_of[dependencies.predecessor]
    )
    produced_ns = operations.end_ns[inputs.predecessor]
    ready_ns = group_latest(inputs.successor, len(operations), produced_ns, NEVER)[first_rows]
    needed_ns = np.where(ready_ns == NEVER, begin_ns[iterations.of_row], ready_ns)
    return np.maximum(needed_ns, _find_iteration_ends(operations, rank, iteration - 1))


def _find_iteration_ends(operations: Operations, rank: Ints, iteration: Ints) -> Ints:
    """Return the latest end of a rank's operations in an iteration, or -1 if it has none there.

    Args:
        operations: Operations of all ranks.
        rank: Rank of each query.
        iteration: Iteration of each query.
    """
    operations = operations.take(operations.iteration >= 0)
    parts = group_rows(operations.rank, operations.iteration)
    _, end_ns = group_extents(parts.of_row, len(parts), operations.start_ns, operations.end_ns)
    keys = operations.rank[parts.first], operations.iteration[parts.first]
    return lookup_values(keys, end_ns, (rank, iteration))
