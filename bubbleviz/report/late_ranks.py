"""Describe the rank that arrives last at the barriers of a run, and what makes it late."""

from __future__ import annotations

from bubbleviz.explain.late_arrivals import OTHER, Lateness, LateRank
from bubbleviz.explain.run_lateness import BEFORE_FORWARD
from bubbleviz.model.texts import format_percent

#: A part of the step is named as the reason if it accounts for at least this fraction of the
#: lateness.
_MIN_PART = 0.5


def describe_main_late_rank(lateness: Lateness, name: str) -> str:
    """Return sentences on the rank for which others usually wait.

    Args:
        lateness: Lateness with a main rank.
        name: Display name of the main rank.
    """
    rank = lateness.main
    if rank is None:
        return ""
    n_steps = lateness.n_steps
    late_ns = rank.late_ns / n_steps
    share = format_percent(late_ns / lateness.step_ns)
    sentences = (
        f"{name} arrives last at barriers in {rank.steps:,} of {n_steps:,} steps; the others wait "
        f"{_format_ms(late_ns)} per step ({share}) for it",
        describe_part(rank, n_steps),
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
