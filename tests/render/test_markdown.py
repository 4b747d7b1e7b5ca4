"""Markdown summaries of gates, comparisons and reports, also with hostile names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bubbleviz.cli.app import main
from bubbleviz.render.comparison import format_markdown as comparison_markdown
from bubbleviz.render.document import Sentence, Table, make_bullets
from bubbleviz.render.gate import format_markdown
from bubbleviz.render.markdown import escape_markdown, render_markdown
from bubbleviz.render.text.report import render_summary
from bubbleviz.report.compared.comparison import ComparedRun, compare
from bubbleviz.report.gate import check_limits, parse_limits
from bubbleviz.report.report import Report
from bubbleviz.report.summarizing import summarize
from bubbleviz.report.view import View
from tests.support.places import FIXTURES

HOSTILE = "a|b`c``d <script>@someone #12 https://x.y ![p](q) *z*\n| - |"


def test_empty_parts_add_nothing_to_a_summary() -> None:
    assert render_markdown([Sentence(""), make_bullets([]), Table("", [])]) == ""


def test_words_have_no_meaning_in_markdown() -> None:
    escaped = escape_markdown(HOSTILE)

    assert "\n" not in escaped
    assert "<script>" not in escaped
    assert "@<!-- -->someone" in escaped
    assert "#<!-- -->12" in escaped
    assert "https:<!-- -->//x.y" in escaped
    assert "\\!\\[p\\](q) \\*z\\*" in escaped


def cells(line: str) -> int:
    return line.replace("\\|", "").count("|")


@pytest.mark.parametrize(("limit", "verdict"), [("12%", "FAILED"), ("30%", "ok")])
def test_a_gate(report: Report, limit: str, verdict: str) -> None:
    saved = summarize(report)
    results = check_limits(saved, parse_limits([f"schedule={limit}"]), "report.json")
    markdown = format_markdown(saved, results)

    assert markdown.startswith(f"### Pipeline bubbles: {verdict}\n")
    assert f"| schedule | 27.27 | 0.00 | {limit[:2]} % | 3 | {verdict} |" in markdown
    assert "largest cause: dependency, 50.00 % of the bubble" in markdown
    assert "what to do first: The schedule itself" in markdown


def test_a_comparison_with_hostile_names(report: Report) -> None:
    saved = summarize(report)
    runs = [ComparedRun("before", "a", saved), ComparedRun(HOSTILE, "b", saved)]
    markdown = comparison_markdown(compare(runs))
    _, ratios = markdown.split("Bubble ratios in ")
    rows = [line for line in ratios.splitlines() if line.startswith("|")]

    assert len({cells(row) for row in rows}) == 1
    assert len(rows) == 2 + 2 * len(saved.summary.bubble_ratio)
    assert "<script>" not in markdown
    assert "the same" in markdown


def test_a_report(report: Report) -> None:
    markdown = render_summary(report, View())

    assert markdown.startswith("**Bubble ratio (schedule): 27.27 %** ± 0.00 %")
    assert "| schedule | 27.27 |" in markdown
    assert "| dependency | 13.64 | 50.00 |" in markdown
    assert "| warmup | 4.54 | 16.67 |" in markdown
    hostile = render_summary(replace(report, convention=HOSTILE), View())
    assert "<script>" not in hostile


def test_the_command_line(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    saved = f"{tmp_path}/report.json"
    assert main(["analyze", str(FIXTURES / "1f1b"), "-o", saved]) == 0
    capsys.readouterr()

    assert main(["gate", saved, "--max-bubble", "schedule=12%", "--markdown", "-"]) == 3
    assert capsys.readouterr().out.startswith("### Pipeline bubbles: FAILED")
    assert main(["compare", saved, saved, "-o", f"{tmp_path}/summary.md"]) == 0
    assert main(["gate", saved, "--max-bubble", "schedule=12%", "-o", saved]) == 1
