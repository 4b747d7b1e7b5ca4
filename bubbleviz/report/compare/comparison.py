"""Comparison: the ratios of several runs, each against the first, by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import PurePath

from bubbleviz.count.summary import Spread
from bubbleviz.report.compare.significance import Difference, difference
from bubbleviz.report.report import Report
from bubbleviz.report.saved import Average, Saved, SavedRatio

#: Below this, a difference is called significant.
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Run:
    """One run: its title, where it was read from, and what was read.

    ``report`` is None where it was read from a saved report, which holds no operations.
    """

    title: str
    path: str
    saved: Saved
    report: Report | None = None


@dataclass(frozen=True)
class Cell:
    """One ratio of one run, and how far it and its window (ns) are from the first run's.

    ``ratio`` is None where the run has no such ratio; the differences are None where either lacks
    it, and for the first run.
    """

    ratio: SavedRatio | None
    bubble: Difference | None = None
    window_ns: Difference | None = None


@dataclass(frozen=True)
class Row:
    """One ratio of all runs, in their order."""

    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Comparison:
    """Runs, their ratios by name, and what a reader must know of them, in sentences."""

    runs: tuple[Run, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def saved_of(report: Report) -> Saved:
    """Return what would be read of a report if it was saved."""
    summary = report.summary
    return Saved(
        version=report.version,
        headline=report.headline,
        ranks=len(report.ranks),
        iterations=summary.iterations,
        contradicted=any(report.contradicted(name) for name in summary.bubble_ratio),
        ratios=tuple(
            SavedRatio(
                name,
                _average(bubble),
                _average(summary.window_ns[name]),
                summary.bubble_interval.get(name),
            )
            for name, bubble in summary.bubble_ratio.items()
        ),
    )


def _average(spread: Spread) -> Average:
    return Average(spread.mean, spread.std if spread.n > 1 else None, spread.n)


def titles_of(paths: Sequence[str]) -> tuple[str, ...]:
    """Return a title for each path: as little of its end as tells them apart.

    Paths that are equal are numbered.
    """
    parts = [PurePath(path).parts or ("",) for path in paths]
    bare = [(*own[:-1], PurePath(own[-1]).stem or own[-1]) for own in parts]
    for depth in range(1, max(map(len, bare), default=0) + 1):
        titles = ["/".join(own[-depth:]) for own in bare]
        if len(set(titles)) == len(titles):
            return tuple(titles)
    taken: set[str] = set()
    numbered = []
    for path in paths:
        names = (path if n == 1 else f"{path} ({n})" for n in count(1))
        numbered.append(next(name for name in names if name not in taken))
        taken.add(numbered[-1])
    return tuple(numbered)


def compare(runs: Sequence[Run]) -> Comparison:
    """Return the ratios of runs side by side; differences are to the first."""
    names = dict.fromkeys(ratio.name for run in runs for ratio in run.saved.ratios)
    rows = tuple(_row(name, [run.saved.ratio(name) for run in runs]) for name in names)
    return Comparison(tuple(runs), rows, tuple(_notes(runs, rows)))


def _row(name: str, ratios: Sequence[SavedRatio | None]) -> Row:
    first = ratios[0]
    cells = [Cell(first)]
    for ratio in ratios[1:]:
        if first is None or ratio is None:
            cells.append(Cell(ratio))
            continue
        cells.append(
            Cell(
                ratio,
                difference(first.bubble, ratio.bubble),
                difference(first.window_ns, ratio.window_ns),
            )
        )
    return Row(name, tuple(cells))


def _notes(runs: Sequence[Run], rows: Sequence[Row]) -> Iterator[str]:
    for place, run in enumerate(runs):
        if gains := [row for row in rows if _longer(row, place)]:
            yield _no_gain(runs, gains, place)
        if doubts := [row.name for row in rows if _within_clocks(row, place)]:
            yield (
                f"{run.title}: the hosts' clocks allow it the same {' and '.join(doubts)} as "
                f"{runs[0].title}, which the test does not count"
            )
    if len({run.saved.headline for run in runs}) > 1:
        each = ", ".join(f"{run.title} {run.saved.headline}" for run in runs)
        yield f"the headlines differ ({each}); ratios are compared with those of their own name"
    if few := [run.title for run in runs if run.saved.iterations < 2]:
        yield f"a test takes two iterations of each run; too few in {', '.join(few)}"
    if wrong := [run.title for run in runs if run.saved.contradicted]:
        yield f"ratios need clocks that contradict each other in {', '.join(wrong)}"
    if len({run.saved.ranks for run in runs}) > 1:
        each = ", ".join(f"{run.title} {run.saved.ranks:,}" for run in runs)
        yield f"the runs have different numbers of ranks ({each})"
    if len({run.saved.version for run in runs}) > 1:
        each = ", ".join(f"{run.title} {run.saved.version}" for run in runs)
        yield f"the reports are of different versions of bubbleviz ({each})"


def _longer(row: Row, place: int) -> bool:
    """Tell whether a ratio became smaller and its window longer."""
    cell = row.cells[place]
    if cell.bubble is None or cell.window_ns is None:
        return False
    return cell.bubble.mean < 0 < cell.window_ns.mean


def _no_gain(runs: Sequence[Run], rows: Sequence[Row], place: int) -> str:
    """Return the sentence on ratios that are smaller in longer windows, the headline first."""
    ordered = sorted(rows, key=lambda row: row.name != runs[0].saved.headline)
    before, now = (_of_window(ordered[0].cells[which].ratio) for which in (0, place))
    others = ", ".join(row.name for row in ordered[1:])
    return (
        f"{runs[place].title}: a smaller ratio in a longer window is no gain of time: "
        f"{ordered[0].name} is {now}, after {before}" + (f"; likewise {others}" if others else "")
    )


def _of_window(ratio: SavedRatio | None) -> str:
    if ratio is None or ratio.bubble.mean is None or ratio.window_ns.mean is None:
        return "unknown"
    return f"{100 * ratio.bubble.mean:.2f} % of {ratio.window_ns.mean / 1e6:,.3f} ms"


def _within_clocks(row: Row, place: int) -> bool:
    """Tell whether a significant difference lies within what clocks allow both means."""
    first, cell = row.cells[0].ratio, row.cells[place]
    if first is None or cell.ratio is None or cell.bubble is None:
        return False
    if cell.bubble.p is None or cell.bubble.p >= SIGNIFICANT:
        return False
    one, two = first.interval, cell.ratio.interval
    return one is not None and two is not None and max(one[0], two[0]) <= min(one[1], two[1])
