"""Sentence on, and table of, the ranks that arrive last at barriers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bubbleviz.explain.late_arrivals import Lateness
from bubbleviz.model.texts import format_count
from bubbleviz.render import document as doc

#: Maximum number of ranks in the table.
_MAX_RANKS = 12
#: Minimum time in ns that three decimals of a millisecond show.
_VISIBLE_NS = 500


def list_late_sentence(sentence: str) -> Iterator[doc.Block]:
    """Yield a line on the rank or GPU for which others usually wait. Yields nothing for ""."""
    if sentence:
        yield doc.Sentence(sentence, lead="Late: ")


def list_late_ranks(
    lateness: Lateness | None, get_name: Callable[[int], str]
) -> Iterator[doc.Table]:
    """Yield a table of the ranks that arrive last at barriers. Yields nothing if it is unknown.

    Args:
        lateness: Which ranks arrive last at barriers, or None if unknown.
        get_name: Function that returns the display name of a rank, given its index.
    """
    if lateness is None or not lateness.ranks:
        return
    n_steps = lateness.n_steps
    rows = [
        {
            "rank": get_name(rank.rank),
            "steps": f"{rank.steps:,}",
            "barriers": f"{rank.barriers:,}",
            "late": doc.format_ms(rank.late_ns / n_steps),
            **{
                name: _format_part(dict(rank.parts)[name] / n_steps)
                for name in lateness.arrivals.names
            },
        }
        for rank in lateness.ranks[:_MAX_RANKS]
    ]
    barriers = format_count(len(lateness.arrivals), "barrier")
    hidden = (
        f"; time lost in the {lateness.hidden_part} is not visible" if lateness.hidden_part else ""
    )
    yield doc.Table(
        f"Ranks that arrive last at {barriers} in {format_count(n_steps, 'step')}, in ms per step"
        f"{hidden}",
        rows,
        n_omitted=len(lateness.ranks) - len(rows),
        left=("rank",),
    )


def _format_part(time_ns: float) -> str:
    """Format a time in ms with three decimals, without a sign if all decimals are zero."""
    return doc.format_ms(0.0 if abs(time_ns) < _VISIBLE_NS else time_ns)
