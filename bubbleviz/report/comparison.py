"""Comparison: the ratios of several runs, each against the first, by name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import PurePath

from bubbleviz.errors import BubblevizError, InputError
from bubbleviz.model.texts import counted, one_line, percent
from bubbleviz.report.followed import FollowedAdvice, followed_advice, same_work, work_ns
from bubbleviz.report.promise import saved_share
from bubbleviz.report.remedies import SAME_WORK, describe_job_difference
from bubbleviz.report.report import Report
from bubbleviz.report.saved import Average, SavedRatio, SavedReport, check_one_kind

# Significance: whether two means over iterations differ, by Welch's t-test.
#
# B. L. Welch, The generalization of Student's problem when several different population variances
# are involved, Biometrika 34 (1947): unequal variances, degrees of freedom by Satterthwaite.


#: Assumptions of every test, for readers.
ASSUMPTIONS = (
    "Welch's t-test, two-sided, uncorrected for multiple comparisons; assumes independent, about "
    "normal iterations: correlated ones make p too small, and variation between runs is not "
    "included."
)


#: Below this, a difference is called significant.
SIGNIFICANT = 0.05


#: Ratios by their windows: what training waits for, and an iteration to its Optimizer's end.
_LONGEST_FIRST = ("period", "step")


@dataclass(frozen=True)
class MeanDifference:
    """The difference of two means; None for an unknown value.

    There is no test where either has fewer than two values, or where neither has any spread.

    Attributes:
        mean: the other minus the first.
        ci95: its 95 % confidence interval.
        t: the test statistic.
        df: degrees of freedom.
        p: probability of a difference at least as large if the means are equal.
    """

    mean: float
    ci95: tuple[float, float] | None = None
    t: float | None = None
    df: float | None = None
    p: float | None = None

    @property
    def significant(self) -> int:
        """1 for more, -1 for less, 0 where chance may be all of it; without a test, the sign."""
        if not self.mean or (self.p is not None and self.p >= SIGNIFICANT):
            return 0
        return 1 if self.mean > 0 else -1


def difference(first: Average, other: Average) -> MeanDifference | None:
    """Return the difference of ``other`` from ``first``; None where either has no mean."""
    if first.mean is None or other.mean is None:
        return None
    apart = other.mean - first.mean
    if first.std is None or other.std is None or not (widest := max(first.std, other.std)):
        return MeanDifference(apart)
    # As shares of the wider spread, so that their squares do not both underflow.
    first_var = (first.std / widest) ** 2 / first.n
    other_var = (other.std / widest) ** 2 / other.n
    error = widest * math.sqrt(first_var + other_var)
    df = (first_var + other_var) ** 2 / (
        first_var**2 / (first.n - 1) + other_var**2 / (other.n - 1)
    )
    if error == 0 or not math.isfinite(t := apart / error):
        return MeanDifference(apart)
    # Importing scipy.special takes a third of the time of scipy.stats.
    from scipy.special import stdtr, stdtrit

    half_width = float(stdtrit(df, 0.975)) * error
    return MeanDifference(
        apart, (apart - half_width, apart + half_width), t, df, 2 * float(stdtr(df, -abs(t)))
    )


@dataclass(frozen=True)
class ComparedRun:
    """One run: its title, the path that it was read from, and its ratios.

    ``report`` is None for a saved report, which holds no operations.
    """

    title: str
    path: str
    saved: SavedReport
    report: Report | None = None


@dataclass(frozen=True)
class Cell:
    """One ratio of one run, and how far it and its window (ns) are from the first run's.

    ``ratio`` is None where the run has no such ratio; the differences are None where either lacks
    it, and for the first run. Where iterations have other numbers of microbatches than the first
    run's, ``microbatch_ns`` is the difference of the windows per microbatch.
    """

    ratio: SavedRatio | None
    bubble: MeanDifference | None = None
    window_ns: MeanDifference | None = None
    microbatch_ns: MeanDifference | None = None

    @property
    def longer_ns(self) -> MeanDifference | None:
        """How much longer the same work takes."""
        return self.microbatch_ns or self.window_ns


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs, their ratios by name in the order of runs, and notes on them, in sentences.

    ``changes`` holds what differs from the first run in each run, in a line each, what takes most
    time first; ``followed`` what became of the first run's advice in it.
    """

    runs: tuple[ComparedRun, ...]
    ratios: Mapping[str, tuple[Cell, ...]]
    notes: tuple[str, ...]
    changes: tuple[tuple[str, ...], ...]
    followed: tuple[tuple[FollowedAdvice, ...], ...]

    @property
    def headline(self) -> str:
        """Name of the ratio that they are compared by; see :func:`common_headline`."""
        return common_headline([run.saved for run in self.runs])

    @property
    def longest(self) -> str:
        """Name of the ratio whose windows tell how long iterations are; see :func:`longest`."""
        return longest([run.saved for run in self.runs])

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all profiles that were compared."""
        return tuple(path for run in self.runs for path in run.saved.paths)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of their hosts, and those in limitations of the runs measured here."""
        saved = (host for run in self.runs for host in run.saved.hosts)
        measured = (host for run in self.runs if run.report for host in run.report.hosts)
        return (*saved, *measured)

    def __dir__(self) -> list[str]:
        """Return what is public."""
        return [name for name in super().__dir__() if not name.startswith("_")]

    def __repr__(self) -> str:
        name = self.headline
        means = [None if own.ratio is None else own.ratio.bubble.mean for own in self.ratios[name]]
        ratios = " -> ".join("unknown" if mean is None else percent(mean) for mean in means)
        return f"Comparison({name} bubble ratio {ratios})"


def common_headline(runs: Sequence[SavedReport]) -> str:
    """Return the ratio to compare runs by, whatever their order: the primary one of all.

    Where those differ, it is that of the longest window, in which all that takes time shows, of
    the ratios that all have; where they have none in common, a primary one.
    """
    names = sorted({run.headline for run in runs})
    if len(names) == 1:
        return names[0]
    others = [ratio.name for run in runs for ratio in run.ratios]
    known = (name for name in (*_LONGEST_FIRST, *names, *others) if _is_common(name, runs))
    return next(known, names[0])


def _is_common(name: str, runs: Sequence[SavedReport]) -> bool:
    ratios = [run.ratio(name) for run in runs]
    return all(ratio is not None and ratio.bubble.mean is not None for ratio in ratios)


def longest(runs: Sequence[SavedReport]) -> str:
    """Return the ratio of the longest window that all runs have: it tells how long iterations are.

    What lies between the last backward and the next forward is in no shorter one. A window that
    some run has only once, where it has the primary one more often, has no spread to test by.
    """
    primary = common_headline(runs)
    for name in _LONGEST_FIRST:
        pairs = [(run.ratio(name), run.ratio(primary)) for run in runs]
        if _is_common(name, runs) and all(
            own and main and own.window_ns.n >= min(2, main.window_ns.n) for own, main in pairs
        ):
            return name
    return primary


def worse_runs(comparison: Comparison) -> list[str]:
    """Return the titles of the runs that are worse than the first, beyond chance.

    They take longer, from iteration to iteration or in the window of the primary ratio, or bubble
    more in no less time; a microbatch does where iterations have other numbers of them.

    Raises:
        InputError: the primary ratio of a run is unknown.
    """
    worse, headline = [], comparison.headline
    cells = zip(comparison.ratios[headline], comparison.ratios[comparison.longest], strict=True)
    for run, (cell, whole) in [*zip(comparison.runs, cells, strict=True)][1:]:
        if cell.bubble is None or cell.longer_ns is None:
            raise InputError(
                f"{run.path}: its {headline} ratio, or that of the first run, is unknown, so "
                "neither is worse; see the limitations that analyze lists"
            )
        longer = cell.longer_ns.significant
        if whole.longer_ns is not None:
            longer = whole.longer_ns.significant or longer
        if longer > 0 or (longer == 0 and cell.bubble.significant > 0):
            worse.append(run.title)
    return worse


def titles_of(paths: Sequence[str]) -> tuple[str, ...]:
    """Return a title for each path: the shortest distinct end.

    Equal paths are numbered.
    """
    parts = [PurePath(path).parts or ("",) for path in paths]
    bare = [(*path[:-1], PurePath(path[-1]).stem or path[-1]) for path in parts]
    for depth in range(1, max(map(len, bare), default=0) + 1):
        titles = ["/".join(path[-depth:]) for path in bare]
        if len(set(titles)) == len(set(paths)):
            paths = titles
            break
    taken: set[str] = set()
    numbered = []
    for path in paths:
        names = (path if n == 1 else f"{path} ({n})" for n in count(1))
        numbered.append(next(name for name in names if name not in taken))
        taken.add(numbered[-1])
    return tuple(numbered)


def compare(runs: Sequence[ComparedRun]) -> Comparison:
    """Return the ratios of runs side by side; differences are to the first.

    Raises:
        UsageError: some are on bubbles, and others on idle time.
    """
    check_one_kind({run.path: run.saved for run in runs})
    names = dict.fromkeys(ratio.name for run in runs for ratio in run.saved.ratios)
    ratios = {name: _cells(name, [run.saved for run in runs]) for name in names}
    first, *others = (run.saved for run in runs)
    changes = tuple(tuple(_changes(first, other)) for other in others)
    followed = tuple(followed_advice(first, other) for other in others)
    notes = tuple(_notes(runs, ratios))
    return Comparison(tuple(runs), ratios, notes, ((), *changes), ((), *followed))


# What changed: the schedule and its microbatches, then work of stages, ranks, links and advice.


#: Times that change by less than this share, and slowdowns and advice by less than this share of
#: an iteration, are not told.
_CHANGED, _CHANGED_SLOWDOWN = 0.02, 0.01
#: Kernels of a name that take more or less by this share of all kernels' time are told.
_CHANGED_KERNEL, _KERNEL = 0.005, 100
#: Stages whose times change alike, within this share, are told together.
_ALIKE = 0.03


def _changes(first: SavedReport, other: SavedReport) -> Iterator[str]:
    """Yield what differs from a first run, in a line each."""
    for what, before, now in (
        ("schedule", first.schedule, other.schedule),
        ("microbatches", first.microbatches, other.microbatches),
        ("ranks", first.ranks, other.ranks),
        ("stages", _stages(first), _stages(other)),
    ):
        if before != now and None not in (before, now):
            yield f"{what}: {before} -> {now}"
    yield from _predicted(first, other)
    found = [*_divided(first, other), *_kernels_changed(first, other)]
    if describe_job_difference(first, other) is None:
        # Stages, ranks and links of one number are the same thing.
        found += [*_times_changed(first.stage_ns, other.stage_ns), *_slowed(first, other)]
    yield from (text for _, text in sorted(found, key=lambda own: -own[0]))
    known = {own.place for own in first.advice}
    for own in other.advice:
        if own.place not in known and (own.saving_ratio or 0.0) >= _CHANGED_SLOWDOWN:
            saved = saved_share(own.kind, own.place, own.saving_ratio, own.error_ratio)
            yield f"new advice: {own.action.partition('. ')[0]} ({saved})"


def _stages(run: SavedReport) -> int | None:
    """Return the number of stages whose times are known; None if there are none."""
    return len({stage for stage, _ in run.stage_ns}) or None


def _predicted(first: SavedReport, other: SavedReport) -> Iterator[str]:
    """Yield what the other run's sizes take by the times of the first, if their sizes differ.

    Runs of other numbers of stages have to do the same work: they hold another model otherwise.
    """
    from bubbleviz.schedules.predictions import predicted

    took = other.ratio("schedule")
    measured_ns = None if took is None else took.window_ns.mean
    if first.no_pipeline or other.no_pipeline or other.schedule is None or not measured_ns:
        return
    try:
        before, now = first.measured, other.measured
        sizes = [(own.stages, own.microbatches, own.chunks) for own in (before, now)]
        if sizes[0][0] != sizes[1][0] and not _is_same_model(first, other):
            return
        if before.window_ns is None or (first.schedule, sizes[0]) == (other.schedule, sizes[1]):
            return
        p, m, v = sizes[1]
        (found,) = predicted(before.times, before, [other.schedule], [p], [m], [v])
    except BubblevizError:  # a run whose times tell no schedule
        return
    if found.iteration_ns is not None and found.error_ns is not None:
        off = 100 * (found.iteration_ns / measured_ns - 1)
        yield (
            f"predicted from the times before: {found.iteration_ns / 1e6:,.3f} ± "
            f"{found.error_ns / 1e6:,.3f} ms (schedule window); measured "
            f"{measured_ns / 1e6:,.3f} ms ({off:+.2f} % off)"
        )


def _is_same_model(first: SavedReport, other: SavedReport) -> bool:
    """Return whether all stages together compute as long for a microbatch, but for noise."""
    before_ns, now_ns = work_ns(first), work_ns(other)
    return abs(before_ns - now_ns) <= SAME_WORK * min(before_ns, now_ns)


def _divided(first: SavedReport, other: SavedReport) -> Iterator[tuple[float, str]]:
    """Yield what one batch takes on all stages in microbatches of another size, in ns and words."""
    before, now = (own.microbatches or 0 for own in (first, other))
    if not before or not now or before == now or same_work(first, other) != 1:
        return
    before_ns, now_ns = before * work_ns(first), now * work_ns(other)
    if abs(now_ns / before_ns - 1) >= _CHANGED:
        yield (
            abs(now_ns - before_ns),
            f"all work of a batch: in {before:,} microbatches {before_ns / 1e6:,.3f} ms, in "
            f"{now:,} {now_ns / 1e6:,.3f} ms ({now_ns / before_ns:.2f}x per token)",
        )


def _times_changed(
    before: Mapping[tuple[int, str], float], now: Mapping[tuple[int, str], float]
) -> Iterator[tuple[float, str]]:
    """Yield how far the median times of stages changed, in ns, and in words."""
    is_split = [any(phase == "W" for _, phase in times) for times in (before, now)]
    if is_split[0] != is_split[1]:
        names = ("BW", "B + W")
        both = " -> ".join(names[split] for split in is_split)
        before, now = (_whole_backwards(times, both) for times in (before, now))
    factors = {key: now[key] / ns for key, ns in before.items() if ns and now.get(key)}

    def told(key: tuple[int, str]) -> str:
        ms = f"{before[key] / 1e6:,.3f} -> {now[key] / 1e6:,.3f} ms"
        return f"{key[1]} {ms} ({factors[key]:.2f}x)"

    changed: dict[int, list[tuple[int, str]]] = {}
    for phase in dict.fromkeys(phase for _, phase in factors):
        keys = sorted(key for key in factors if key[1] == phase)
        own = [factors[key] for key in keys]
        if len(own) > 1 and max(own) <= (1 + _ALIKE) * min(own):
            middle = sorted(keys, key=factors.__getitem__)[len(keys) // 2]
            if abs(factors[middle] - 1) >= _CHANGED:
                apart = abs(now[middle] - before[middle])
                yield apart, f"all {len(keys)} stages: {told(middle)}, median"
            continue
        for key in keys:
            if abs(factors[key] - 1) >= _CHANGED:
                changed.setdefault(key[0], []).append(key)
    for stage, keys in changed.items():
        apart = max(abs(now[key] - before[key]) for key in keys)
        yield apart, f"stage {stage}: {', '.join(map(told, keys))}"


def _whole_backwards(
    times: Mapping[tuple[int, str], float], name: str
) -> dict[tuple[int, str], float]:
    """Return times of stages with one of the whole backward, in place of those of its parts.

    Args:
        times: by stage and phase.
        name: of the whole backward.
    """
    kept = {key: ns for key, ns in times.items() if key[1] not in {"B", "W", "BW"}}
    for stage in dict.fromkeys(stage for stage, _ in times):
        parts = [times.get((stage, phase)) for phase in ("B", "W")]
        whole = times.get((stage, "BW")) if None in parts else sum(filter(None, parts))
        kept |= {(stage, name): whole} if whole else {}
    return kept


def _kernels_changed(first: SavedReport, other: SavedReport) -> Iterator[tuple[float, str]]:
    """Yield how much longer or shorter kernels of a name take in a step, in ns, and in words."""
    least_ns = _CHANGED_KERNEL * sum(first.kernel_ns.values())
    for name in {**first.kernel_ns, **other.kernel_ns} if first.kernel_ns else ():
        before, now = (own.kernel_ns.get(name, 0.0) for own in (first, other))
        if (apart := abs(now - before)) > max(least_ns, _CHANGED * before):
            times = f" ({now / before:.2f}x)" if before else ""
            ms = f"{before / 1e6:,.3f} -> {now / 1e6:,.3f} ms{times}"
            yield apart, f"kernel {one_line(name.partition('(')[0], _KERNEL)}: {ms}"


def _slowed(first: SavedReport, other: SavedReport) -> Iterator[tuple[float, str]]:
    """Yield what ranks and links cost more or less than before, in ns, and in words."""
    ratio = other.ratio(other.headline)
    window_ns = 0.0 if ratio is None else ratio.window_ns.mean or 0.0
    for name, times in other.slowdowns.items():
        before = first.slowdowns.get(name)
        if before is not None and abs(times - before) >= _CHANGED_SLOWDOWN:
            cost = f"cost {percent(times - 1)} of an iteration, {percent(before - 1)} before"
            yield abs(times - before) * window_ns, f"{name}: {cost}"


def _cells(name: str, runs: Sequence[SavedReport]) -> tuple[Cell, ...]:
    first = runs[0].ratio(name)
    cells = [Cell(first)]
    for run in runs[1:]:
        ratio = run.ratio(name)
        if first is None or ratio is None:
            cells.append(Cell(ratio))
            continue
        windows, each = (first.window_ns, ratio.window_ns), None
        if same_work(runs[0], run) != 1:
            before, now = map(_per_microbatch, windows, (runs[0], run))
            each = difference(before, now)
        apart = difference(first.bubble, ratio.bubble)
        cells.append(Cell(ratio, apart, difference(*windows), each))
    return tuple(cells)


def _per_microbatch(window_ns: Average, run: SavedReport) -> Average:
    mean, std, each = window_ns.mean, window_ns.std, run.microbatches or 1
    return Average(
        None if mean is None else mean / each, None if std is None else std / each, window_ns.n
    )


def _notes(runs: Sequence[ComparedRun], ratios: Mapping[str, tuple[Cell, ...]]) -> Iterator[str]:
    headline = common_headline([run.saved for run in runs])
    yield from _restrictions(runs)
    yield from (
        f"{run.title}: {one_line(run.saved.kernels, 200)}; much time is lost inside or beside "
        "operations, which its ratios do not show"
        for run in runs
        if run.saved.kernels is not None
    )
    for place, run in enumerate(runs):
        if gains := {n: (own[0], own[place]) for n, own in ratios.items() if _longer(own[place])}:
            yield _no_gain(headline, gains, run)
        if doubts := [n for n, own in ratios.items() if _within_clocks(own[0], own[place])]:
            yield (
                f"{run.title}: within clock uncertainty, {' and '.join(doubts)} may equal that of "
                f"{runs[0].title}; the test does not include it"
            )
        before, now = runs[0].saved.microbatches, run.saved.microbatches
        if before != now and same_work(runs[0].saved, run.saved) == 1 and before and now:
            yield (
                f"{run.title}: {counted(now, 'microbatch', 'microbatches')} hold about the work of "
                f"{before:,} of {runs[0].title}, so whole iterations are compared"
            )
    if few := [run.title for run in runs if run.saved.iterations < 2]:
        yield f"a test needs two iterations of each run; too few in {', '.join(few)}"
    if wrong := [run.title for run in runs if run.saved.contradicted]:
        yield f"ratios rely on clocks that contradict each other in {', '.join(wrong)}"
    for note, told in (
        (
            f"the primary ratios differ ({{}}); {_compared_by(headline, runs)}",
            [run.saved.headline for run in runs],
        ),
        (
            "the runs have different numbers of ranks ({}): these are different jobs, and not one "
            "before and after a change, so no advice is checked",
            [f"{run.saved.ranks:,}" for run in runs],
        ),
        (
            "the reports were written by different versions of bubbleviz ({})",
            [run.saved.version for run in runs],
        ),
    ):
        if len(set(told)) > 1:
            each = (f"{run.title} {own}" for run, own in zip(runs, told, strict=True))
            yield note.format(", ".join(each))


def _compared_by(headline: str, runs: Sequence[ComparedRun]) -> str:
    if not _is_common(headline, [run.saved for run in runs]):
        return "no ratio is known of all runs, so none is called worse than another"
    why = "in whose window most of their time shows"
    if headline not in _LONGEST_FIRST:
        why = "which is known of all"
    return f"the runs are compared by {headline}, {why}"


def _restrictions(runs: Sequence[ComparedRun]) -> Iterator[str]:
    """Yield a note on each run whose ratios are not those of a whole pipeline."""
    for run in runs:
        if run.saved.restrictions:
            reasons = "; ".join(restriction.text for restriction in run.saved.restrictions)
            yield (
                f"{run.title}: {reasons}; its ratios are of what its profiles hold, and a "
                "difference to them need not be one of the pipeline"
            )


def _longer(cell: Cell) -> bool:
    """Return whether a ratio became smaller and its window longer."""
    if cell.bubble is None or cell.longer_ns is None:
        return False
    return cell.bubble.mean < 0 < cell.longer_ns.mean


def _no_gain(headline: str, gains: Mapping[str, tuple[Cell, Cell]], run: ComparedRun) -> str:
    """Return the note on ratios that are smaller in longer windows, the headline first."""
    name, *others = sorted(gains, key=lambda name: name != headline)
    before, now = (_of_window(cell.ratio) for cell in gains[name])
    longer = "a longer window"
    if gains[name][1].microbatch_ns is not None:
        longer += " per microbatch"
    return (
        f"{run.title}: a smaller ratio of {longer} saves no time: "
        f"{name} is {now}, was {before}" + (f"; likewise {', '.join(others)}" if others else "")
    )


def _of_window(ratio: SavedRatio | None) -> str:
    if ratio is None or ratio.bubble.mean is None or ratio.window_ns.mean is None:
        return "unknown"
    return f"{percent(ratio.bubble.mean)} of {ratio.window_ns.mean / 1e6:,.3f} ms"


def _within_clocks(first: Cell, cell: Cell) -> bool:
    """Return whether a significant difference lies within the clock bounds of both means."""
    if first.ratio is None or cell.ratio is None or cell.bubble is None:
        return False
    before, now, p = first.ratio.interval, cell.ratio.interval, cell.bubble.p
    if p is None or p >= SIGNIFICANT or before is None or now is None:
        return False
    return max(before[0], now[0]) <= min(before[1], now[1])
