"""Count: the bubble ratios of every iteration, rank and window, and their summary."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.align.bounds.clock_segments import DRIFT
from bubbleviz.align.run import Run
from bubbleviz.count.completeness import Nature, natures
from bubbleviz.count.ratios import Counted, Extents, RatioDefinition, Windows, ratio_definitions
from bubbleviz.count.time_breakdown import Uses, accounts_of, busy_by_phase, compute_time
from bubbleviz.count.window_bounds import Reach, reach_of
from bubbleviz.model import intervals
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.phases import COMPUTE, COUNTED, WORK, Phase
from bubbleviz.model.window import Window

#: Overlap of iterations above this share of a rank's window makes ``period`` the headline.
OVERLAP_SHARE = 0.01


@dataclass(frozen=True)
class Account:
    """Where the time of one rank in one window went; the parts add up to the window exactly.

    ``window = compute + optimizer + overlap + unattributed + bubble``
    """

    start_ns: int
    end_ns: int
    compute_ns: int
    optimizer_ns: int
    overlap_ns: int
    unattributed_ns: int
    bubble_ns: int

    @property
    def window_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class RankIteration:
    """One rank in one iteration.

    Attributes:
        rank: index of the rank.
        busy_ns: union of the busy time by printed phase name (F, B, W, BW, R, FB, Optimizer).
        compute_ns: union of the busy time of F, B, W, BW, R and FB.
        active_ns: union of the compute kernels of those.
        first_ns: first start of those.
        last_ns: last end of those.
        accounts: by name of the ratio, where the time of its window went.
        bubble_ratio: the rank's own ratio in the same window; None where it cannot be told.
        bubble_interval: likewise between what the clocks of several hosts allow.
        missing: what the rank lacks to have a ratio, or None.
    """

    rank: int
    busy_ns: Mapping[str, int]
    compute_ns: int
    active_ns: int
    first_ns: int
    last_ns: int
    accounts: Mapping[str, Account]
    bubble_ratio: Mapping[str, float | None]
    bubble_interval: Mapping[str, tuple[float, float]]
    missing: str | None = None


@dataclass(frozen=True)
class Ratio:
    """One bubble ratio of one iteration over all its ranks.

    Attributes:
        value: 1 - work / (ranks x window); None where it cannot be told.
        low: the same with unattributed compute counted as work.
        overhead: bubble / work.
        window_ns: length of the window (mean over the ranks for ``period``).
        interval: between what the clocks' uncertainty allows; None where that is not known, or
            the ratio needs no common clock.
        incomplete: whether a rank that takes part in training is known to be missing.
        contradicted: whether it needs clocks that data dependencies contradict.
    """

    value: float | None
    low: float | None
    overhead: float | None
    window_ns: int | None
    interval: tuple[float, float] | None = None
    incomplete: bool = False
    contradicted: bool = False


@dataclass(frozen=True)
class Iteration:
    """One training or evaluation iteration.

    Attributes:
        index: place in the report.
        name: the name its ranges give, else its number in order.
        kind: ``"training"`` or ``"evaluation"``.
        complete: whether the capture holds all of it.
        averaged: whether it enters the summary.
        microbatches: number of microbatches; None where the names do not tell.
        start_ns: first start of its work on any rank.
        end_ns: last end, Optimizer included.
        ratios: by name of the ratio.
        ranks: the ranks with work in it.
    """

    index: int
    name: str
    kind: str
    complete: bool
    averaged: bool
    microbatches: int | None
    start_ns: int
    end_ns: int
    ratios: Mapping[str, Ratio]
    ranks: tuple[RankIteration, ...]


@dataclass(frozen=True)
class Spread:
    """Mean and spread over iterations; ``ci95`` is the half width (Student t)."""

    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    ci95: float | None
    n: int


@dataclass(frozen=True)
class Summary:
    """Statistics over the averaged iterations, by name of the ratio.

    ``bubble_interval`` is between what the clocks' uncertainty allows of the mean; None where that
    is not known, or the ratio needs no common clock.
    """

    iterations: int
    bubble_ratio: Mapping[str, Spread]
    bubble_interval: Mapping[str, tuple[float, float] | None]
    bubble_low: Mapping[str, Spread]
    bubble_overhead: Mapping[str, Spread]
    window_ns: Mapping[str, Spread]


@dataclass(frozen=True)
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
        inside: of each iteration, whether it lies in the window that was asked for; the others
            have no ranks.
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
        run: the profiles put together.
        skip: how many of the first iterations (of the window) the summary leaves out.
        window: the part of the run that is looked at; None for all of it.

    Raises:
        InputError: no iteration lies in the window.
    """
    table = _tabulate(run)
    iterations = tuple(_iteration(table, k) for k in range(len(run.iteration_names)))
    inside = _inside(iterations, window)
    known = [iterations[k] for k in np.flatnonzero(inside).tolist()]
    usual = _usual_microbatches(known)
    averaged = {i.index for i in known[skip:] if _is_averaged(i, usual)}
    iterations = tuple(
        replace(i, averaged=i.index in averaged) if held else replace(i, ranks=())
        for i, held in zip(iterations, inside.tolist(), strict=True)
    )
    headline, reason = _headline(iterations)
    comparable = [reach.comparable for reach in table.reaches.values()]
    one_clock = np.logical_and.reduce(comparable) & run.paired
    return Counts(
        iterations,
        _summary(iterations),
        headline,
        reason,
        table.extents,
        _told_windows(table),
        one_clock,
        inside,
    )


def _inside(iterations: Sequence[Iteration], window: Window | None) -> Bools:
    """Tell which iterations lie in a window."""
    if window is None:
        return np.ones(len(iterations), bool)
    start_ns = np.array([i.start_ns for i in iterations], np.int64)
    end_ns = np.array([i.end_ns for i in iterations], np.int64)
    return window.holds([i.name for i in iterations], start_ns, end_ns)


def _told_windows(table: _Table) -> Mapping[str, Windows]:
    """Return the windows, known only where accounts of them are told."""
    told = {}
    for s in ratio_definitions():
        window, reach = table.windows[s.name], table.reaches.get(s.name)
        known = window.known & (table.run.paired or not s.across_ranks)
        known = known if reach is None else known & reach.comparable
        told[s.name] = replace(window, known=known)
    return told


@dataclass(frozen=True)
class _Table:
    """Everything counted, by iteration and rank.

    Attributes:
        run: the profiles put together.
        extents: first starts and last ends.
        windows: of each ratio.
        parts: where the time of these went.
        nature: what each iteration is.
        reaches: between what lengths clocks allow the windows of each ratio that depends on them.
        phase_ns: busy time, shape (iterations, ranks, phases of COMPUTE).
        compute_ns: union of the work, shape (iterations, ranks).
    """

    run: Run
    extents: Extents
    windows: Mapping[str, Windows]
    parts: Mapping[str, Uses]
    nature: Sequence[Nature]
    reaches: Mapping[str, Reach]
    phase_ns: Ints
    compute_ns: Ints


def _tabulate(run: Run) -> _Table:
    extents = _extents(run)
    windows = {s.name: s.windows(extents) for s in ratio_definitions()}
    return _Table(
        run=run,
        extents=extents,
        windows=windows,
        parts=accounts_of(run, windows),
        nature=natures(run, extents.present),
        reaches={
            s.name: reach_of(s, extents, run.timebase)
            for s in ratio_definitions()
            if s.common_clock
        },
        phase_ns=busy_by_phase(run),
        compute_ns=compute_time(run),
    )


def typical(iterations: Sequence[Iteration], headline: str) -> Iteration | None:
    """Return the iteration to show; see :meth:`.report.Report.typical_iteration`."""
    at_work = [i for i in iterations if i.ranks]
    averaged = [i for i in at_work if i.averaged]
    # One that has the headline ratio (the last iteration has no period) goes first.
    averaged = [i for i in averaged if _has(i, headline)] or averaged
    complete = [i for i in at_work if i.complete and i.kind == "training"]
    ordered = sorted(
        averaged or complete or at_work, key=lambda i: (i.end_ns - i.start_ns, i.index)
    )
    if not ordered:
        return None
    median = ordered[(len(ordered) - 1) // 2]
    length_ns = median.end_ns - median.start_ns
    return next(i for i in ordered if i.end_ns - i.start_ns == length_ns)


def _has(iteration: Iteration, name: str) -> bool:
    ratio = iteration.ratios.get(name)
    return ratio is not None and ratio.value is not None


def _is_averaged(iteration: Iteration, usual: int | None) -> bool:
    whole = iteration.complete and iteration.kind == "training"
    return whole and iteration.microbatches == usual


def _usual_microbatches(iterations: Sequence[Iteration]) -> int | None:
    """Return the most frequent microbatch count of complete training iterations (ties: larger)."""
    counts = [i.microbatches for i in iterations if i.complete and i.kind == "training"]
    known = [c for c in counts if c is not None]
    return max(known, key=lambda c: (known.count(c), c)) if known else None


def _extents(run: Run) -> Extents:
    """Return first starts and last ends of each (iteration, rank)."""
    operations = run.operations
    shape = (len(run.iteration_names), len(run.ranks))
    cell = operations.iteration * shape[1] + operations.rank
    usable = (operations.has_span == 1) & (operations.iteration >= 0)

    def over(phases: Sequence[Phase]) -> tuple[Ints, Ints]:
        rows = usable & np.isin(operations.phase, phases)
        first, last = intervals.group_extents(
            cell[rows], shape[0] * shape[1], operations.start_ns[rows], operations.end_ns[rows]
        )
        return first.reshape(shape), last.reshape(shape)

    first_ns, last_ns = over(WORK)
    step_last_ns = over(COMPUTE)[1]
    present = np.zeros(shape[0] * shape[1], bool)
    present[cell[usable & np.isin(operations.phase, COUNTED)]] = True
    return Extents(first_ns, last_ns, step_last_ns, present.reshape(shape))


def _work_ns(ratio: RatioDefinition, part: Uses) -> Ints:
    """Return what counts as work in each window."""
    work = part.compute_ns
    if ratio.work is not Counted.ITERATION:
        work = work + part.optimizer_ns
    if ratio.work is Counted.EVERYTHING:
        work = work + part.overlap_ns
    return work


def _ratio_of(work_ns: int, window_ns: int) -> float | None:
    return (window_ns - work_ns) / window_ns if window_ns > 0 else None


def _iteration(table: _Table, k: int) -> Iteration:
    extents, nature = table.extents, table.nature[k]
    present = np.flatnonzero(extents.present[k])
    return Iteration(
        index=k,
        name=table.run.iteration_names[k],
        kind=nature.kind,
        complete=nature.complete,
        averaged=False,
        microbatches=nature.microbatches,
        start_ns=int(extents.first_ns[k, present].min()) if len(present) else 0,
        end_ns=int(extents.step_last_ns[k, present].max()) if len(present) else 0,
        ratios={s.name: _ratio(table, s, k, present) for s in ratio_definitions()},
        ranks=tuple(_rank_iteration(table, k, rank) for rank in present.tolist()),
    )


def _ratio(table: _Table, ratio: RatioDefinition, k: int, present: Ints) -> Ratio:
    """Return one ratio over the ranks; unknown where any of them lacks something."""
    window, part = table.windows[ratio.name], table.parts[ratio.name]
    nature = table.nature[k]
    lacking = any(nature.missing[rank] for rank in present.tolist()) or not nature.complete
    lacking = lacking or (ratio.work is Counted.STEP and not nature.stepped)
    incomplete = table.run.stages_missing or nature.ranks_missing
    reach = table.reaches.get(ratio.name)
    lacking = lacking or (reach is not None and not reach.comparable[k])
    if not window.known[k] or lacking or not (table.run.paired and len(present)):
        return Ratio(None, None, None, None, incomplete=incomplete)
    length = window.end_ns[k, present] - window.start_ns[k, present]
    work = int(_work_ns(ratio, part)[k, present].sum())
    loose = int(part.unattributed_ns[k, present].sum())
    total = int(length.sum())
    return Ratio(
        value=_ratio_of(work, total),
        low=_ratio_of(work + loose, total),
        overhead=(total - work) / work if work > 0 else None,
        window_ns=(2 * total + len(present)) // (2 * len(present)),
        interval=_interval(reach, k, work, len(present)),
        incomplete=incomplete,
        contradicted=reach is not None and bool(reach.contradicted[k]),
    )


def _interval(reach: Reach | None, k: int, work_ns: int, ranks: int) -> tuple[float, float] | None:
    """Return between what the ratio of so many ranks lies; None where no uncertainty is known.

    Clocks that drift apart measure work in units that differ by so much, too.
    """
    if reach is None or not reach.bounded[k] or reach.low_ns[k] <= 0:
        return None
    units = DRIFT if reach.across[k] else 0.0
    least, most = work_ns * (1 - units), work_ns * (1 + units)
    low, high = int(reach.low_ns[k]) * ranks, int(reach.high_ns[k]) * ranks
    return max(low - most, 0.0) / low, (high - least) / high


def _rank_iteration(table: _Table, k: int, rank: int) -> RankIteration:
    missing = table.nature[k].missing[rank]
    if missing is None and not table.nature[k].complete:
        missing = "the capture does not hold all of the iteration"
    # Where ranks' iterations are not known to be the same, only a rank's own window is.
    told = [
        s
        for s in ratio_definitions()
        if table.windows[s.name].known[k]
        and (table.run.paired or not s.across_ranks)
        and (s.name not in table.reaches or table.reaches[s.name].comparable[k])
    ]
    accounts = {s.name: _account(table, s, k, rank) for s in told}
    ratios: dict[str, float | None] = dict.fromkeys((s.name for s in ratio_definitions()), None)
    between: dict[str, tuple[float, float]] = {}
    for s in told if missing is None else ():
        work = int(_work_ns(s, table.parts[s.name])[k, rank])
        ratios[s.name] = _ratio_of(work, accounts[s.name].window_ns)
        reach = table.reaches.get(s.name)
        interval = _interval(reach, k, work, 1)
        if reach is not None and reach.across[k] and interval is not None:
            between[s.name] = interval
    return RankIteration(
        rank=rank,
        busy_ns={p.label: int(table.phase_ns[k, rank, i]) for i, p in enumerate(COMPUTE)},
        compute_ns=int(table.compute_ns[k, rank]),
        active_ns=int(table.run.active_ns[k, rank]),
        first_ns=int(table.extents.first_ns[k, rank]),
        last_ns=int(table.extents.last_ns[k, rank]),
        accounts=accounts,
        bubble_ratio=ratios,
        bubble_interval=between,
        missing=missing,
    )


def _account(table: _Table, ratio: RatioDefinition, k: int, rank: int) -> Account:
    window, part = table.windows[ratio.name], table.parts[ratio.name]
    return Account(
        start_ns=int(window.start_ns[k, rank]),
        end_ns=int(window.end_ns[k, rank]),
        compute_ns=int(part.compute_ns[k, rank]),
        optimizer_ns=int(part.optimizer_ns[k, rank]),
        overlap_ns=int(part.overlap_ns[k, rank]),
        unattributed_ns=int(part.unattributed_ns[k, rank]),
        bubble_ns=int(part.bubble_ns[k, rank]),
    )


def _headline(iterations: Sequence[Iteration]) -> tuple[str, str]:
    """Return the ratio to quote and why."""
    averaged = [i for i in iterations if i.averaged]
    if not averaged:
        skipped = any(i.complete and i.kind == "training" for i in iterations)
        why = "is left to average" if skipped else "is in the capture to average"
        return "schedule", f"no complete training iteration {why}"
    worst, name = max(_overlaps(iterations), default=(0.0, ""))
    if worst <= OVERLAP_SHARE:
        return "schedule", "consecutive iterations do not overlap"
    overlap = (
        f"consecutive iterations overlap (up to {worst:.1%} of a rank's window, in iteration "
        f"{name})"
    )
    if any(i.ratios["period"].value is not None for i in averaged):
        return "period", f"{overlap}, so the idle time of one is partly another's work"
    return "schedule", f"{overlap}, but no averaged iteration has a next one to measure a period to"


def _overlaps(iterations: Sequence[Iteration]) -> Iterator[tuple[float, str]]:
    """Yield the overlap of each rank of averaged iterations, as a share of its window.

    An evaluation beside an iteration says nothing of how training iterations follow each other.
    """
    for iteration in iterations:
        beside = iterations[max(iteration.index - 1, 0) : iteration.index + 2]
        if not iteration.averaged or any(i.kind != "training" for i in beside):
            continue
        for own in iteration.ranks:
            # Where clocks leave no window over hosts, the longest rank's own tells as well.
            trusted = "schedule" in own.accounts and not iteration.ratios["schedule"].contradicted
            account = own.accounts.get("schedule" if trusted else "stage")
            if account is not None and account.window_ns > 0:
                yield account.overlap_ns / account.window_ns, iteration.name


def _summary(iterations: Sequence[Iteration]) -> Summary:
    averaged = [i for i in iterations if i.averaged]
    names = [s.name for s in ratio_definitions()]

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
    """Return between what the mean lies: all clocks are off in the same direction at worst."""
    known = [i.ratios[name] for i in averaged if i.ratios[name].value is not None]
    between = [ratio.interval for ratio in known if ratio.interval is not None]
    if not between or len(between) < len(known):
        return None
    low, high = np.array(between, np.float64).mean(axis=0).tolist()
    return low, high


def prepare() -> None:
    """Load what :func:`spread` needs: 0.15 s, best spent while other threads read."""
    importlib.import_module("scipy.special")


def spread(values: Sequence[float | None]) -> Spread:
    """Return mean and spread of the known values; ``std`` with n - 1, ``ci95`` a half width."""
    known = np.array([v for v in values if v is not None], np.float64)
    n = len(known)
    if n == 0:
        return Spread(None, None, None, None, None, 0)
    mean, low, high = float(known.mean()), float(known.min()), float(known.max())
    if n == 1:
        return Spread(mean, None, low, high, None, 1)
    # Imported here: a single iteration needs none of it.
    from scipy.special import stdtrit

    std = float(known.std(ddof=1))
    return Spread(mean, std, low, high, float(stdtrit(n - 1, 0.975)) * std / n**0.5, n)
