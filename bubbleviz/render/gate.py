"""The checks of the gate as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bubbleviz.model.texts import format_count, format_document
from bubbleviz.render import document as doc
from bubbleviz.render.comparison import describe_cause
from bubbleviz.render.markdown import render_markdown
from bubbleviz.report.gate import Check, describe_verdict
from bubbleviz.report.ratio_summary import ReportSummary
from bubbleviz.report.restrictions import list_entries


def format_markdown(
    saved: ReportSummary, checks: Sequence[Check], promises: Sequence[tuple[str, bool]] = ()
) -> str:
    """Return the checks of a report as Markdown: a verdict, one row per limit, and the first cause.

    Args:
        saved: The report.
        checks: Checks of the report.
        promises: A line on each promise of earlier advice, and whether the promise was kept.
    """
    failed = [check for check in checks if not check.passed]
    has_broken_promise = not all(is_kept for _, is_kept in promises)
    summary = f"✅ {format_count(len(checks), 'value')} within the limit"
    if failed:
        summary = (
            f"❌ {format_count(len(failed), 'value')} above the limit, or not known to be below"
        )
    lines = [check.line for check in failed]
    lines += [line for line, _ in promises]
    lines += describe_cause(saved)
    blocks: list[doc.Block] = [doc.Sentence(summary, style="bold")] if checks else []
    rows = [_make_row(check) for check in checks]
    blocks += [doc.Table("", rows, left=("ratio", "verdict")), doc.make_bullets(lines)]
    verdict = describe_verdict(not failed and not has_broken_promise)
    return render_markdown(blocks, f"Pipeline bubbles: {verdict}")


def _make_row(check: Check) -> dict[str, str]:
    """Return the ratio, mean, limit and verdict of a check as texts, keyed by column.

    A limit in ms has the value in ms and no standard deviation; all others are in percent.
    """
    bubble, is_in_ms = check.ratio.bubble, check.limit.unit == "ms"
    mean, deviation = doc.format_percent_cell(check.value), doc.format_percent_cell(bubble.std)
    if is_in_ms:
        mean, deviation = doc.format_ms(1e6 * check.value), ""
    return {
        "ratio": check.name,
        "mean": mean,
        "SD": deviation,
        "limit": check.limit.written,
        "iterations": str(bubble.n),
        "verdict": describe_verdict(check.passed),
    }


def format_json(
    saved: ReportSummary, checks: Sequence[Check], promises: Sequence[tuple[str, bool]] = ()
) -> str:
    """Return the checks of a report as JSON, with values and limits as fractions or in ms.

    Args:
        saved: The report.
        checks: Checks of the report.
        promises: A line on each promise of earlier advice, and whether the promise was kept.
    """
    verdicts = [check.passed for check in checks] + [is_kept for _, is_kept in promises]
    return format_document(
        "bubbleviz.gate/1",
        {
            "passed": all(verdicts),
            "checks": [_make_check_values(check) for check in checks],
            "promises": [{"text": text, "kept": is_kept} for text, is_kept in promises],
            "restrictions": list_entries(saved.restrictions),
        },
    )


def _make_check_values(check: Check) -> dict[str, Any]:
    """Return the ratio, value, limit and verdict of a check as JSON values.

    ``of`` tells whether the length of the window or the bubble is limited. ``unit`` is null if the
    value is a fraction of 1.
    """
    limit = check.limit
    return {
        "ratio": limit.ratio,
        "of": "window" if limit.window else "bubble",
        "unit": "ms" if limit.unit == "ms" else None,
        "value": check.value,
        "most": limit.maximum,
        "passed": check.passed,
        "text": check.line,
    }
