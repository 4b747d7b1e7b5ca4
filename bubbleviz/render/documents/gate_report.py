"""The verdict of a gate as Markdown, for the summary of a job or a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.model.texts import counted
from bubbleviz.render.documents.markdown_parts import cause_line, mean_of
from bubbleviz.render.markdown import code, table, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubbleviz.report.compare.gate import Check
    from bubbleviz.report.saved import SavedReport


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
