"""Comparison: the ratios of several runs, each compared with the first run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import PurePath
from typing import TYPE_CHECKING

from bubbleviz.errors import InputError
from bubbleviz.model.texts import format_count, format_percent, to_one_line
from bubbleviz.report.compared.differences import describe_differences
from bubbleviz.report.compared.followed import AdviceResult, check_advice
from bubbleviz.report.compared.pair import (
    LONGEST_FIRST,
    ReportPair,
    RunPair,
    check_same_kind,
    choose_headline_ratio,
    choose_longest_ratio,
    count_microbatches,
    is_common_ratio,
    make_pair,
)
from bubbleviz.report.compared.significance import SIGNIFICANT, MeanDifference, compare_means
from bubbleviz.report.idle_summary import IdleSummary
from bubbleviz.report.ratio_summary import (
    RatioSummary,
    ReportSummary,
    describe_kernel_time,
    find_ratio,
    has_contradicting_clocks,
)
from bubbleviz.report.restrictions import read_restrictions
from bubbleviz.report.summary import Average

if TYPE_CHECKING:
    from bubbleviz.report.report import Report


@dataclass(frozen=True)
class ComparedRun:
    """One of the runs in a comparison.

    Attributes:
        title: Title of the run, unique within the comparison.
        path: Path that the run was read from.
        saved: The run's saved report.
        report: The run's measured report, or None if ``saved`` was read from a file.
    """

    title: str
    path: str
    saved: ReportSummary
    report: Report | None = None

    @property
    def schedule_name(self) -> str | None:
        """Name of the run's schedule, or None if it is unknown or the report is about idle time."""
        return None if isinstance(self.saved, IdleSummary) else self.saved.schedule_name


@dataclass(frozen=True)
class Cell:
    """One ratio of one run, and how it differs from the first run.

    Attributes:
        ratio: The ratio, or None if the run does not have this ratio.
        bubble: Difference between the ratios, or None if the ratio is unknown in either run.
        window_ns: Difference between the window lengths, or None if the window is unknown in either
            run.
        microbatch_ns: Difference between the window lengths per microbatch. None if the iterations
            in both runs do the same amount of work, or if the window is unknown in either run.
    """

    ratio: RatioSummary | None
    bubble: MeanDifference | None = None
    window_ns: MeanDifference | None = None
    microbatch_ns: MeanDifference | None = None

    @property
    def equal_work_ns(self) -> MeanDifference | None:
        """Difference between the window lengths, per microbatch if known."""
        return self.microbatch_ns or self.window_ns


@dataclass(frozen=True, repr=False)
class Comparison:
    """The ratios of several runs, and the differences between each run and the first run.

    Attributes:
        runs: The runs. Every run is compared with the first one.
        ratios: One cell per run, keyed by the name of the ratio.
        notes: Sentences about the limits of the comparison.
        differences: For each run, lines that describe its differences from the first run; see
            :func:`.describe_differences`. Empty for the first run.
        followed: For each run, what came of the advice given for the first run. Empty for the first
            run.
    """

    runs: tuple[ComparedRun, ...]
    ratios: Mapping[str, tuple[Cell, ...]]
    notes: tuple[str, ...]
    differences: tuple[tuple[str, ...], ...]
    followed: tuple[tuple[AdviceResult, ...], ...]

    @cached_property
    def headline(self) -> str:
        """Name of the ratio that is used to compare runs; see :func:`.choose_headline_ratio`."""
        return choose_headline_ratio([run.saved for run in self.runs])

    @cached_property
    def longest(self) -> str:
        """Name of the ratio that gives the iteration time; see :func:`.choose_longest_ratio`."""
        return choose_longest_ratio([run.saved for run in self.runs])

    @property
    def pairs(self) -> tuple[ReportPair, ...]:
        """Pairs of the first run and each other run."""
        first, *other_runs = (run.saved for run in self.runs)
        return tuple(make_pair(first, other) for other in other_runs)

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of all compared profiles."""
        return tuple(path for run in self.runs for path in run.saved.paths)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names of all runs, along with all other host names in the measured reports."""
        saved = (host for run in self.runs for host in run.saved.hosts)
        measured = (host for run in self.runs if run.report for host in run.report.hosts)
        return (*saved, *measured)

    def __dir__(self) -> list[str]:
        """Return the public names."""
        return [name for name in super().__dir__() if not name.startswith("_")]

    def __repr__(self) -> str:
        cells = self.ratios[self.headline]
        means = [None if cell.ratio is None else cell.ratio.bubble.mean for cell in cells]
        ratios = " -> ".join("unknown" if mean is None else format_percent(mean) for mean in means)
        return f"Comparison({self.headline} bubble ratio {ratios})"


def compare(runs: Sequence[ComparedRun]) -> Comparison:
    """Compare each run with the first run: ratios, sizes, times, and the results of earlier advice.

    Raises:
        UsageError: Some reports are on bubbles and others are on idle time.
    """
    check_same_kind({run.path: run.saved for run in runs})
    first, *other_runs = (run.saved for run in runs)
    pairs = [make_pair(first, other) for other in other_runs]
    names = dict.fromkeys(name for run in runs for name in run.saved.summary.bubble_ratio)
    ratios = {
        name: (Cell(find_ratio(first, name)), *(_compare_ratio(name, pair) for pair in pairs))
        for name in names
    }
    return Comparison(
        tuple(runs),
        ratios,
        tuple(_describe_limits(runs, pairs, ratios)),
        ((), *(tuple(describe_differences(pair)) for pair in pairs)),
        ((), *(check_advice(pair) for pair in pairs)),
    )


def find_worse_runs(comparison: Comparison) -> list[str]:
    """Return the titles of all runs that are significantly worse than the first run.

    Three values are tested in order, and the first one that differs significantly decides. A run is
    worse if its value is larger:

    1. The iteration time (the window of ``comparison.longest``).
    2. The window of ``comparison.headline``.
    3. The ratio ``comparison.headline``.

    If the two runs' iterations do unequal amounts of work, windows per microbatch are compared.

    Raises:
        InputError: The ratio ``comparison.headline`` is unknown for a run.
    """
    worse, headline = [], comparison.headline
    cells, longest_cells = comparison.ratios[headline], comparison.ratios[comparison.longest]
    for run, cell, longest in list(zip(comparison.runs, cells, longest_cells, strict=True))[1:]:
        if cell.bubble is None or cell.equal_work_ns is None:
            raise InputError(
                f"{run.path}: the {headline} ratio of this run or of the first run is unknown, so "
                "they cannot be compared: see the limitations that bubbleviz analyze lists"
            )
        sign = cell.equal_work_ns.significant_sign
        if longest.equal_work_ns is not None:
            sign = longest.equal_work_ns.significant_sign or sign
        if sign > 0 or (sign == 0 and cell.bubble.significant_sign > 0):
            worse.append(run.title)
    return worse


def make_titles(paths: Sequence[str]) -> tuple[str, ...]:
    """Return a distinct title for each path: its last components, without the file suffix.

    The titles have as few components as it takes to distinguish all paths. If paths differ only in
    their suffixes, the titles are the full paths. Identical paths are numbered, as in ``run (2)``.
    """
    parts = [PurePath(path).parts or ("",) for path in paths]
    without_suffix = [(*path[:-1], PurePath(path[-1]).stem or path[-1]) for path in parts]
    for depth in range(1, max(map(len, without_suffix), default=0) + 1):
        titles = ["/".join(path[-depth:]) for path in without_suffix]
        if len(set(titles)) == len(set(paths)):
            paths = titles
            break
    used_titles: set[str] = set()
    unique_titles = []
    for path in paths:
        candidates = (path if n == 1 else f"{path} ({n})" for n in count(1))
        unique_titles.append(next(title for title in candidates if title not in used_titles))
        used_titles.add(unique_titles[-1])
    return tuple(unique_titles)


def _compare_ratio(name: str, pair: ReportPair) -> Cell:
    """Return a ratio of the later run, along with its differences from the earlier run.

    The bubble ratios and the window lengths are compared. If iterations do unequal amounts of work,
    the window lengths per microbatch are compared as well. If either run does not have the ratio,
    the cell contains no differences.

    Args:
        name: Name of the ratio.
        pair: The reports of both runs.
    """
    earlier, later = find_ratio(pair.earlier, name), find_ratio(pair.later, name)
    if earlier is None or later is None:
        return Cell(later)
    per_microbatch = None
    if pair.is_per_microbatch:
        per_microbatch = compare_means(
            _scale_average(earlier.window_ns, count_microbatches(pair.earlier)),
            _scale_average(later.window_ns, count_microbatches(pair.later)),
        )
    return Cell(
        later,
        compare_means(earlier.bubble, later.bubble),
        compare_means(earlier.window_ns, later.window_ns),
        per_microbatch,
    )


def _scale_average(average: Average, divisor: int) -> Average:
    """Divide all values in an average by ``divisor``, except ``n``. Unknown values remain None."""
    values = (average.mean, average.std, average.min, average.max, average.ci95)
    mean, std, low, high, ci95 = (None if value is None else value / divisor for value in values)
    return Average(mean, std, low, high, ci95, average.n)


def _describe_limits(
    runs: Sequence[ComparedRun], pairs: Sequence[ReportPair], ratios: Mapping[str, tuple[Cell, ...]]
) -> Iterator[str]:
    """Yield sentences about everything that limits the validity of a comparison.

    In this order:

    - restrictions, and time lost inside or outside operations;
    - limits of each pair of runs (:func:`_describe_pair_limits`);
    - too few iterations for a test;
    - contradictory clocks;
    - runs that differ in their primary ratio, number of ranks or version.

    Args:
        runs: The runs.
        pairs: The first run, paired with each of the other runs.
        ratios: Cells, keyed by the name of the ratio.
    """
    headline = choose_headline_ratio([run.saved for run in runs])
    yield from _describe_restrictions(runs)
    for run in runs:
        kernel_time = describe_kernel_time(run.saved)
        if kernel_time is not None:
            yield (
                f"{run.title}: {to_one_line(kernel_time, 200)}. Much time is lost inside or "
                "outside operations, and the ratios do not show it"
            )
    for index, pair in enumerate(pairs, 1):
        cells = {name: (row[0], row[index]) for name, row in ratios.items()}
        yield from _describe_pair_limits(runs[0], runs[index], pair, cells, headline)
    if short_runs := [run.title for run in runs if run.saved.summary.iterations < 2]:
        names = ", ".join(short_runs)
        yield f"a significance test needs two iterations of each run; these have fewer: {names}"
    if contradicted := [run.title for run in runs if has_contradicting_clocks(run.saved)]:
        names = ", ".join(contradicted)
        yield f"ratios rely on clocks that contradict each other in these runs: {names}"
    yield from _describe_mixture(runs, headline)


def _describe_restrictions(runs: Sequence[ComparedRun]) -> Iterator[str]:
    """Yield a sentence about each run whose report has restrictions."""
    for run in runs:
        restrictions = read_restrictions(run.saved.restrictions)
        if restrictions:
            reasons = "; ".join(restriction.text for restriction in restrictions)
            yield (
                f"{run.title}: {reasons}; its profiles are incomplete, so differences may not come "
                "from the pipeline"
            )


def _describe_pair_limits(
    first: ComparedRun,
    other: ComparedRun,
    pair: ReportPair,
    cells: Mapping[str, tuple[Cell, Cell]],
    headline: str,
) -> Iterator[str]:
    """Yield sentences about the limits of the comparison of one run with the first run.

    The limits are:

    - ratios that are smaller even though their windows are longer;
    - differences within clock uncertainty;
    - different numbers of microbatches in iterations that do the same work.

    Args:
        first: The first run.
        other: The other run.
        pair: The reports of both runs.
        cells: Cells of both runs, keyed by the name of the ratio.
        headline: Name of the ratio that is used to compare runs.
    """
    if gains := {name: both for name, both in cells.items() if _is_smaller_but_longer(both[1])}:
        yield _describe_no_gain(headline, gains, other)
    if uncertain := [name for name, both in cells.items() if _is_within_clock_bounds(*both)]:
        yield (
            f"{other.title}: {' and '.join(uncertain)} may be the same as in {first.title} within "
            "clock uncertainty, which the test does not include"
        )
    if not isinstance(pair, RunPair) or pair.is_per_microbatch:
        return
    n_earlier, n_later = pair.earlier.microbatches, pair.later.microbatches
    if n_earlier and n_later and n_earlier != n_later:
        yield (
            f"{other.title}: iterations with {format_count(n_later, 'microbatch', 'microbatches')} "
            f"do about as much work as iterations with {n_earlier:,} in {first.title}, so whole "
            "iterations are compared"
        )


def _is_smaller_but_longer(cell: Cell) -> bool:
    """Return whether a ratio is smaller even though its window (for equal work) is longer.

    The differences need not be significant.
    """
    if cell.bubble is None or cell.equal_work_ns is None:
        return False
    return cell.bubble.mean < 0 < cell.equal_work_ns.mean


def _describe_no_gain(
    headline: str, gains: Mapping[str, tuple[Cell, Cell]], run: ComparedRun
) -> str:
    """Return a sentence saying that a smaller ratio saved no time, because its window is longer.

    If this is true of several ratios, the sentence gives the values of only one of them and names
    the others. This is the headline ratio if ``gains`` contains it, otherwise the alphabetically
    first ratio.

    Args:
        headline: Name of the ratio that is used to compare runs.
        gains: Cells of the first run and of ``run``, keyed by the name of the ratio.
        run: The later run.
    """
    name, *other_names = sorted(gains, key=lambda name: name != headline)
    earlier, later = gains[name]
    window = "window"
    if later.microbatch_ns is not None:
        window += " per microbatch"
    likewise = f". The same applies to {', '.join(other_names)}" if other_names else ""
    return (
        f"{run.title}: the smaller {name} ratio saves no time, because the {window} is longer: "
        f"{_format_ratio(later.ratio)} instead of {_format_ratio(earlier.ratio)}{likewise}"
    )


def _format_ratio(ratio: RatioSummary | None) -> str:
    if ratio is None or ratio.bubble.mean is None or ratio.window_ns.mean is None:
        return "unknown"
    return f"{format_percent(ratio.bubble.mean)} of {ratio.window_ns.mean / 1e6:,.3f} ms"


def _is_within_clock_bounds(first: Cell, other: Cell) -> bool:
    """Return whether two ratios differ significantly even though their clock bounds overlap."""
    if first.ratio is None or other.ratio is None or other.bubble is None:
        return False
    first_interval, other_interval, p = first.ratio.interval, other.ratio.interval, other.bubble.p
    if p is None or p >= SIGNIFICANT or first_interval is None or other_interval is None:
        return False
    return max(first_interval[0], other_interval[0]) <= min(first_interval[1], other_interval[1])


def _describe_mixture(runs: Sequence[ComparedRun], headline: str) -> Iterator[str]:
    """Yield sentences about properties that should be equal in all reports but differ.

    The properties are the primary ratio, the number of ranks and the version of bubbleviz.

    Args:
        runs: The runs.
        headline: Name of the ratio that is used to compare runs.
    """
    primary = _list_if_different(runs, [run.saved.headline for run in runs])
    if primary is not None:
        yield f"the primary ratios differ ({primary}); {_explain_headline(headline, runs)}"
    ranks = _list_if_different(runs, [f"{len(run.saved.ranks):,}" for run in runs])
    if ranks is not None:
        yield (
            f"the runs have different numbers of ranks ({ranks}): these are different jobs, not "
            "one job before and after a change, so no advice counts as followed"
        )
    versions = _list_if_different(runs, [run.saved.version for run in runs])
    if versions is not None:
        yield f"the reports were written by different versions of bubbleviz ({versions})"


def _list_if_different(runs: Sequence[ComparedRun], values: Sequence[str]) -> str | None:
    """Return text with each run's title and value, or None if all values are equal."""
    if len(set(values)) == 1:
        return None
    return ", ".join(f"{run.title} {value}" for run, value in zip(runs, values, strict=True))


def _explain_headline(headline: str, runs: Sequence[ComparedRun]) -> str:
    """Return a clause that explains why runs are compared by the ratio ``headline``."""
    if not is_common_ratio(headline, [run.saved for run in runs]):
        return "no ratio is known for all runs, so no run is called worse than another"
    reason = "which is known for all runs"
    if headline in LONGEST_FIRST:
        reason = "whose window covers most of their time"
    return f"the runs are compared by {headline}, {reason}"
