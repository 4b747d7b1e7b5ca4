"""Tables of a benchmark, for a terminal and for the README."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.console import Console
from rich.table import Table

from bubbleviz.sources.nsys.files import bytes_of
from scripts.benchmark.example import ExampleOutcome
from scripts.benchmark.limits import EXAMPLE_CPU_S, peak_limit, ratio_limit
from scripts.benchmark.pairs import Outcome, Way
from scripts.benchmark.peers import PeerResult

_NOTHING = "-"


@dataclass(frozen=True)
class Grid:
    """A table of texts; its first column is the name of a row."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """Return it as Markdown."""
        rule = ("---", *("--:" for _ in self.header[1:]))
        lines = [f"| {' | '.join(row)} |" for row in (self.header, rule, *self.rows)]
        return "\n".join(lines)

    def print_on(self, console: Console) -> None:
        """Print it."""
        table = Table(box=None, pad_edge=False)
        for number, title in enumerate(self.header):
            table.add_column(title, justify="right" if number else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        console.print(table)


def ratio_grid(outcomes: Sequence[Outcome]) -> Grid:
    """Return one row per profile, way and yardstick."""
    header = (
        "file", "MB", "M rows", "reader", "jobs", "yardstick", "scan s", "bubbleviz s", "CPU s",
        "ratio", "limit", "peak MB", "limit MB",
    )  # fmt: skip
    rows = [_ratio_row(outcome, number) for outcome in outcomes for number in _yards(outcome)]
    return Grid(header, tuple(rows))


def _yards(outcome: Outcome) -> range:
    return range(len(outcome.scans))


def _ratio_row(outcome: Outcome, number: int) -> tuple[str, ...]:
    yardstick = list(outcome.scans)[number]
    recipe, way = outcome.profile.recipe, outcome.way
    limit = ratio_limit(
        recipe.kind, recipe.kernels, way.jobs, compiled=way.compiled, imports=yardstick.imports
    )
    if way.columnar:
        # The yardstick scans the SQLite file.
        limit = None
    most = peak_limit(recipe.kernels)
    return (
        outcome.profile.name,
        f"{bytes_of(str(way.path_of(outcome.profile))) / 1e6:.1f}",
        f"{outcome.profile.rows / 1e6:.2f}",
        way.reader,
        str(way.jobs),
        yardstick.name,
        f"{outcome.scan_s(yardstick):.2f}",
        f"{outcome.wall_s:.2f}",
        f"{outcome.cpu_s:.2f}",
        _marked(outcome.ratio(yardstick), limit, "{:.2f}"),
        _NOTHING if limit is None else f"{limit:.2f}",
        _marked(outcome.peak_bytes / 1e6, most and most / 1e6, "{:.0f}"),
        _NOTHING if most is None else f"{most / 1e6:.0f}",
    )


def _marked(value: float, limit: float | None, form: str) -> str:
    """Return a value, with ``!`` where it is beyond its limit."""
    return form.format(value) + ("!" if limit is not None and value > limit else "")


def example_grid(outcome: ExampleOutcome) -> Grid:
    """Return what the shipped example costs."""
    row = (
        "fixtures/1f1b",
        f"{outcome.start_cpu_s:.2f}",
        f"{outcome.wall_s:.2f}",
        _marked(outcome.cpu_s, EXAMPLE_CPU_S, "{:.2f}"),
        f"{EXAMPLE_CPU_S:.2f}",
        f"{outcome.peak_bytes / 1e6:.0f}",
    )
    return Grid(("example", "numpy CPU s", "bubbleviz s", "CPU s", "limit", "peak MB"), (row,))


def growth_grid(outcomes: Sequence[Outcome]) -> Grid:
    """Return by what each measure grows from one size to the next of a kind."""
    rows = [_growth_row(*pair) for chain in _chains(outcomes) for pair in pairwise(chain)]
    header = ("from, to", "reader", "jobs", "rows", "scan", "bubbleviz", "CPU", "peak")
    return Grid(header, tuple(rows))


def _chains(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Return the outcomes of each kind and way, by size."""
    chains: dict[tuple[str, Way], list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.profile.recipe.kernels):
        chains.setdefault((outcome.profile.recipe.kind, outcome.way), []).append(outcome)
    return list(chains.values())


def _growth_row(small: Outcome, large: Outcome) -> tuple[str, ...]:
    yardstick = next(iter(large.scans))
    factors = (
        large.profile.rows / small.profile.rows,
        large.scan_s(yardstick) / small.scan_s(yardstick),
        large.wall_s / small.wall_s,
        large.cpu_s / small.cpu_s,
        large.peak_bytes / small.peak_bytes,
    )
    return (
        f"{small.profile.name}, {large.profile.size}",
        small.way.reader,
        str(small.way.jobs),
        *(f"x {factor:.1f}" for factor in factors),
    )


def peer_grid(results: Sequence[PeerResult], outcome: Outcome) -> Grid:
    """Return how long peers take on a profile, and how many times as long as bubbleviz."""
    rows = [(f"bubbleviz, {outcome.profile.name}", f"{outcome.wall_s:.2f}", "1.0")]
    for result in results:
        if result.wall_s is None:
            rows.append((result.name, result.remark, _NOTHING))
        else:
            times = result.wall_s / outcome.wall_s
            rows.append((result.name, f"{result.wall_s:.2f}", f"{times:.1f}"))
    return Grid(("peer", "wall s", "times bubbleviz"), tuple(rows))
