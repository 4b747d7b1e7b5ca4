"""Text: a running job as one line an iteration, and as a page of the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from bubbleviz.analyses.watch.measurement import RankPace, Sight, WatchedIteration
from bubbleviz.model.columns import NONE
from bubbleviz.model.texts import percent

_BARS = "▁▂▃▄▅▆▇█"
#: Causes and slow ranks that are shown.
_CAUSES, _RANKS = 4, 5
#: A pause is shown for so many iterations.
_PAUSES = 8
_WIDTH = 60


def line_of(iteration: WatchedIteration) -> str:
    """Return an iteration on one line."""
    value = iteration.ratios.get(iteration.headline)
    parts = [
        f"iteration {iteration.number}",
        f"{iteration.headline} {'unknown' if value is None else percent(value)}",
        f"{iteration.length_ns / 1e6:,.3f} ms",
        _ranks(iteration),
    ]
    causes = " ".join(f"{own.name} {percent(own.share)}" for own in iteration.parts[:_CAUSES])
    if causes:
        parts.append(causes)
    if iteration.usual_pause_ns != NONE:
        parts.append(_pause(iteration))
    if iteration.slow:
        parts.append(f"slow: {_slow(iteration.slow[0])}")
    return "; ".join(parts)


def _ranks(iteration: WatchedIteration) -> str:
    if 0 < iteration.world_size != iteration.ranks:
        return f"{iteration.ranks} of {iteration.world_size} ranks"
    return f"{iteration.ranks} {'rank' if iteration.ranks == 1 else 'ranks'}"


def _slow(slow: RankPace) -> str:
    host = f" ({slow.host})" if slow.host else ""
    clock = datetime.fromtimestamp(slow.since_utc_ns // 10**9, timezone.utc)
    return (
        f"rank {slow.rank}{host} computes {percent(slow.excess)} longer, since iteration "
        f"{slow.since} ({clock:%H:%M:%S} UTC)"
    )


def _pause(iteration: WatchedIteration) -> str:
    return (
        f"paused {iteration.pause_ns / 1e6:,.3f} ms before it (usually "
        f"{iteration.usual_pause_ns / 1e6:,.3f}): data loading, checkpoint or logging"
    )


def waiting(folder: str) -> str:
    """Return what is said as long as no iteration is whole."""
    if not Path(folder).exists():
        return f"{folder}: is not there yet; it is waited for"
    return f"{folder}: no whole iteration yet; it is written when the next one begins"


def page_of(folder: str, sight: Sight, told: tuple[str, ...]) -> RenderableType:
    """Return a page of the terminal.

    Args:
        folder: that is watched.
        sight: the newest one.
        told: the newest events.
    """
    if not sight.trend:
        return Group(Text(waiting(folder)), *(Text(f"  {event}", style="yellow") for event in told))
    return Group(*_lines(folder, sight, told))


def _lines(folder: str, sight: Sight, told: tuple[str, ...]) -> Iterator[Text]:
    newest = sight.trend[-1]
    value = newest.ratios.get(newest.headline)
    shown = "unknown" if value is None else percent(value)
    yield Text.assemble(
        (f"{newest.headline} {shown}", "bold"),
        f"   iteration {newest.number}, {newest.length_ns / 1e6:,.3f} ms, {_ranks(newest)}, ",
        f"{sight.total:,} measured in {folder}",
    )
    values = [own.ratios.get(newest.headline) for own in sight.trend]
    yield Text(f"{_sparkline(values[-_WIDTH:])}  {_span(values[-_WIDTH:])}", style="cyan")
    yield Text()
    yield Text("What the bubble is made of, % of the window", style="bold")
    largest = max((own.share for own in newest.parts), default=0.0)
    for own in newest.parts[:_CAUSES]:
        bar = "█" * max(1, round(30 * own.share / largest))
        yield Text(f"  {own.name:<16}{percent(own.share):>9}  {bar}")
    if not newest.parts:
        yield Text("  nothing")
    paused = [own for own in sight.trend[-_PAUSES:] if own.usual_pause_ns != NONE]
    if paused:
        yield Text(f"Iteration {paused[-1].number} {_pause(paused[-1])}", style="red")
    for slow in newest.slow[:_RANKS]:
        yield Text(f"Slow: {_slow(slow)}", style="red")
    if sight.silent:
        ranks = ", ".join(map(str, sight.silent[:8])) + (", ..." if len(sight.silent) > 8 else "")
        yield Text(f"Silent: {'rank' if len(sight.silent) == 1 else 'ranks'} {ranks}", style="red")
    if sight.advice:
        yield Text()
        yield Text(f"What to do first: {sight.advice}")
    for event in told:
        yield Text(f"  {event}", style="yellow")


def _sparkline(values: list[float | None]) -> str:
    """Return a bar an iteration, from 0 to the largest value; a blank where it is unknown."""
    largest = max((value for value in values if value is not None), default=0.0)
    steps = len(_BARS) - 1
    return "".join(
        " " if value is None else _BARS[round(steps * value / largest) if largest else 0]
        for value in values
    )


def _span(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    count = f"{len(known)} {'iteration' if len(known) == 1 else 'iterations'}"
    return f"{percent(min(known))} to {percent(max(known))} in {count}"
