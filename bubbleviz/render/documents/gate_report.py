"""The verdict of a gate as Markdown, for the summary of a job or a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.model.texts import counted, percent
from bubbleviz.render.markdown import code, table, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubbleviz.report.compare.gate import Check
    from bubbleviz.report.saved import Average, SavedReport


# What summaries in Markdown of one run and of several share.


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


def as_markdown(saved: SavedReport, checks: Sequence[Check]) -> str:
    """Return the checks of a report: the verdict, a row a limit, doubts, and the first cause."""
    failed = sum(not check.passed for check in checks)
    verdict = (
        f"❌ **{counted(failed, 'bubble ratio')} above the limit, or not known to be below**"
        if failed
        else f"✅ **{counted(len(checks), 'bubble ratio')} within the limit**"
    )
    rows = []
    for check in checks:
        ratio = saved.ratio(check.limit.ratio)
        rows.append(
            (
                code(check.limit.ratio),
                "-" if ratio is None else mean_of(ratio.bubble),
                text(check.limit.written),
                str(check.n),
                "ok" if check.passed else "**FAILED**",
            )
        )
    parts = [
        f"### Pipeline bubbles: {'FAILED' if failed else 'ok'}\n",
        f"{verdict}\n",
        table(("ratio", "mean ± SD", "limit", "iterations", "verdict"), rows),
        "".join(f"- {text(check.line)}\n" for check in checks if not check.passed)
        + cause_line(saved),
    ]
    return "\n".join(part for part in parts if part)
