"""Count: the bubble ratios of every iteration, rank and window, and their summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from bubbleviz.align.run import Run
from bubbleviz.count import completeness, rank_iterations
from bubbleviz.count.iterations import Iteration, Ratio
from bubbleviz.count.rank_iterations import RankSlice
from bubbleviz.count.ratios import CountedWork, Extents, RatioDefinition, Windows, ratio_definitions
from bubbleviz.count.window_bounds import window_bounds
from bubbleviz.errors import ProfileError
from bubbleviz.interpret.start_skew import find_common_start
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Floats, Ints, marked, scattered
from bubbleviz.model.grouping import distinct
from bubbleviz.model.operations import Operations, RankIntervals, RunningTimes
from bubbleviz.model.phase_masks import EVALUATION, INFERENCE, TRAINING, among
from bubbleviz.model.phases import COMPUTE, COUNTED, WORK, Phase
from bubbleviz.model.window import Window

#: Minimum wait for a recording that is excluded, as a fraction of the median iteration length.
_LONG_WAIT = 0.05
#: Maximum time between two operations of a rank, in ns: one year. No capture is as long, and sums
#: of longer times over many ranks would exceed 64 bits.
_YEAR_NS = 365 * 86_400 * 10**9

# Student's t: the quantiles that confidence intervals of means take.
#
# scipy takes longer to import than most runs to count, so those for few degrees of freedom stand
# here; for more, an expansion is exact to seven digits (Abramowitz and Stegun, 26.7.5).


#: The 97.5 % quantile for 1, 2, ... degrees of freedom; and that of the normal distribution.
_QUANTILES = (
    12.706204736174694, 4.302652729749462, 3.1824463052837078, 2.7764451051977934,
    2.5705818356363146, 2.4469118511449786, 2.364624251592784, 2.306004135204166,
    2.262157162798205, 2.228138851986274, 2.200985160091639, 2.1788128296672284,
    2.1603686564627913, 2.144786687917804, 2.131449545559776, 2.1199052992212546,
    2.1098155778333156, 2.1009220402410382, 2.0930240544083087, 2.085963447265864,
)  # fmt: skip
_NORMAL = 1.959963984540054


def quantile(df: int) -> float:
    """Return the 97.5 % quantile of Student's t, for so many degrees of freedom (at least 1)."""
    if df <= len(_QUANTILES):
        return _QUANTILES[df - 1]
    x = _NORMAL
    return (
        x
        + (x**3 + x) / (4 * df)
        + (5 * x**5 + 16 * x**3 + 3 * x) / (96 * df**2)
        + (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / (384 * df**3)
        + (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / (92160 * df**4)
    )


def median(values: Ints | Floats) -> float:
    """Return the median of some values without NaN among them; NaN of none.

    It takes a fifth of the time of np.median, which imports numpy.ma where values are floats.
    """
    ordered = np.sort(values)
    middle = ordered[max(len(ordered) - 1, 0) // 2 : len(ordered) // 2 + 1]
    return float(middle.sum() / len(middle)) if len(middle) else np.nan


# Time breakdown: every nanosecond of every rank's window attributed to one use.


#: Uses of a window's time, which add up to it.
USES = ("compute_ns", "optimizer_ns", "overlap_ns", "unattributed_ns", "bubble_ns")


def busy_times(
    part: RankSlice, windows: Mapping[str, Windows]
) -> dict[tuple[str, str], npt.NDArray[np.int64]]:
    """Return when the ranks of a slice were busy.

    The first use that covers an instant counts::

        iteration's own compute   ███   ██████
        its Optimizer                          ▓▓▓
        other iterations                          ░░░░
        unattributed compute         ▒▒
        window                    ├──────────────────────┤   the rest is bubble

    Args:
        part: some ranks of a run.
        windows: of all ranks, by name of the ratio.

    Returns:
        By the name of a ratio and of a use, how long each window was used so, shape (iterations,
        ranks); and by "" and ``phase_ns`` the union of each phase's busy time, shape (iterations,
        ranks, phases of COMPUTE), by "" and ``compute_ns`` that of F, B, W, BW, R and FB.
    """
    loose, (iterations, ranks) = part.unattributed, part.shape
    operations, busy = part.operations, part.busy
    columns: list[Ints] = [operations.rank, operations.iteration, operations.phase]
    if not np.array_equal(busy.operation, np.arange(len(operations))):
        columns = [column[busy.operation] for column in columns]
    computing = [*columns, busy.start_ns, busy.end_ns]
    computes = among(computing[2], COMPUTE)
    if not computes.all():
        computing = [column[computes] for column in computing]
    everything = intervals.group_union(computing[0], ranks, computing[3], computing[4])
    if computing[1].min(initial=0) < 0:
        computing = [column[computing[1] >= 0] for column in computing]
    rank, iteration, phase, start_ns, end_ns = computing
    place = scattered(len(Phase), list(COMPUTE), np.arange(len(COMPUTE)))
    owner = iteration * ranks + rank
    kinds, cells = (iterations, ranks, len(COMPUTE)), iterations * ranks
    owner_of_phase = owner * len(COMPUTE) + place[phase]
    phase_ns = intervals.group_measure(owner_of_phase, prod(kinds), start_ns, end_ns)
    work = intervals.group_union(owner, cells, start_ns, end_ns, among(phase, WORK))
    with_step = intervals.group_union(owner, cells, start_ns, end_ns)
    times = {
        ("", "phase_ns"): phase_ns.reshape(kinds),
        ("", "compute_ns"): intervals.group_sum(work[0], cells, work[2] - work[1]).reshape(
            part.shape
        ),
    }
    own_windows = [of_run.of_ranks(slice(part.first, part.end)) for of_run in windows.values()]
    known = np.stack([window.known[:, None] for window in own_windows])
    low = np.where(known, np.stack([window.start_ns for window in own_windows]), 0)
    high = np.where(known, np.stack([window.end_ns for window in own_windows]), 0)
    high = np.maximum(high, low)
    cell = np.broadcast_to(np.arange(cells).reshape(part.shape), low.shape)
    every_rank = np.broadcast_to(np.arange(ranks), low.shape)
    # Each covers what the one before does, and more.
    covered = [intervals.within_windows(s, cells, cell, low, high) for s in (work, with_step)]
    covered.append(intervals.within_windows(everything, ranks, every_rank, low, high))
    covered.append(covered[-1])
    if len(loose):
        unattributed = loose.rank, loose.start_ns, loose.end_ns
        both = [np.concatenate(pair) for pair in zip(everything, unattributed, strict=True)]
        occupied = intervals.group_union(both[0], ranks, both[1], both[2])
        covered[-1] = intervals.within_windows(occupied, ranks, every_rank, low, high)
    parts = np.diff([np.zeros_like(low), *covered, high - low], axis=0)
    for name, of_uses in zip(windows, np.moveaxis(parts, 1, 0), strict=True):
        times |= {(name, use): part_ns for use, part_ns in zip(USES, of_uses, strict=True)}
    return times


# Running time: how long kernels and copies ran in windows of iterations.


def time_within(times: RunningTimes, time_ns: Ints, low_ns: Ints, high_ns: Ints) -> Ints:
    """Return how much of a time lies in each window [low, high].

    Of a stretch that a window cuts, the time counts by the share of the stretch inside. Iterations'
    own first starts and last ends cut none.

    Args:
        times: the stretches of the ranks.
        time_ns: one of their columns.
        low_ns: starts of windows, shape (windows, ranks).
        high_ns: their ends, likewise; none is before its start.
    """
    sets, ranks = (times.rank, times.start_ns, times.end_ns), low_ns.shape[1]
    return intervals.GroupCover(sets, ranks, time_ns).within(np.arange(ranks), low_ns, high_ns)


# The summary: mean and spread of the ratios over iterations, and the ratio to quote.


#: Overlap of iterations above this share of a rank's window makes ``period`` the headline.
OVERLAP_SHARE = 0.01


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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

    intervals_of: dict[str, tuple[float, float] | None] = {}
    for name in names:
        known = [i.ratios[name] for i in averaged if i.ratios[name].value is not None]
        bounds = [ratio.interval for ratio in known if ratio.interval is not None]
        intervals_of[name] = None
        if bounds and len(bounds) == len(known):
            # At worst, all clocks are off in the same direction.
            low, high = np.array(bounds, np.float64).mean(axis=0).tolist()
            intervals_of[name] = low, high
    return Summary(
        iterations=len(averaged),
        bubble_ratio=over("value"),
        bubble_interval=intervals_of,
        bubble_low=over("low"),
        bubble_overhead=over("overhead"),
        window_ns=over("window_ns"),
    )


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
    known = [
        name
        for name in ("period", "schedule", "stage")
        if any(i.ratios[name].value is not None for i in averaged)
    ]
    forward = averaged[0].kind == INFERENCE
    worst, where = (0.0, "") if forward else max(_overlaps(iterations), default=(0.0, ""))
    if worst > OVERLAP_SHARE:
        overlap = (
            f"consecutive iterations overlap (up to {worst:.1%} of a rank's window, in iteration "
            f"{where})"
        )
        if "period" in known:
            return "period", f"{overlap}, so the idle time of one is partly another's work"
        name = next(iter(known), "schedule")
        return name, f"{overlap}, but no averaged iteration has a next one to measure a period to"
    if forward and "period" in known:
        # Between its iterations GPUs wait for tokens, requests and the host, which no window of a
        # single one holds.
        return "period", (
            "the run only goes forward, and what its GPUs wait for between two iterations counts"
        )
    name, reason = "schedule", "no averaged iteration has a ratio over its ranks"
    if "schedule" in known:
        reason = (
            "the run only goes forward, in one window over the recording"
            if forward
            else "consecutive iterations do not overlap"
        )
    elif "stage" in known:
        # How iterations of several hosts follow each other is unknown without a common clock.
        overlapping = "" if forward else ", and whether consecutive iterations overlap"
        name, reason = (
            "stage",
            "the ranks have no common clock, so schedule is unknown"
            f"{overlapping}; stage needs none",
        )
    return name, reason


def _overlaps(iterations: Sequence[Iteration]) -> Iterator[tuple[float, str]]:
    """Yield the overlap of averaged iterations, as a share of a rank's window."""
    for iteration in iterations:
        if iteration.averaged:
            yield _overlap_of(iteration), iteration.name


def training_overlaps(iterations: Sequence[Iteration]) -> bool:
    """Return whether training iterations overlap each other, and not only an evaluation."""
    alone = [
        iteration
        for iteration in iterations
        if all(
            beside.kind == TRAINING
            for beside in iterations[max(iteration.index - 1, 0) : iteration.index + 2]
        )
    ]
    return max(_overlaps(alone), default=(0.0, ""))[0] > OVERLAP_SHARE


def _overlap_of(iteration: Iteration) -> float:
    """Return the time in a rank's window spent on other iterations, as a share; the largest."""
    ranks = iteration.ranks
    # Where clocks leave no window over hosts, the longest rank's window does as well.
    trusted = (
        rank_iterations.has_account(ranks, "schedule")
        and not iteration.ratios["schedule"].contradicted
    )
    ratio = "schedule" if trusted else "stage"
    if not rank_iterations.has_account(ranks, ratio):
        return 0.0
    window_ns = rank_iterations.account_column(ranks, ratio, "window_ns")
    overlap_ns = rank_iterations.account_column(ranks, ratio, "overlap_ns")
    real = window_ns > 0
    return float((overlap_ns[real] / window_ns[real]).max(initial=0.0))


#: What a rank lacks that ran all of what the capture holds of an iteration.
_INCOMPLETE = "the capture does not hold all of the iteration"


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
        inside: of each iteration, whether it lies in the requested window; the others have no
            ranks.
        alike: of each iteration, whether no rank lacks a forward or a backward for sure.
        awaited_ns: Latest start of a recording that other ranks waited for, or None if none waited.
    """

    iterations: tuple[Iteration, ...]
    summary: Summary
    headline: str
    headline_reason: str
    extents: Extents
    windows: Mapping[str, Windows]
    one_clock: Bools
    inside: Bools
    alike: Bools
    awaited_ns: int | None = None


def count(run: Run, *, skip: int = 0, window: Window | None = None) -> Counts:
    """Return the ratios of every iteration and their summary.

    Args:
        run: the merged profiles.
        skip: how many of the first iterations (of the window) the summary leaves out.
        window: the part of the run to analyse; None for all of it.

    Raises:
        InputError: no iteration lies in the window.
        ProfileError: Times of a rank are more than a year apart.
    """
    _refuse_far_times(run)
    iterations, extents, windows, one_clock, alike, awaited_ns = _measured(run)
    inside = np.ones(len(iterations), bool)
    if window is not None:
        start_ns = np.array([i.start_ns for i in iterations], np.int64)
        end_ns = np.array([i.end_ns for i in iterations], np.int64)
        inside = window.holds([i.name for i in iterations], start_ns, end_ns)
    candidates = [iterations[k] for k in np.flatnonzero(inside).tolist()]
    # The most frequent number of microbatches of complete training iterations, of several the
    # largest.
    training = [i.microbatches for i in candidates if i.complete and i.kind == TRAINING]
    counts = [c for c in training if c is not None]
    usual = max(counts, key=lambda c: (counts.count(c), c), default=None)
    averaged = {
        i.index
        for i in candidates[skip:]
        # Batches of requests are as long as they happen to be.
        if i.complete and (i.kind == INFERENCE or (i.kind == TRAINING and i.microbatches == usual))
    }
    iterations = tuple(
        replace(i, averaged=i.index in averaged)
        if is_inside
        else replace(i, ranks=i.ranks.of(i.ranks.rank[:0]))
        for i, is_inside in zip(iterations, inside.tolist(), strict=True)
    )
    headline, reason = choose_headline(iterations)
    summary = summarize(iterations)
    measured = extents, windows, one_clock, inside, alike, awaited_ns
    return Counts(iterations, summary, headline, reason, *measured)


def _refuse_far_times(run: Run) -> None:
    """Refuse a run with damaged times.

    Raises:
        ProfileError: Times of a rank are more than a year apart.
    """
    operations = run.operations
    spanned = operations.has_span == 1
    if not spanned.any():
        return
    columns = (operations.rank, operations.start_ns, operations.end_ns)
    rank_of, start_ns, end_ns = (column[spanned] for column in columns)
    low_ns, high_ns = intervals.group_extents(rank_of, len(run.ranks), start_ns, end_ns)
    span_ns = high_ns.astype(float) - low_ns.astype(float)
    rank = int(span_ns.argmax())
    if span_ns[rank] > _YEAR_NS:
        years = span_ns[rank] / _YEAR_NS
        raise ProfileError(
            f"times of {run.ranks[rank].label} lie {years:,.1f} years apart, so some are damaged; "
            "copy the profiles again, or record again",
            hosts=[run.ranks[rank].host],
        )


def _measured(
    run: Run,
) -> tuple[tuple[Iteration, ...], Extents, dict[str, Windows], Bools, Bools, int | None]:
    """Return all iterations, none averaged, and of :class:`Counts` what they rest on."""
    ratios = ratio_definitions()
    present = [rank_presence(part) for part in rank_iterations.slices_of(run)]
    columns = rank_iterations.joined_ranks([of_ranks for of_ranks, _ in present])
    first_ns, last_ns, step_last_ns, takes_part, may_have_run, has_stepped = columns
    paused = _paused(run.pauses, first_ns, takes_part)
    extents = Extents(first_ns, last_ns, step_last_ns, takes_part, paused)
    evidence = completeness.joined_evidence([own for _, own in present])
    statuses = completeness.iteration_statuses(
        evidence,
        run.operations.phase,
        can_idle=_can_idle(run, extents) & ~may_have_run,
        is_recorded=has_stepped & (run.recorded_start_ns <= find_iteration_starts(extents)),
    )
    awaited_ns = _find_awaited_recording(run, extents)
    began_unrecorded = np.zeros(len(extents.present), bool)
    if awaited_ns is not None:
        began_unrecorded = find_iteration_starts(extents)[:, 0] < awaited_ns
    statuses = replace(statuses, complete=statuses.complete & ~began_unrecorded)
    extents = add_idle_ranks(extents, statuses.idle)
    first_ns, last_ns, step_last_ns = extents.first_ns, extents.last_ns, extents.step_last_ns
    takes_part = extents.present
    windows = {ratio.name: ratio.windows(extents) for ratio in ratios}
    parts = [busy_times(part, windows) for part in rank_iterations.slices_of(run)]
    times = dict(zip(parts[0], rank_iterations.joined_ranks(parts), strict=True))
    bounds = {r.name: window_bounds(r, extents, run.timebase) for r in ratios if r.common_clock}
    accounts = {}
    for ratio in ratios:
        name, clocks = ratio.name, bounds.get(ratio.name)
        # Windows are known only where the clocks of the ranks can measure them. Where ranks'
        # iterations are not known to be the same, only a rank's own window is.
        known = windows[name].known & (run.paired or not ratio.across_ranks)
        known = known if clocks is None else known & clocks.comparable
        window = windows[name] = replace(windows[name], known=known)
        uses = {use: times[name, use] for use in USES}
        low_ns = np.where(known[:, None], window.start_ns, 0)
        high_ns = np.maximum(np.where(known[:, None], window.end_ns, 0), low_ns)
        work_ns = uses["compute_ns"]
        if ratio.work is not CountedWork.ITERATION:
            work_ns = work_ns + uses["optimizer_ns"]
        if ratio.work is CountedWork.EVERYTHING:
            work_ns = work_ns + uses["overlap_ns"]
        accounts[name] = rank_iterations.AccountColumns(
            start_ns=window.start_ns,
            end_ns=window.end_ns,
            **uses,
            running_ns=time_within(run.running, run.running.running_ns, low_ns, high_ns),
            work_ns=work_ns,
            known=tuple(known.tolist()),
            bounds=clocks,
        )
    # Of an incomplete iteration a rank lacks something in any case.
    whole = statuses.complete[:, None] | (statuses.missing > 0)
    ranks = rank_iterations.RankColumns(
        phase_ns=times["", "phase_ns"],
        compute_ns=times["", "compute_ns"],
        active_ns=run.active_ns,
        first_ns=first_ns,
        last_ns=last_ns,
        kernel_ns=run.kernel_ns,
        gap_ns=run.gap_ns,
        missing=np.where(whole, statuses.missing, len(completeness.LACKS)),
        reasons=(*completeness.LACKS, _INCOMPLETE),
        accounts=accounts,
    )
    comparable = np.logical_and.reduce([b.comparable for b in bounds.values()]) & run.paired
    iterations = []
    for k, name in enumerate(run.iteration_names):
        at = np.flatnonzero(takes_part[k])
        iterations.append(
            Iteration(
                index=k,
                name=name,
                kind=statuses.kind[k],
                complete=bool(statuses.complete[k]),
                unmatched=bool(statuses.unmatched[k]),
                began_unrecorded=bool(began_unrecorded[k]),
                averaged=False,
                microbatches=statuses.microbatches[k],
                start_ns=int(first_ns[k, at].min()) if len(at) else 0,
                end_ns=int(step_last_ns[k, at].max()) if len(at) else 0,
                ratios={r.name: _ratio(run, r, accounts[r.name], statuses, k, at) for r in ratios},
                ranks=rank_iterations.RankIterations(ranks, k, at),
            )
        )
    return tuple(iterations), extents, windows, comparable, statuses.alike, awaited_ns


def rank_presence(
    part: rank_iterations.RankSlice,
) -> tuple[dict[str, Ints | Bools], completeness.Evidence]:
    """Return what the ranks of a slice ran in iterations, and when; no windows are needed for it.

    Args:
        part: some ranks of a run.

    Returns:
        columns: The columns of :class:`Extents` by name, and two masks. ``may_have_run``: the
            rank may have run a forward or backward of the iteration. ``has_stepped``: the rank ran
            its Optimizer to the end.
        evidence: Evidence on whether the iterations are complete.
    """
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
    counted = among(operations.phase, COUNTED)
    present = marked(shape[0] * shape[1], cell[usable & counted]).reshape(shape)
    may_have_run = marked(present.size, cell[find_possible_work(operations, cell)])
    whole_steps = usable & (operations.phase == Phase.OPTIMIZER) & (operations.cut == 0)
    columns: dict[str, Ints | Bools] = {
        "first_ns": first_ns,
        "last_ns": last_ns,
        "step_last_ns": over(COMPUTE)[1],
        "present": present,
        "may_have_run": may_have_run.reshape(shape),
        "has_stepped": marked(present.size, cell[whole_steps]).reshape(shape),
    }
    return columns, completeness.evidence_of(operations, present)


def find_possible_work(operations: Operations, cell: Ints) -> Bools:
    """Return a mask of the forwards and backwards that may have run on the device.

    A range that launched nothing ran nothing if the rank was recorded in the iteration, which
    other GPU work of the iteration shows, for example the Optimizer::

        launches      F0 B0   Optimizer   F0 B0       Optimizer   F0 B0   Optimizer
        recorded      F0 B0   Optimizer               Optimizer                         not recorded
                                          ran nothing             unknown

    Args:
        operations: Operations of some ranks.
        cell: Number of the iteration and rank of each operation.
    """
    is_work = (operations.iteration >= 0) & among(operations.phase, COUNTED)
    is_recorded = (operations.iteration >= 0) & (operations.has_span == 1)
    launched_nothing = (operations.has_span == 0) & (operations.launched_ns == NONE)
    is_empty = launched_nothing & (operations.cut == 0) & np.isin(cell, distinct(cell[is_recorded]))
    return np.asarray(is_work & ~is_empty, bool)


def find_iteration_starts(extents: Extents) -> Ints:
    """Return the earliest start of each iteration on any rank, shape (iterations, 1).

    The start of an iteration without work is the largest int64.
    """
    never = np.iinfo(np.int64).max
    first_ns = np.where(extents.present, extents.first_ns, never)
    starts_ns: Ints = first_ns.min(axis=1, keepdims=True, initial=never)
    return starts_ns


def _find_awaited_recording(run: Run, extents: Extents) -> int | None:
    """Return the latest start of a recording that other ranks waited for, or None if none waited.

    Such a wait does not count as a bubble, because the rank may be late only because its profiler
    was starting.
    """
    starts_ns = find_iteration_starts(extents)
    parts_ns = np.where(extents.present, extents.step_last_ns - starts_ns, 0)
    length_ns = parts_ns.max(axis=1, initial=0)
    usual_ns = median(length_ns[extents.present.any(axis=1)])
    long_ns = 0 if np.isnan(usual_ns) else round(_LONG_WAIT * usual_ns)
    return find_common_start(run.recorded, long_ns)


def _can_idle(run: Run, extents: Extents) -> Bools:
    """Return a mask of the iterations in which each rank may have had nothing to run.

    The mask is False if the clocks of the ranks cannot be compared, or if the recording of the rank
    paused during the iteration. Its shape is (iterations, ranks).
    """
    can_idle = np.zeros(extents.present.shape, bool)
    is_comparable = run.timebase.comparable[run.timebase.machine]
    if not (run.paired and is_comparable.all()):
        return can_idle
    can_idle[:] = True
    starts_ns = find_iteration_starts(extents)
    ends_ns = np.where(extents.present, extents.step_last_ns, starts_ns).max(axis=1, keepdims=True)
    worked = np.flatnonzero(extents.present.any(axis=1))
    worked_ns = starts_ns[worked, 0], ends_ns[worked, 0]
    pauses_ns = run.pauses.start_ns, run.pauses.end_ns
    pause, index = intervals.find_overlaps(pauses_ns, worked_ns)
    can_idle[worked[index], run.pauses.rank[pause]] = False
    return can_idle


def add_idle_ranks(extents: Extents, is_idle: Bools) -> Extents:
    """Return extents in which idle ranks take part with work of zero length.

    The work of an idle rank is placed at the start of the iteration, so that its windows are the
    same as on the other ranks.

    Args:
        extents: Extents of all iterations.
        is_idle: Mask of idle ranks, shape (iterations, ranks).
    """
    if not is_idle.any():
        return extents
    starts_ns = np.broadcast_to(find_iteration_starts(extents), is_idle.shape)
    step_last_ns = np.maximum(extents.step_last_ns, starts_ns)
    return replace(
        extents,
        first_ns=np.where(is_idle, starts_ns, extents.first_ns),
        last_ns=np.where(is_idle, starts_ns, extents.last_ns),
        step_last_ns=np.where(is_idle, step_last_ns, extents.step_last_ns),
        present=extents.present | is_idle,
    )


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


def _share_idle(work_ns: int, window_ns: int) -> float | None:
    """Return the share of a window that is no work; None of an empty one."""
    return (window_ns - work_ns) / window_ns if window_ns > 0 else None


def _ratio(
    run: Run,
    ratio: RatioDefinition,
    account: rank_iterations.AccountColumns,
    statuses: completeness.IterationStatuses,
    k: int,
    present: Ints,
) -> Ratio:
    """Return one ratio over the ranks; unknown where any of them lacks something.

    Args:
        run: the merged profiles.
        ratio: which one.
        account: how ranks used the time of its windows.
        statuses: of the iterations.
        k: its index.
        present: the ranks with work in it.
    """
    incomplete = run.stages_missing or run.ranks_missing or bool(statuses.ranks_missing[k])
    lacking = bool(statuses.missing[k, present].any()) or not statuses.complete[k]
    lacking = lacking or (ratio.work is CountedWork.STEP and not statuses.stepped[k])
    if lacking or not (account.known[k] and run.paired and len(present)):
        return Ratio(None, None, None, None, incomplete=incomplete)
    window_ns = int((account.end_ns[k, present] - account.start_ns[k, present]).sum())
    work_ns = int(account.work_ns[k, present].sum())
    unattributed_ns = int(account.unattributed_ns[k, present].sum())
    bounds = account.bounds
    return Ratio(
        value=_share_idle(work_ns, window_ns),
        low=_share_idle(work_ns + unattributed_ns, window_ns),
        overhead=(window_ns - work_ns) / work_ns if work_ns > 0 else None,
        window_ns=(2 * window_ns + len(present)) // (2 * len(present)),
        interval=None if bounds is None else bounds.ratio_interval(k, work_ns, len(present)),
        incomplete=incomplete,
        contradicted=len(run.timebase.jump_ns) > 0
        or (bounds is not None and bool(bounds.contradicted[k])),
    )
