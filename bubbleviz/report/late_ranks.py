"""Describe the rank that arrives last at the barriers of a run, and what makes it late."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bubbleviz.explain.late_arrivals import OTHER, Lateness, LateRank
from bubbleviz.explain.run_lateness import BEFORE_FORWARD
from bubbleviz.model.grouping import find_distinct
from bubbleviz.model.texts import format_percent

#: A part of the step is named as the reason if it accounts for at least this fraction of the
#: lateness.
_MIN_PART = 0.5
#: A rank is named instead of its host if it accounts for at least this fraction of the host's
#: lateness.
_MIN_SHARE_OF_HOST = 0.75
#: Waiting for ranks in turn is described if it lasts for at least this fraction of a step, in at
#: least this number of steps.
_MIN_SHARE_OF_TURNS, _MIN_STEPS_OF_TURNS = 0.1, 3


def describe_lateness(
    lateness: Lateness | None, get_name: Callable[[int], str], hosts: Sequence[str]
) -> str:
    """Return sentences on the rank, or the host, for which others usually wait, or "".

    If there is none, but ranks wait long for different ranks in turn, the sentence says so.

    The host is described if it has several late ranks: no rank accounts for three quarters of the
    host's lateness.

    Args:
        lateness: Which ranks arrive last at barriers, or None if unknown.
        get_name: Function that returns the display name of a rank, given its index.
        hosts: Host of each rank.
    """
    if lateness is None:
        return ""
    main, late_host = lateness.main, lateness.find_late_host(hosts)
    if late_host is not None:
        max_late_ns = max(
            rank.late_ns for rank in lateness.ranks if hosts[rank.rank] == late_host.host
        )
        if max_late_ns < _MIN_SHARE_OF_HOST * late_host.late.late_ns:
            subject = f"a rank of host {late_host.host} arrives"
            return _describe_late(lateness, late_host.late, subject)
    if main is None:
        return _describe_turns(lateness)
    return _describe_late(lateness, main, f"{get_name(main.rank)} arrives")


def _describe_turns(lateness: Lateness) -> str:
    """Return a sentence on the waiting for different ranks in turn, or "" if it is short.

    Different groups of ranks wait at the same time, so the result is "" if there are several.
    """
    n_rank_sets = len(find_distinct(lateness.arrivals.rank_set))
    if lateness.n_steps < _MIN_STEPS_OF_TURNS or n_rank_sets > 1:
        return ""
    late_ns = sum(rank.late_ns for rank in lateness.ranks) / lateness.n_steps
    if not 0 < _MIN_SHARE_OF_TURNS * lateness.step_ns <= late_ns:
        return ""
    share = format_percent(late_ns / lateness.step_ns)
    return (
        f"ranks take turns in arriving last at barriers; the others wait {_format_ms(late_ns)} per "
        f"step ({share}) for them, so the work of a step is uneven"
    )


def _describe_late(lateness: Lateness, late: LateRank, subject: str) -> str:
    """Return sentences on a late rank or host.

    Args:
        lateness: Which ranks arrive last at barriers.
        late: Lateness of the rank or host.
        subject: Subject and verb of the first sentence.
    """
    n_steps = lateness.n_steps
    late_ns = late.late_ns / n_steps
    share = format_percent(late_ns / lateness.step_ns)
    sentences = (
        f"{subject} last at barriers in {late.steps:,} of {n_steps:,} steps; the others wait "
        f"{_format_ms(late_ns)} per step ({share}) for it",
        describe_part(late, n_steps),
        f"Its {lateness.hidden_part} may be slow, too: waiting was not recorded apart from it"
        if lateness.hidden_part
        else "",
    )
    return ". ".join(filter(None, sentences))


def describe_part(rank: LateRank, n_steps: int) -> str:
    """Return a sentence on the part of the step that makes a rank late.

    Args:
        rank: The rank.
        n_steps: Number of steps over which its lateness is averaged.
    """
    part, time_ns = rank.parts[0]
    divided_ns = sum(time for _, time in rank.parts)
    if divided_ns <= 0:
        return "The part of the step that makes it late is unknown"
    if time_ns < _MIN_PART * divided_ns:
        return "No single part of the step makes it late"
    ms = f"{_format_ms(time_ns / n_steps)} per step"
    if part == BEFORE_FORWARD:
        return f"It begins its first forward {ms} later: check data loading there"
    if part == OTHER:
        return f"It spends {ms} more outside of the named parts of the step"
    return f"Its {part} takes {ms} longer"


def _format_ms(time_ns: float) -> str:
    """Format a time in milliseconds."""
    return f"{time_ns / 1e6:,.3f} ms"
