"""Text output about a running job: one line per iteration, or a page that fills the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from bubbleviz.analyses.watch.measurement import Observation
from bubbleviz.analyses.watch.watched_iterations import LatePace, RankPace, WatchedIteration
from bubbleviz.errors import BubblevizError
from bubbleviz.explain.run_lateness import BEFORE_FORWARD
from bubbleviz.model import texts
from bubbleviz.model.columns import NONE
from bubbleviz.model.texts import quote_for_shell
from bubbleviz.recording_layout import SUFFIX
from bubbleviz.render.document import Line, Span
from bubbleviz.sources.paths import find_profiles

_BARS = "▁▂▃▄▅▆▇█"
#: Maximum number of causes, and of slow ranks, to show.
_CAUSES, _SHOWN_RANKS = 4, 5
#: Number of recent iterations that the page searches for a long pause.
_PAUSES = 8
#: Maximum widths of the trend and of a bar, and width of the text to the left of a bar, in columns.
_WIDTH, _BAR, _CAUSE = 60, 30, 29
#: Maximum number of characters in a hostname, and in the advice.
_MAX_HOST, _MAX_ADVICE = 60, 400
#: Minimum range of the trend's scale, so that noise does not fill the scale.
_MIN_RANGE = 0.02


def format_line(iteration: WatchedIteration) -> str:
    """Format an iteration as one line with its ratio, length, main causes, late and slow rank.

    If the pause before the iteration was long, the line also contains the pause.
    """
    value = iteration.ratios.get(iteration.headline)
    parts = [
        f"iteration {iteration.number}",
        f"{iteration.headline} {'unknown' if value is None else texts.format_percent(value)}",
        f"{iteration.length_ns / 1e6:,.3f} ms",
        _format_ranks(iteration),
    ]
    causes = " ".join(
        f"{own.name} {texts.format_percent(own.share)}" for own in iteration.parts[:_CAUSES]
    )
    if causes:
        parts.append(causes)
    if iteration.usual_pause_ns != NONE:
        parts.append(_format_pause(iteration))
    if iteration.late_rank is not None:
        parts.append(f"late: {_format_late(iteration.late_rank)}")
    if iteration.slow:
        parts.append(f"slow: {_format_slow(iteration.slow[0])}")
    return "; ".join(parts)


def _format_ranks(iteration: WatchedIteration) -> str:
    if 0 < iteration.world_size != iteration.ranks:
        return f"{iteration.ranks} of {iteration.world_size} ranks"
    return texts.format_count(iteration.ranks, "rank")


def _format_late(late: LatePace) -> str:
    """Describe a rank that arrived last at barriers: how late it was, and in which part."""
    host = texts.to_one_line(late.host, _MAX_HOST)
    longer = f"{late.part_ns / 1e6:,.3f} ms"
    part = f": {late.part} took {longer} longer" if late.part else ""
    if late.part == BEFORE_FORWARD:
        part = f": its first forward began {longer} later"
    return f"rank {late.rank}{f' ({host})' if host else ''} by {late.late_ns / 1e6:,.3f} ms{part}"


def _format_slow(slow: RankPace) -> str:
    """Describe a slow rank: where it runs, its excess compute time, and since when it is slow."""
    stage = "" if slow.stage is None else f"stage {slow.stage}"
    location = ", ".join(filter(None, (stage, texts.to_one_line(slow.host, _MAX_HOST))))
    clock = datetime.fromtimestamp(slow.since_utc_ns // 10**9, timezone.utc)
    return (
        f"rank {slow.rank}{f' ({location})' if location else ''} has computed "
        f"{texts.format_percent(slow.excess)} longer than others since iteration "
        f"{slow.slow_since} ({clock:%H:%M:%S} UTC)"
    )


def _format_pause(iteration: WatchedIteration) -> str:
    return (
        f"started after a pause of {iteration.pause_ns / 1e6:,.3f} ms (usually "
        f"{iteration.usual_pause_ns / 1e6:,.3f} ms): data loading, checkpoint or logging"
    )


#: Message that states which files ``watch`` reads.
READ = "watch reads recordings that ranks write with bubbleviz.annotate (bubbleviz guide record)"


def describe_waiting(folder: str) -> str:
    """Return the text shown until the first iteration is complete.

    The text says whether the folder does not exist, contains no recording, or contains no complete
    iteration.
    """
    if not Path(folder).exists():
        return f"{folder}: does not exist yet; waiting for it"
    try:
        paths = [file.path for file in find_profiles([folder])]
    except BubblevizError:
        return f"{folder}: contains no recording yet; {READ}"
    if not any(path.endswith(SUFFIX) for path in paths):
        analyze = f"bubbleviz analyze {quote_for_shell(folder)}"
        return f"{folder}: contains no recording yet; {READ}. For profiles, run: {analyze}"
    return f"{folder}: no complete iteration yet; an iteration is written when the next one starts"


def format_page(
    folder: str, observation: Observation, events: tuple[str, ...], width: int
) -> Iterator[Line]:
    """Yield the lines of the terminal page.

    Until an iteration has been measured, the page says what is missing, unless some files are
    unreadable. The events come last.

    Args:
        folder: The watched folder.
        observation: The latest measurements.
        events: The latest events, one line each.
        width: Width of the terminal in columns.
    """
    if observation.trend:
        yield from _format_lines(folder, observation, width)
    elif not observation.unreadable:
        yield (Span(describe_waiting(folder)),)
    for event in events:
        yield (Span(f"  {event}", "yellow"),)


def _format_lines(folder: str, observation: Observation, width: int) -> Iterator[Line]:
    """Yield lines about the latest iteration, the trend, outlying ranks, and the advice."""
    newest = observation.trend[-1]
    value = newest.ratios.get(newest.headline)
    ratio_text = "unknown" if value is None else texts.format_percent(value)
    yield (
        Span(f"{newest.headline} {ratio_text}", "bold"),
        Span(
            f"   iteration {newest.number}, {newest.length_ns / 1e6:,.3f} ms, "
            f"{_format_ranks(newest)}, "
        ),
        Span(f"{texts.format_count(observation.total, 'iteration')} measured in {folder}"),
    )
    values = [iteration.ratios.get(newest.headline) for iteration in observation.trend]
    bars, scale = _format_trend(values[-min(_WIDTH, width) :])
    if len(bars) + 2 + len(scale) <= width:
        yield (Span(f"{bars}  {scale}", "cyan"),)
    else:
        yield from ((Span(bars, "cyan"),), (Span(scale, "cyan"),))
    yield ()
    yield from _format_causes(newest, width)
    paused = [
        iteration for iteration in observation.trend[-_PAUSES:] if iteration.usual_pause_ns != NONE
    ]
    if paused:
        yield (Span(f"Iteration {paused[-1].number} {_format_pause(paused[-1])}", "red"),)
    if newest.late_rank is not None:
        yield (Span(f"Late: {_format_late(newest.late_rank)}", "red"),)
    for slow in newest.slow[:_SHOWN_RANKS]:
        yield (Span(f"Slow: {_format_slow(slow)}", "red"),)
    if observation.silent:
        ranks = texts.list_first(map(str, observation.silent), 8)
        noun = "rank" if len(observation.silent) == 1 else "ranks"
        yield (Span(f"Silent: {noun} {ranks}", "red"),)
    if observation.advice:
        advice = texts.to_one_line(observation.advice, _MAX_ADVICE)
        yield from ((), (Span(f"What to do first: {advice}"),))


def _format_causes(iteration: WatchedIteration, width: int) -> Iterator[Line]:
    """Yield a heading, and a bar for each of the ``_CAUSES`` largest parts of the bubble.

    Args:
        iteration: The iteration.
        width: Width of the terminal in columns.
    """
    yield (Span("What the bubble is made of, % of the window", "bold"),)
    largest = max((part.share for part in iteration.parts), default=0.0)
    for part in iteration.parts[:_CAUSES]:
        bar = "█" * max(1, round(min(_BAR, width - _CAUSE) * part.share / largest))
        yield (Span(f"  {part.name:<16}{texts.format_percent(part.share):>9}  {bar}"),)
    if not iteration.parts:
        yield (Span("  nothing"),)


def _format_trend(values: list[float | None]) -> tuple[str, str]:
    """Return a text with one bar per value (a space if unknown) and a description of the scale.

    The scale extends from the smallest to the largest value, but spans at least ``_MIN_RANGE``. The
    description of the scale is "" if no value is known.
    """
    known_values = [value for value in values if value is not None]
    if not known_values:
        return " " * len(values), ""
    lowest, steps = min(known_values), len(_BARS) - 1
    value_range = max(max(known_values) - lowest, _MIN_RANGE)
    bars = (
        " " if value is None else _BARS[round(steps * (value - lowest) / value_range)]
        for value in values
    )
    low, high = texts.format_percent(lowest), texts.format_percent(lowest + value_range)
    scale = f"{_BARS[0]} {low} to {_BARS[-1]} {high}"
    return "".join(bars), f"{scale}, {texts.format_count(len(known_values), 'iteration')}"
