"""Renders the checks made by the command ``gate`` as Markdown or JSON."""

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
    """Return a report's checks as Markdown.

    The text contains the verdict and a table with one row per limit. One line for each failed check
    and each promise follows, and then the largest cause of idle time.

    Args:
        saved: The report.
        checks: Results of comparing a bubble ratio or a time with its limit.
        promises: (line, is_kept) pairs, one for each saving promised by earlier advice.
    """
    failed = [check for check in checks if not check.passed]
    has_broken_promise = not all(is_kept for _, is_kept in promises)
    summary = f"✅ {format_count(len(checks), 'value')} within the limit"
    if failed:
        summary = f"❌ {format_count(len(failed), 'value')} above or possibly above the limit"
    lines = [check.line for check in failed]
    lines += [line for line, _ in promises]
    lines += describe_cause(saved)
    blocks: list[doc.Block] = [doc.Sentence(summary, style="bold")] if checks else []
    rows = [_make_row(check) for check in checks]
    blocks += [doc.Table("", rows, left=("ratio", "verdict")), doc.make_bullets(lines)]
    verdict = describe_verdict(not failed and not has_broken_promise)
    return render_markdown(blocks, f"Pipeline bubbles: {verdict}")


def _make_row(check: Check) -> dict[str, str]:
    """Return the table cells for a check, keyed by column header.

    Values are in percent. If the limit is in ms, the mean is in ms and the standard deviation is
    left blank.
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
    """Return a report's checks as JSON text. Ratios are fractions of 1, and times are in ms.

    Args:
        saved: The report.
        checks: Results of comparing a bubble ratio or a time with its limit.
        promises: (line, is_kept) pairs, one for each saving promised by earlier advice.
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
    """Return the result of a check as JSON values.

    The values have the following keys:

    - ``ratio``: name of the ratio.
    - ``of``: "window" if the limit applies to the window length, or "bubble".
    - ``unit``: "ms", or None if the value is a fraction.
    - ``value`` and ``most``: the checked value and its limit.
    - ``passed``: whether the check passed.
    - ``text``: the line that is printed for the check.
    """
    limit = check.limit
    return {
        "ratio": limit.ratio,
        "of": limit.kind.value,
        "unit": "ms" if limit.unit == "ms" else None,
        "value": check.value,
        "most": limit.maximum,
        "passed": check.passed,
        "text": check.line,
    }
