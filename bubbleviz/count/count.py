"""Count: the bubble ratios of every iteration, rank and window, and their summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.align.run import Run
from bubbleviz.count.completeness import (
    LACKS,
    Evidence,
    IterationStatus,
    evidence_of,
    iteration_statuses,
    joined_evidence,
)
from bubbleviz.count.iterations import Iteration, Ratio
from bubbleviz.count.rank_iterations import (
    AccountColumns,
    RankColumns,
    RankIterations,
    RankSlice,
    has_account,
    joined_ranks,
    ratio_of,
    slices_of,
)
from bubbleviz.count.ratios import CountedWork, Extents, RatioDefinition, Windows, ratio_definitions
from bubbleviz.count.student_t import quantile
from bubbleviz.count.time_breakdown import TimeBreakdown, busy_times, joined_times, time_within
from bubbleviz.count.window_bounds import WindowBounds, window_bounds
from bubbleviz.model import intervals
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.grouping import distinct
from bubbleviz.model.operations import RankIntervals
from bubbleviz.model.phase_masks import EVALUATION, INFERENCE, TRAINING, among
from bubbleviz.model.phases import COMPUTE, COUNTED, WORK, Phase
from bubbleviz.model.values import frozen
from bubbleviz.model.window import Window

# The summary: mean and spread of the ratios over iterations, and the ratio to quote.


#: Overlap of iterations above this share of a rank's window makes ``period`` the headline.
OVERLAP_SHARE = 0.01


@frozen
class Spread:
    """Mean and spread over iterations; ``ci95`` is the half width (Student t)."""

    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    ci95: float | None
    n: int

    @property
    def pair(self) -> tuple[float, float] | None:
        """The two values, the lower first, where there are no more.

        Their confidence interval is 12.7 standard errors to either side: it says less than they do.
        """
        if self.n != 2 or self.min is None or self.max is None:
            return None
        return self.min, self.max


@frozen
class Summary:
    """Statistics over the averaged iterations, by name of the ratio.

    ``bubble_interval`` gives the bounds of the mean that the clocks' uncertainty allows; None where
    these are not known, or the ratio needs no common clock.
    """

    iterations: int
    bubble_ratio: Mapping[str, Spread]
    bubble_interval: Mapping[str, tuple[float, float] | None]
    bubble_low: Mapping[str, Spread]
    bubble_overhead: Mapping[str, Spread]
    window_ns: Mapping[str, Spread]


def summarize(iterations: Sequence[Iteration]) -> Summary:
    """Return the statistics over the averaged iterations."""
    averaged = [i for i in iterations if i.averaged]
    names = [ratio.name for ratio in ratio_definitions()]

    def over(field: str) -> dict[str, Spread]:
        return {name: spread([getattr(i.ratios[name], field) for i in averaged]) for name in names}

    return Summary(
        iterations=len(averaged),
        bubble_ratio=over("value"),
        bubble_interval={name: _mean_interval(averaged, name) for name in names},
        bubble_low=over("low"),
        bubble_overhead=over("overhead"),
        window_ns=over("window_ns"),
    )


def _mean_interval(averaged: Sequence[Iteration], name: str) -> tuple[float, float] | None:
    """Return the bounds of the mean: at worst, all clocks are off in the same direction."""
    known = [i.ratios[name] for i in averaged if i.ratios[name].value is not None]
    bounds = [ratio.interval for ratio in known if ratio.interval is not None]
    if not bounds or len(bounds) < len(known):
        return None
    low, high = np.array(bounds, np.float64).mean(axis=0).tolist()
    return low, high


def spread(values: Sequence[float | None]) -> Spread:
    """Return mean and spread of the known values; ``std`` with n - 1, ``ci95`` a half width."""
    known = np.array([v for v in values if v is not None], np.float64)
    n = len(known)
    if n == 0:
        return Spread(None, None, None, None, None, 0)
    mean, low, high = float(known.mean()), float(known.min()), float(known.max())
    if n == 1:
        return Spread(mean, None, low, high, None, 1)
    std = float(known.std(ddof=1))
    return Spread(mean, std, low, high, quantile(n - 1) * std / n**0.5, n)


def choose_headline(iterations: Sequence[Iteration]) -> tuple[str, str]:
    """Return the ratio to quote, and the reason."""
    averaged = [i for i in iterations if i.averaged]
    if not averaged:
        skipped = any(i.complete and i.kind != EVALUATION for i in iterations)
        why = "is left to average" if skipped else "is in the capture to average"
        what = "iteration" if any(i.kind == INFERENCE for i in iterations) else "training iteration"
        return "schedule", f"no complete {what} {why}"
    if averaged[0].kind == INFERENCE:
        return _of_inference(averaged)
    worst, where = max(_overlaps(iterations), default=(0.0, ""))
    if worst <= OVERLAP_SHARE:
        return _without_overlap(averaged)
    overlap = (
        f"consecutive iterations overlap (up to {worst:.1%} of a rank's window, in iteration "
        f"{where})"
    )
    if _any_has(averaged, "period"):
        return "period", f"{overlap}, so the idle time of one is partly another's work"
    known = [name for name in ("schedule", "stage") if _any_has(averaged, name)]
    name = known[0] if known else "schedule"
    return name, f"{overlap}, but no averaged iteration has a next one to measure a period to"


def _of_inference(averaged: Sequence[Iteration]) -> tuple[str, str]:
    """Return the ratio to quote of a run that only goes forward, and the reason.

    Between its iterations GPUs wait for tokens, requests and the host, which no window of a single
    one holds.
    """
    if _any_has(averaged, "period"):
        return "period", (
            "the run only goes forward, and what its GPUs wait for between two iterations counts"
        )
    if _any_has(averaged, "schedule"):
        return "schedule", "the run only goes forward, in one window over the recording"
    if _any_has(averaged, "stage"):
        return "stage", "the ranks have no common clock, so schedule is unknown; stage needs none"
    return "schedule", "no averaged iteration has a ratio over its ranks"


def _without_overlap(averaged: Sequence[Iteration]) -> tuple[str, str]:
    """Return the ratio to quote, and the reason, where no rank's own clock shows an overlap.

    How iterations of several hosts follow each other is unknown where no clock is common to them.
    """
    if _any_has(averaged, "schedule"):
        return "schedule", "consecutive iterations do not overlap"
    if _any_has(averaged, "stage"):
        return "stage", (
            "the ranks have no common clock, so schedule is unknown, and whether consecutive "
            "iterations overlap; stage needs none"
        )
    return "schedule", "no averaged iteration has a ratio over its ranks"


def _any_has(iterations: Sequence[Iteration], name: str) -> bool:
    return any(i.ratios[name].value is not None for i in iterations)


def _overlaps(iterations: Sequence[Iteration]) -> Iterator[tuple[float, str]]:
    """Yield the overlap of each rank of averaged iterations, as a share of its window.

    An evaluation next to an iteration does not show how training iterations follow each other.
    """
    for iteration in iterations:
        beside = iterations[max(iteration.index - 1, 0) : iteration.index + 2]
        if not iteration.averaged or any(i.kind != "training" for i in beside):
            continue
        ranks = iteration.ranks
        if not isinstance(ranks, RankIterations):
            continue
        # Where clocks leave no window over hosts, the longest rank's window does as well.
        trusted = has_account(ranks, "schedule") and not iteration.ratios["schedule"].contradicted
        ratio = "schedule" if trusted else "stage"
        if not has_account(ranks, ratio):
            continue
        window_ns = ranks.window_ns(ratio)
        real = window_ns > 0
        shares = ranks.account(ratio, "overlap_ns")[real] / window_ns[real]
        if len(shares):
            yield float(shares.max()), iteration.name


#: What a rank lacks that ran all of what the capture holds of an iteration.
_INCOMPLETE = "the capture does not hold all of the iteration"


@frozen
class Counts:
    """What counting gives: iterations, their summary, and the ratio to quote.

    Attributes:
        iterations: every iteration.
        summary: over the averaged ones.
        headline: name of the ratio to quote.
        headline_reason: why that one.
        extents: first starts and last ends.
        windows: of each ratio, by name.
        one_clock: of each iteration, whether the clocks of all its ranks can be compared.
        inside: of each iteration, whether it lies in the requested window; the others have no
            ranks.
    """

    iterations: tuple[Iteration, ...]
    summary: Summary
    headline: str
    headline_reason: str
    extents: Extents
    windows: Mapping[str, Windows]
    one_clock: Bools
    inside: Bools


def count(run: Run, *, skip: int = 0, window: Window | None = None) -> Counts:
    """Return the ratios of every iteration and their summary.

    Args:
        run: the merged profiles.
        skip: how many of the first iterations (of the window) the summary leaves out.
        window: the part of the run to analyse; None for all of it.

    Raises:
        InputError: no iteration lies in the window.
    """
    measurements = _measure(run)
    iterations = tuple(_iteration(measurements, k) for k in range(len(run.iteration_names)))
    inside = _inside(iterations, window)
    candidates = [iterations[k] for k in np.flatnonzero(inside).tolist()]
    usual = _usual_microbatches(candidates)
    averaged = {i.index for i in candidates[skip:] if _is_averaged(i, usual)}
    iterations = tuple(
        replace(i, averaged=i.index in averaged) if is_inside else replace(i, ranks=())
        for i, is_inside in zip(iterations, inside.tolist(), strict=True)
    )
    headline, reason = choose_headline(iterations)
    comparable = [bounds.comparable for bounds in measurements.bounds.values()]
    return Counts(
        iterations,
        summarize(iterations),
        headline,
        reason,
        measurements.extents,
        measurements.windows,
        np.logical_and.reduce(comparable) & run.paired,
        inside,
    )


def _inside(iterations: Sequence[Iteration], window: Window | None) -> Bools:
    """Return which iterations lie in a window."""
    if window is None:
        return np.ones(len(iterations), bool)
    start_ns = np.array([i.start_ns for i in iterations], np.int64)
    end_ns = np.array([i.end_ns for i in iterations], np.int64)
    return window.holds([i.name for i in iterations], start_ns, end_ns)


def _is_averaged(iteration: Iteration, usual: int | None) -> bool:
    whole = iteration.complete and iteration.kind != EVALUATION
    # Batches of requests are as long as they happen to be.
    return whole and (iteration.kind == INFERENCE or iteration.microbatches == usual)


def _usual_microbatches(iterations: Sequence[Iteration]) -> int | None:
    """Return the most frequent microbatch count of complete training iterations (ties: larger)."""
    counts = [i.microbatches for i in iterations if i.complete and i.kind == TRAINING]
    known = [c for c in counts if c is not None]
    return max(known, key=lambda c: (known.count(c), c)) if known else None


@frozen
class _Measurements:
    """All times that ratios are made of, by iteration and rank.

    Attributes:
        run: the merged profiles.
        ratios: the ratios, in display order.
        extents: first starts and last ends.
        windows: of each ratio, known where the ranks' clocks can measure them.
        breakdowns: how the time of these was used.
        work_ns: what counts as work in them, shape (iterations, ranks).
        statuses: kind and completeness of each iteration.
        bounds: what clocks allow the windows of each ratio that needs a common clock.
        ranks: all this by rank.
    """

    run: Run
    ratios: tuple[RatioDefinition, ...]
    extents: Extents
    windows: Mapping[str, Windows]
    breakdowns: Mapping[str, TimeBreakdown]
    work_ns: Mapping[str, Ints]
    statuses: Sequence[IterationStatus]
    bounds: Mapping[str, WindowBounds]
    ranks: RankColumns


def _measure(run: Run) -> _Measurements:
    ratios = ratio_definitions()
    present = [rank_presence(part) for part in slices_of(run)]
    extents = joined_presence([own.extents for own in present], run.pauses)
    windows = {ratio.name: ratio.windows(extents) for ratio in ratios}
    bounds = {
        ratio.name: window_bounds(ratio, extents, run.timebase)
        for ratio in ratios
        if ratio.common_clock
    }
    busy = joined_times([busy_times(part, windows) for part in slices_of(run)])
    breakdowns = busy.breakdowns
    work_ns = {ratio.name: _work_ns(ratio, breakdowns[ratio.name]) for ratio in ratios}
    measurable = {
        ratio.name: _measurable(run, ratio, windows[ratio.name], bounds.get(ratio.name))
        for ratio in ratios
    }
    evidence = joined_evidence([own.evidence for own in present])
    statuses = iteration_statuses(evidence, run.operations.phase)
    accounts = {
        name: AccountColumns(
            start_ns=window.start_ns,
            end_ns=window.end_ns,
            **vars(breakdowns[name]),
            running_ns=_running_ns(run, windows[name]),
            work_ns=work_ns[name],
            known=tuple(window.known.tolist()),
            bounds=bounds.get(name),
        )
        for name, window in measurable.items()
    }
    return _Measurements(
        run=run,
        ratios=ratios,
        extents=extents,
        windows=measurable,
        breakdowns=breakdowns,
        work_ns=work_ns,
        statuses=statuses,
        bounds=bounds,
        ranks=RankColumns(
            phase_ns=busy.phase_ns,
            compute_ns=busy.compute_ns,
            active_ns=run.active_ns,
            first_ns=extents.first_ns,
            last_ns=extents.last_ns,
            kernel_ns=run.kernel_ns,
            gap_ns=run.gap_ns,
            missing=np.array([_missing(s) for s in statuses], np.int64).reshape(
                extents.present.shape
            ),
            reasons=(*LACKS, _INCOMPLETE),
            accounts=accounts,
        ),
    )


def _missing(status: IterationStatus) -> Ints:
    """Return what each rank lacks to have a ratio, as a place in the reasons."""
    if status.complete:
        return status.missing
    return np.where(status.missing == 0, len(LACKS), status.missing)


def _running_ns(run: Run, windows: Windows) -> Ints:
    """Return how long any kernel or copy ran in each window, shape (iterations, ranks)."""
    known = windows.known[:, None]
    low_ns = np.where(known, windows.start_ns, 0)
    high_ns = np.maximum(np.where(known, windows.end_ns, 0), low_ns)
    return time_within(run.running, run.running.running_ns, low_ns, high_ns)


def _measurable(
    run: Run, ratio: RatioDefinition, windows: Windows, bounds: WindowBounds | None
) -> Windows:
    """Return the windows, known only where the clocks of the ranks can measure them.

    Where ranks' iterations are not known to be the same, only a rank's own window is.
    """
    known = windows.known & (run.paired or not ratio.across_ranks)
    return replace(windows, known=known if bounds is None else known & bounds.comparable)


def _work_ns(ratio: RatioDefinition, breakdown: TimeBreakdown) -> Ints:
    """Return the time of each window that counts as work, shape (iterations, ranks)."""
    work = breakdown.compute_ns
    if ratio.work is not CountedWork.ITERATION:
        work = work + breakdown.optimizer_ns
    if ratio.work is CountedWork.EVERYTHING:
        work = work + breakdown.overlap_ns
    return work


@frozen(eq=False, shown=False)
class RankPresence:
    """What the ranks of a slice ran in iterations, and when; no windows are needed for it.

    Attributes:
        extents: first starts and last ends.
        evidence: what shows whether iterations are complete.
    """

    extents: Extents
    evidence: Evidence


def rank_presence(part: RankSlice) -> RankPresence:
    """Return what the ranks of a slice ran in iterations, and when."""
    operations, shape = part.operations, part.shape
    cell = operations.iteration * shape[1] + operations.rank
    usable = (operations.has_span == 1) & (operations.iteration >= 0)

    def over(phases: Sequence[Phase]) -> tuple[Ints, Ints]:
        rows = usable & among(operations.phase, phases)
        some = slice(None) if rows.all() else np.flatnonzero(rows)
        first, last = intervals.group_extents(
            cell[some], shape[0] * shape[1], operations.start_ns[some], operations.end_ns[some]
        )
        return first.reshape(shape), last.reshape(shape)

    first_ns, last_ns = over(WORK)
    step_last_ns = over(COMPUTE)[1]
    present: Bools = np.zeros(shape[0] * shape[1], bool)
    present[cell[usable & among(operations.phase, COUNTED)]] = True
    present = present.reshape(shape)
    return RankPresence(
        Extents(first_ns, last_ns, step_last_ns, present), evidence_of(operations, present)
    )


def joined_presence(parts: Sequence[Extents], pauses: RankIntervals) -> Extents:
    """Return the extents of all slices of a run as one.

    Args:
        parts: of the slices, in their order.
        pauses: when nothing of a rank was recorded.
    """
    names = ("first_ns", "last_ns", "step_last_ns", "present")
    columns = joined_ranks([{name: getattr(part, name) for name in names} for part in parts])
    first_ns, last_ns, step_last_ns, present = columns
    paused = _paused(pauses, first_ns, present)
    return Extents(first_ns, last_ns, step_last_ns, present, paused)


def _paused(pauses: RankIntervals, first_ns: Ints, present: Bools) -> Bools | None:
    """Return behind which iterations the recording of some rank paused; None for none."""
    if len(pauses) == 0:
        return None
    paused = np.zeros(len(first_ns), bool)
    for rank in distinct(pauses.rank).tolist():
        iterations = np.flatnonzero(present[:, rank])
        begins_ns = pauses.start_ns[pauses.rank == rank]
        before = np.searchsorted(first_ns[iterations, rank], begins_ns, side="right") - 1
        paused[iterations[before[before >= 0]]] = True
    return paused


def _iteration(measurements: _Measurements, k: int) -> Iteration:
    extents, status = measurements.extents, measurements.statuses[k]
    present = np.flatnonzero(extents.present[k])
    return Iteration(
        index=k,
        name=measurements.run.iteration_names[k],
        kind=status.kind,
        complete=status.complete,
        unmatched=status.unmatched,
        averaged=False,
        microbatches=status.microbatches,
        start_ns=int(extents.first_ns[k, present].min()) if len(present) else 0,
        end_ns=int(extents.step_last_ns[k, present].max()) if len(present) else 0,
        ratios={
            ratio.name: _ratio(measurements, ratio, k, present) for ratio in measurements.ratios
        },
        ranks=RankIterations(measurements.ranks, k, present),
    )


def _ratio(measurements: _Measurements, ratio: RatioDefinition, k: int, present: Ints) -> Ratio:
    """Return one ratio over the ranks; unknown where any of them lacks something."""
    run, status = measurements.run, measurements.statuses[k]
    incomplete = run.stages_missing or run.ranks_missing or status.ranks_missing
    lacking = bool(status.missing[present].any()) or not status.complete
    lacking = lacking or (ratio.work is CountedWork.STEP and not status.stepped)
    if lacking or not (measurements.windows[ratio.name].known[k] and run.paired and len(present)):
        return Ratio(None, None, None, None, incomplete=incomplete)
    window, bounds = measurements.windows[ratio.name], measurements.bounds.get(ratio.name)
    window_ns = int((window.end_ns[k, present] - window.start_ns[k, present]).sum())
    work_ns = int(measurements.work_ns[ratio.name][k, present].sum())
    breakdown = measurements.breakdowns[ratio.name]
    unattributed_ns = int(breakdown.unattributed_ns[k, present].sum())
    return Ratio(
        value=ratio_of(work_ns, window_ns),
        low=ratio_of(work_ns + unattributed_ns, window_ns),
        overhead=(window_ns - work_ns) / work_ns if work_ns > 0 else None,
        window_ns=(2 * window_ns + len(present)) // (2 * len(present)),
        interval=None if bounds is None else bounds.ratio_interval(k, work_ns, len(present)),
        incomplete=incomplete,
        contradicted=len(run.timebase.jump_ns) > 0
        or (bounds is not None and bool(bounds.contradicted[k])),
    )
