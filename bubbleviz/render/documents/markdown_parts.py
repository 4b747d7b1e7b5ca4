"""What summaries in Markdown of one run and of several share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.model.texts import percent
from bubbleviz.render.markdown import text

if TYPE_CHECKING:
    from bubbleviz.report.saved import Average, SavedReport


def mean_of(average: Average) -> str:
    """Return a mean with its standard deviation, in percent; a dash for none."""
    if average.mean is None:
        return "-"
    spread = "" if average.std is None else f" ± {100 * average.std:.2f}"
    return f"{100 * average.mean:.2f}{spread} %"


def cause_line(saved: SavedReport, title: str = "") -> str:
    """Return what most of a run's bubble is, and what to do first; "" where nothing is known.

    Args:
        saved: the run.
        title: of the run, as Markdown, where there are several.
    """
    sentences = []
    if saved.first_cause is not None:
        label, share = saved.first_cause
        idle = "bubble" if saved.no_pipeline is None else "idle time"
        sentences.append(f"first cause: {text(label)}, {percent(share)} of the {idle}")
    if saved.advice is not None:
        sentences.append(f"what to do first: {text(saved.advice)}")
    if not sentences:
        return ""
    return "- " + (f"{title}: " if title else "") + "; ".join(sentences) + "\n"
