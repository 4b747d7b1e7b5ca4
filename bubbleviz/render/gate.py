"""The checks of the gate as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from bubbleviz.model.texts import counted, document_text
from bubbleviz.render import document as doc
from bubbleviz.render.comparison import describe_cause
from bubbleviz.render.markdown import markdown
from bubbleviz.report.gate import Check, describe_verdict
from bubbleviz.report.ratio_summary import ReportSummary
from bubbleviz.report.restrictions import list_entries


def gate_markdown(
    saved: ReportSummary, checks: Sequence[Check], promises: Sequence[tuple[str, bool]] = ()
) -> str:
    """Return the checks of a report as Markdown: a verdict, one row per limit, and the first cause.

    Args:
        saved: The report.
        checks: Its checks.
        promises: A line on each promise, and whether it was kept.
    """
    failed = [check for check in checks if not check.passed]
    has_broken_promise = not all(is_kept for _, is_kept in promises)
    summary = f"✅ {counted(len(checks), 'value')} within the limit"
    if failed:
        summary = f"❌ {counted(len(failed), 'value')} above the limit, or not known to be below"
    lines = [check.line for check in failed]
    lines += [line for line, _ in promises]
    lines += describe_cause(saved)
    blocks: list[doc.Block] = [
        *([doc.Sentence(summary, style="bold")] if checks else []),
        doc.Table("", [_make_row(check) for check in checks], left=("ratio", "verdict")),
        doc.bullets(lines),
    ]
    verdict = describe_verdict(not failed and not has_broken_promise)
    return markdown(blocks, f"Pipeline bubbles: {verdict}")


def _make_row(check: Check) -> dict[str, str]:
    """Return the row of a check, keyed by column."""
    in_ms = check.limit.unit == "ms"
    return {
        "ratio": check.name,
        "mean": doc.milliseconds(1e6 * check.value) if in_ms else doc.in_percent(check.value),
        "SD": "" if in_ms else doc.in_percent(check.ratio.bubble.std),
        "limit": check.limit.written,
        "iterations": str(check.ratio.bubble.n),
        "verdict": describe_verdict(check.passed),
    }


def gate_json(
    saved: ReportSummary, checks: Sequence[Check], promises: Sequence[tuple[str, bool]] = ()
) -> str:
    """Return the checks of a report as JSON, with values and limits as fractions or in ms.

    Args:
        saved: The report.
        checks: Its checks.
        promises: A line on each promise, and whether it was kept.
    """
    verdicts = [check.passed for check in checks] + [is_kept for _, is_kept in promises]
    return document_text(
        "bubbleviz.gate/1",
        {
            "passed": all(verdicts),
            "checks": [
                {
                    "ratio": check.limit.ratio,
                    "of": "window" if check.limit.window else "bubble",
                    "unit": "ms" if check.limit.unit == "ms" else None,
                    "value": check.value,
                    "most": check.limit.most,
                    "passed": check.passed,
                    "text": check.line,
                }
                for check in checks
            ],
            "promises": [{"text": text, "kept": is_kept} for text, is_kept in promises],
            "restrictions": list_entries(saved.restrictions),
        },
    )
