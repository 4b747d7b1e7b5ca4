"""The page shows planted slowdowns, chunk costs and memory with the numbers of the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import bubbleviz
from bubbleviz.model.memory_sizes import parse_bytes
from bubbleviz.render.json_document import render as as_json
from bubbleviz.render.web import page as html
from bubbleviz.report import rank_means
from bubbleviz.report.report import Report
from bubbleviz.report.saved import read_summary
from bubbleviz.report.view import View
from tests.explain.test_first_step import compile_all
from tests.explain.test_first_step import write_table as plant_warm_up
from tests.planting.options import Planting
from tests.render.test_page_reading import find_violations
from tests.support.drawn_reports import make_report
from tests.support.forward_runs import UNIT_NS, Serving, write_table
from tests.support.memory_events import Allocations, plant_memory
from tests.support.nsys_exports import C, K, R, write_profile
from tests.support.opened_pages import Open, Opened, format_percent, format_significant
from tests.support.places import FIXTURES
from tests.support.planted_runs import analyze_planting
from tests.support.torch_traces import write_traces

if TYPE_CHECKING:
    from playwright.sync_api import Locator

RUN = Planting(replicas=2, iterations=3, jitter=0.05, barrier=True, slow_rank=5, slow_rank_factor=2)


def read_cells(rows: Locator) -> list[list[str]]:
    """Return the texts of the cells of table rows."""
    return [row.locator("th, td").all_inner_texts() for row in rows.all()]


def find_section(opened: Opened, name: str) -> Locator:
    return opened.page.locator(f"#{name}-section")


def contents_of(opened: Opened) -> list[str]:
    return opened.page.locator("#contents a").all_inner_texts()


def saved(report: Report, folder: Path) -> str:
    """Return the page of a report that was saved as JSON and loaded again."""
    file = folder / "report.json"
    file.write_text(as_json(report, View()), encoding="utf-8")
    return html.render_saved(str(file), read_summary(str(file)))


# Tests of slowdowns.


def test_the_slow_rank_has_the_largest_slowdown(opened: Open, tmp_path: Path) -> None:
    report = analyze_planting(RUN)
    slowdowns = report.slowdowns
    assert slowdowns is not None
    places = {rank.index: (rank.pipeline, rank.stage) for rank in report.ranks}
    assert places[5] == (1, 1), "the planted rank"

    for page in (report, saved(report, tmp_path)):
        web_page = opened(page)
        rows = read_cells(web_page.page.locator("#slowdowns tbody tr"))
        assert [row[0] for row in rows] == ["p0", "p1"]
        page_slowdowns: dict[tuple[int | None, int | None], float] = {
            (replica, stage): float(text)
            for replica, row in enumerate(rows)
            for stage, text in enumerate(row[1:])
        }
        for index, slowdown in slowdowns.by_rank.items():
            assert page_slowdowns[places[index]] == float(f"{slowdown:.2f}")
        assert max(page_slowdowns, key=lambda cell: page_slowdowns[cell]) == (1, 1)
        exact = web_page.page.locator("#slowdowns tbody span").first.get_attribute("title")
        assert float(str(exact)) == slowdowns.by_rank[0]
        assert (
            f"{slowdowns.total:.3f} times as long"
            in find_section(web_page, "slowdown").inner_text()
        )


def test_the_curve_has_the_slowdown_of_each_iteration(opened: Open) -> None:
    report = analyze_planting(RUN)
    slowdowns = report.slowdowns
    assert slowdowns is not None
    web_page = opened(report)
    values = web_page.run("return charts.views.get('slowdown-trend').spec.data.values")

    assert {value["index"]: value["slowdown"] for value in values} == slowdowns.by_iteration
    names = {value["index"]: value["iteration"] for value in values}
    assert names == {i.index: i.name for i in report.iterations if i.averaged}
    web_page.run("await timeline.callbacks.iteration(1)")


def test_the_replicas_with_the_slowest_ranks_are_shown(opened: Open) -> None:
    report = analyze_planting(
        replace(RUN, stages=2, microbatches=2, replicas=66, iterations=1, slow_rank=131)
    )
    ranks = tuple(
        replace(rank, pipeline=rank.index // 2, stage=rank.index % 2) for rank in report.ranks
    )
    web_page = opened(replace(report, ranks=ranks))
    rows = read_cells(web_page.page.locator("#slowdowns tbody tr"))

    assert len(rows) == 64
    caption = web_page.page.locator("#slowdowns caption").inner_text()
    assert caption == "64 of 66 pipelines, with the slowest ranks"
    slowdowns = report.slowdowns
    assert slowdowns is not None
    slowest = max(slowdowns.by_rank, key=lambda rank: slowdowns.by_rank[rank])
    assert f"p{slowest // 2}" in [row[0] for row in rows]


def test_without_slowdowns_the_page_gives_the_reason(opened: Open, tmp_path: Path) -> None:
    path = write_profile(tmp_path, [K(10, 20, 1)], [C(1, 2, 1)], [R(0, 5, "B0.0.0")])
    panel = opened(bubbleviz.analyze(path)).page.locator("#slowdown-panel")

    assert panel.inner_text() == "no complete training iteration was recorded"
    assert opened(make_report([])).page.locator("#slowdown-panel").inner_text() == (
        "Unknown for this run."
    )


def test_a_page_of_many_ranks_says_where_slowdowns_are(
    opened: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(rank_means, "MANY_RANKS", 3)
    report = analyze_planting(RUN)
    panel = opened(report).page.locator("#slowdown-panel")

    assert "bubbleviz analyze RUN -v slowdown, or -o FILE.json" in panel.inner_text()
    # The JSON report contains slowdowns, and so does the page that is made from it.
    assert opened(saved(report, tmp_path)).page.locator("#slowdowns tbody tr").count() == 2


# Tests of chunks.


def analyze_serving(folder: Path) -> tuple[Report, list[int], list[float]]:
    """Return a run whose chunks take 0.2 ms, plus 0.5 us per token and 0.1 ns per attended pair."""
    tokens = ([1024] * 7 + [640] + [1024] * 5 + [100] + [512]) * 2
    prefixes = [1024 * number for number in (*range(8), *range(6), 0)] * 2
    noise = np.random.default_rng(3).normal(0, 5_000, len(tokens))
    times_ns = [
        200_000 + 500 * x + 0.1 * x * (x + 2 * read) + n
        for x, read, n in zip(tokens, prefixes, noise, strict=True)
    ]
    run = Serving([ns / UNIT_NS for ns in times_ns], (1.0, 2.0), tokens=tokens)
    return bubbleviz.analyze(write_table(folder, run)), tokens, times_ns


def test_the_planted_cost_of_a_chunk_is_in_the_table(opened: Open, tmp_path: Path) -> None:
    report, tokens, _ = analyze_serving(tmp_path)
    for page in (report, saved(report, tmp_path)):
        web_page = opened(page)
        first, second = read_cells(web_page.page.locator("#chunk-costs tbody tr"))

        assert first[:3] == ["0", str(len(tokens)), "100 to 1,024"]
        costs = report.explanation.chunk_costs
        for row, cost, factor in zip((first, second), costs, (1, 2), strict=True):
            assert row[3] == format_significant(cost.fixed_ns / 1e6, 4)
            assert row[4] == format_significant((cost.token_ns or 0) / 1e3, 4)
            assert row[5] == format_significant(cost.token_squared_ns or 0)
            assert row[7] == format_percent(cost.explained or 0)
            planted = [0.2 * factor, 0.5 * factor, 0.1 * factor]
            assert list(map(float, row[3:6])) == pytest.approx(planted, rel=0.05)


def test_the_chart_has_measured_chunks_and_the_fit(opened: Open, tmp_path: Path) -> None:
    report, tokens, times_ns = analyze_serving(tmp_path)
    web_page = opened(report)
    script = "return charts.views.get('chunks-chart').spec.layer.map((own) => own.data.values)"

    assert web_page.page.locator("#chunk-stage").input_value() == "1", "the slowest stage"
    web_page.page.locator("#chunk-stage").select_option("0")
    web_page.page.wait_for_function("() => document.querySelector('#chunks-chart svg')")
    dots, line = web_page.run(script)
    measured = sorted((dot["tokens"], dot["ms"]) for dot in dots)
    planted = sorted((x, ns / 1e6) for x, ns in zip(tokens, times_ns, strict=True))
    assert measured == [(x, pytest.approx(ms, abs=1e-5)) for x, ms in planted]
    cost = report.explanation.chunk_costs[0]
    for point in line:
        fitted = float(cost.time_ns(np.array(point["tokens"], float), point["prefix"]))
        assert point["ms"] == pytest.approx(fitted / 1e6)
    assert {point["prefix"] for point in line} == {0, 6 * 1024}


def test_chunks_of_one_length_have_bounded_costs(opened: Open, tmp_path: Path) -> None:
    times = [100 + 10.0 * k for k in range(12)]
    run = Serving(times, (1.0, 1.0), tokens=[1024] * len(times))
    web_page = opened(bubbleviz.analyze(write_table(tmp_path, run)))
    first, _ = read_cells(web_page.page.locator("#chunk-costs tbody tr"))

    assert first[2:5] == ["1,024 to 1,024", "0 to 95.0", "0 to 92.8"]


def test_the_page_shows_how_much_extra_work_fits(opened: Open, tmp_path: Path) -> None:
    report = bubbleviz.analyze(FIXTURES / "1f1b", extra_work="12ms", piece="2ms")
    extra = report.extra_work
    assert extra is not None
    web_page = opened(saved(report, tmp_path))
    *stages, shared = read_cells(web_page.page.locator("#extra-work tbody tr"))

    assert "Extra work" in contents_of(web_page)
    assert "The longest bubble lasts 6.00 ms." in find_section(web_page, "extra-work").inner_text()
    for row, slots in zip(stages, extra.stages, strict=True):
        kinds = (slots.warm_up_pieces, slots.between_pieces, slots.drain_pieces)
        assert row[:5] == [str(slots.stage), *(f"{n:.0f}" for n in (*kinds, slots.pieces))]
        assert float(row[5]) == pytest.approx(slots.fitting_ns / 1e6)
    assert float(shared[5]) == pytest.approx(extra.fitting_ns / 1e6)


def test_the_page_shows_the_warm_up_of_the_first_iteration(opened: Open, tmp_path: Path) -> None:
    lengths_ms = plant_warm_up(tmp_path / "run.csv", compile_all([50] * 4, [90] * 4))
    report = bubbleviz.analyze(tmp_path / "run.csv")
    step = report.explanation.first_step
    assert step is not None
    for page in (report, saved(report, tmp_path)):
        web_page = opened(page)
        rows = read_cells(web_page.page.locator("#first-step tbody tr"))

        assert "First iteration" in contents_of(web_page)
        assert [row[0] for row in rows] == ["0", "1", "2", "3"]
        assert [row[2:5] for row in rows] == [["50.0", "90.0", "140"]] * 4
        text = find_section(web_page, "first-step").inner_text()
        assert f"Iteration 0 takes {lengths_ms[0]} ms instead of {lengths_ms[1]:.1f} ms" in text
        assert f"would save up to {step.saving_ns / 1e6:.0f} ms" in text
        assert find_violations(web_page) == []


def test_runs_without_chunks_or_memory_have_no_such_section(opened: Open) -> None:
    web_page = opened(analyze_planting(RUN))

    optional = {"Chunks", "Memory", "What if", "Extra work", "First iteration"}
    assert not optional & set(contents_of(web_page))
    assert find_section(web_page, "chunks").count() == find_section(web_page, "memory").count() == 0
    assert "Slowdown" in contents_of(web_page)


# Tests of memory.

MB = 1_000_000
TRUTH = (
    Allocations(held=50 * MB, kept=20 * MB, output=3 * MB, temporary=8 * MB, resident=400 * MB),
    Allocations(held=70 * MB, kept=10 * MB, temporary=2 * MB, resident=900 * MB),
)


@pytest.fixture(scope="module")
def in_bytes(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return a run of GPipe with planted allocations, and schedules that fit in 1.1 GB."""
    from tests.planting import plant

    folder = tmp_path_factory.mktemp("memory")
    plant(Planting(schedule="gpipe", stages=2, microbatches=4, devices="zero"), folder / "nsys")
    traces = write_traces(folder / "nsys" / "node0.sqlite", folder)
    for trace, truth in zip(traces, TRUTH, strict=True):
        plant_memory(trace, truth, ())
    return bubbleviz.analyze(
        traces, what_if=True, memory_limit="1.1GB", extra_work="12ms", piece="2ms"
    )


def test_planted_memory_is_in_the_tables(in_bytes: Report, opened: Open, tmp_path: Path) -> None:
    memory = in_bytes.memory
    assert memory is not None
    for page in (in_bytes, saved(in_bytes, tmp_path)):
        web_page = opened(page)
        rows = read_cells(web_page.page.locator("#memory-ranks tbody tr"))
        assert [row[2] for row in rows] == ["400 MB", "900 MB"]
        cells = web_page.page.locator("#memory-ranks tbody tr td:nth-child(2) span").all()
        exact = [str(cell.get_attribute("title")) for cell in cells]
        assert exact == [f"{peak.peak_bytes:,} bytes" for peak in memory.ranks]
        kinds = {(row[0], row[1]): row for row in
                 read_cells(web_page.page.locator("#memory-operations tbody tr"))}  # fmt: skip
        assert set(kinds) == {("0", "F"), ("0", "BW"), ("1", "F"), ("1", "BW")}
        assert kinds["0", "F"][5] == "70.0 MB"
        assert kinds["1", "F"][5] == "80.0 MB"


def test_schedules_are_compared_by_ratio_and_memory(in_bytes: Report, opened: Open) -> None:
    assert in_bytes.other_schedules is not None
    web_page = opened(in_bytes)
    rows = {row[0]: row for row in read_cells(web_page.page.locator("#schedules tbody tr"))}
    header = web_page.page.locator("#schedules thead th").all_inner_texts()
    layers = web_page.run("return charts.views.get('schedules-chart').spec.layer")
    dots = next(layer for layer in layers if layer["mark"]["type"] == "point")["data"]["values"]
    by_name = {name: dot for dot in dots for name in dot["schedules"].split(", ")}

    assert header[-2:] == ["peak memory", "fits in 1.10 GB"]
    for row in in_bytes.other_schedules.rows:
        if row.peak_bytes is None or row.bubble_ratio is None or row.schedule == "no-delay":
            continue
        names = {"measured": "as measured", "gpipe": "gpipe (this one)"}
        name = names.get(row.schedule, row.schedule)
        cells = rows[name]
        assert parse_bytes(cells[-2].replace(" ", ""), "") == pytest.approx(
            row.peak_bytes, rel=0.005
        )
        dot = by_name[name]
        assert dot["memory"] == pytest.approx(row.peak_bytes / 1e9)
        assert dot["ratio"] == pytest.approx(row.bubble_ratio)
    assert {by_name["1f1b"]["fits"], by_name["gpipe (this one)"]["fits"]} == {"yes", "no"}
    rule = next(layer for layer in layers if layer["mark"]["type"] == "rule")
    assert rule["data"]["values"] == [{"memory": 1.1}]


def test_the_line_connects_the_schedules_that_no_other_beats(
    in_bytes: Report, opened: Open
) -> None:
    layers = opened(in_bytes).run("return charts.views.get('schedules-chart').spec.layer")
    values: dict[str, list[Any]] = {layer["mark"]["type"]: layer["data"]["values"]
                                    for layer in layers}  # fmt: skip
    line_points = {(dot["memory"], dot["ratio"]) for dot in values["line"]}
    dots = {(dot["memory"], dot["ratio"]) for dot in values["point"]}
    unbeaten = {
        dot for dot in dots if not any(o != dot and o[0] <= dot[0] and o[1] <= dot[1] for o in dots)
    }

    assert line_points == unbeaten


# Tests of accessibility.


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_costs_break_no_rule_of_accessibility(
    scheme: str, in_bytes: Report, opened: Open, tmp_path: Path
) -> None:
    # The first page has memory, slowdowns and extra work, the second one has chunks.
    for report in (in_bytes, analyze_serving(tmp_path)[0]):
        web_page = opened(report, width=1024, scheme=scheme)
        assert find_violations(web_page) == []
        widths = web_page.run(
            "const own = document.documentElement; return [own.scrollWidth, own.clientWidth]"
        )
        assert widths[0] <= widths[1]
