"""The interactive page of many ranks shows an overview and one pipeline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from msgspec import structs

from bubbleviz.model.columns import Ints
from bubbleviz.render import json_document as json
from bubbleviz.render.web import page as html
from bubbleviz.render.web import shards
from bubbleviz.report import rank_means
from bubbleviz.report.rank_means import compute_rank_means as means_of
from bubbleviz.report.report import Report
from bubbleviz.report.saved import read_summary
from bubbleviz.report.timeline import build_timeline
from bubbleviz.report.view import View
from tests.planting import Planting
from tests.render.test_page_reading import find_violations
from tests.support.opened_pages import Open, Opened
from tests.support.planted_runs import analyze_planting

if TYPE_CHECKING:
    from playwright.sync_api import Locator


@pytest.fixture(scope="module")
def replicas() -> Report:
    """Return a run of three replicas of a four-stage pipeline that reduce their gradients."""
    planting = Planting(
        schedule="zb-h1",
        stages=4,
        microbatches=6,
        replicas=3,
        jitter=0.1,
        reduce_ns=500_000,
        iterations=2,
        slow_rank=6,
        slow_rank_factor=1.4,
    )
    return analyze_planting(planting)


@pytest.fixture
def few_ranks_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat more than three ranks as many ranks, with one shard per pipeline."""
    monkeypatch.setattr(rank_means, "MANY_RANKS", 3)
    monkeypatch.setattr(shards, "_MIN_RANKS", 1)


def expect_locator(locator: Locator) -> Any:
    """Return Playwright's assertions on a locator, which wait until they succeed."""
    from playwright.sync_api import expect

    return expect(locator)


def title_of(opened: Opened) -> Locator:
    return opened.page.locator("#timeline-title")


def read_tables(opened: Opened, rank: int) -> dict[str, dict[str, list[int]]]:
    """Return the tables of a page after it has loaded the shard of a rank."""
    return dict(
        opened.run(
            f"""await many_ranks.show({rank});
            const place = shards.of({rank});
            const tables = await shards.tables(place);
            const lists = ({{ rows, ...own }}) => Object.fromEntries(
              Object.entries(own).map(([key, all]) => [key, [...all]]));
            return Object.fromEntries(Object.entries(tables).map(([k, own]) => [k, lists(own)]));"""
        )
    )


@pytest.mark.usefixtures("few_ranks_are_many")
@pytest.mark.parametrize("unit_ns", [1, 1000])
def test_a_page_unpacks_the_timeline_of_each_pipeline(
    unit_ns: int, replicas: Report, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    if unit_ns > 1:
        monkeypatch.setattr(shards, "_BYTES_OF_OPERATION", 1e9)
    full_timeline = build_timeline(replicas).tables
    web_page = opened(replicas)

    assert web_page.run("return shards.unitNs") == unit_ns
    assert web_page.run("return shards.all.map((each) => [each.first, each.last])") == [
        [0, 4],
        [4, 8],
        [8, 12],
    ]
    for first in (0, 4, 8):
        tables = read_tables(web_page, first)
        row = int(np.searchsorted(full_timeline["operations"]["rank"], first))
        for table, columns in full_timeline.items():
            rank = (
                columns["rank"]
                if "rank" in columns
                else (full_timeline["operations"]["rank"][columns["operation"]])
            )
            rows = np.flatnonzero((rank >= first) & (rank < first + 4))
            rows = rows[np.argsort(rank[rows], kind="stable")]
            for name, column in columns.items():
                expected = column[rows]
                if name in {"operation", "after", "peer_operation"}:
                    expected = _make_page_rows(expected, row, tables)
                if name == "thousandths" and unit_ns > 1:
                    continue
                unpacked = np.array(tables[table][name], np.int64)
                differences = np.abs(unpacked - expected)
                assert int(differences.max(initial=0)) < (unit_ns if name.endswith("_ns") else 1), (
                    name
                )


def _make_page_rows(rows: Ints, first: int, tables: dict[str, dict[str, list[int]]]) -> Ints:
    last = first + len(tables["operations"]["rank"])
    return np.where((rows >= first) & (rows < last), rows - first, -1)


@pytest.mark.usefixtures("few_ranks_are_many")
def test_the_overview_shows_a_pipeline_by_keys_pointer_and_number(
    replicas: Report, opened: Open
) -> None:
    web_page = opened(replicas)
    canvas = web_page.page.locator("#overview canvas")

    canvas.focus()
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowDown"):
        canvas.press(key)
    assert (
        web_page.page.locator("#live").inner_text().startswith("pipeline p2, stage 1; bubble ratio")
    )
    canvas.press("Enter")
    expect_locator(title_of(web_page)).to_have_text("Timeline: Pipeline p2")
    assert web_page.run("return timeline.rows.map((row) => row.rank)") == [8, 9, 10, 11]
    assert web_page.page.locator("#ranks tbody tr").count() == 4

    web_page.page.fill("#overview-pipeline", "0")
    web_page.page.locator("#overview-pipeline").press("Enter")
    expect_locator(title_of(web_page)).to_have_text("Timeline: Pipeline p0")

    x, y = web_page.run("return many_ranks.overview.corner(1, 2)")
    canvas.click(position={"x": x + 2, "y": y + 2})
    expect_locator(title_of(web_page)).to_have_text("Timeline: Pipeline p1")


@pytest.mark.usefixtures("few_ranks_are_many")
def test_a_requested_pipeline_is_shown_first(
    replicas: Report, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "MAX_CHARACTERS", 1)
    web_page = opened(html.render(replicas, View(ranks=(8, 9))))

    assert web_page.run("return shards.all.map((each) => each.first)") == [8]
    assert title_of(web_page).inner_text() == "Timeline: Pipeline p2"


@pytest.mark.usefixtures("few_ranks_are_many")
def test_the_slow_rank_stands_out(replicas: Report, opened: Open) -> None:
    web_page = opened(replicas)
    first = web_page.page.locator("#standing-out tbody tr").first

    # The page opens at the pipeline of the rank that the advice is about.
    assert title_of(web_page).inner_text() == "Timeline: Pipeline p1"
    assert first.inner_text().startswith("► node0 GPU 7 (pipeline order 6), p1 stage 2")
    web_page.run("many_ranks.overview.cursor = [2, 0]; many_ranks.overview.open()")
    expect_locator(title_of(web_page)).to_have_text("Timeline: Pipeline p2")
    first.get_by_role("button").click()
    expect_locator(title_of(web_page)).to_have_text("Timeline: Pipeline p1")


@pytest.mark.usefixtures("few_ranks_are_many")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_of_many_ranks_breaks_no_rule_of_accessibility(
    scheme: str, replicas: Report, opened: Open
) -> None:
    web_page = opened(replicas, scheme=scheme)
    web_page.run("for (const each of document.querySelectorAll('[aria-expanded]')) each.click();")

    assert find_violations(web_page) == []


@pytest.mark.usefixtures("few_ranks_are_many")
def test_replicas_are_side_by_side_if_pipelines_are_unknown(
    replicas: Report, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_RANKS_WITHOUT_PIPELINES", 3)
    ranks = tuple(replace(rank, pipeline=None) for rank in replicas.ranks)
    web_page = opened(replace(replicas, ranks=ranks))

    assert (
        web_page.run("return many_ranks.overview.columns.map((each) => each.cells.size)") == [4] * 3
    )
    web_page.run("await many_ranks.show(6);")
    assert web_page.run("return timeline.rows.map((row) => row.rank)") == [6, 7, 8]
    assert web_page.page.locator("#timeline-title").inner_text() == "Timeline: Ranks 6 to 8"


@pytest.mark.usefixtures("few_ranks_are_many")
def test_pipelines_without_room_are_named(
    replicas: Report, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "MAX_CHARACTERS", 7_000)
    web_page = opened(replicas)
    n_pipelines = web_page.run("return shards.all.length")

    assert 0 < n_pipelines < 3
    assert "most similar to the others" in web_page.page.locator("#overview-panel").inner_text()
    missing = web_page.run("return run.report.ranks.findIndex((rank) => shards.of(rank.index) < 0)")
    web_page.run(f"await many_ranks.show({missing});")
    assert (
        "does not contain the operations of"
        in web_page.page.locator("#overview-missing").inner_text()
    )


@pytest.mark.usefixtures("few_ranks_are_many")
def test_means_agree_with_the_entries(replicas: Report, opened: Open) -> None:
    means = means_of(replicas)
    web_page = opened(replicas)

    assert web_page.run("return run.means.ratio") == pytest.approx(
        means.bubble_ratio.tolist(), abs=1e-8
    )
    assert web_page.run("return run.means.busy.F") == pytest.approx(
        means.busy_ns["F"].tolist(), abs=1
    )


@pytest.mark.usefixtures("few_ranks_are_many")
def test_a_saved_report_of_many_ranks_is_shown_without_operations(
    replicas: Report, opened: Open, tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    file.write_text(json.render(replicas, View()), encoding="utf-8")
    saved = read_summary(str(file))
    web_page = opened(html.render_saved(str(file), structs.replace(saved, timeline=None)))
    web_page.run("await many_ranks.show(6);")

    assert (
        "does not contain the operations of"
        in web_page.page.locator("#overview-missing").inner_text()
    )
    assert "p1 stage 2" in web_page.page.locator("#standing-out tbody tr").first.inner_text()
    assert web_page.page.locator("#ranks tbody tr").count() == 4
    assert web_page.page.locator("#ranks-panel p").first.inner_text().startswith("Pipeline p1:")
