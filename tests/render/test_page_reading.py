"""The interactive report works in other browsers, with the keyboard and with screen readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from bubbleviz.api.analysis import analyze
from bubbleviz.model.phases import Phase
from bubbleviz.render.web import page as html
from bubbleviz.report.bubble_parts import compute_bubble_parts
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.support.browsers import Firefox
from tests.support.drawn_reports import Op, make_report
from tests.support.opened_pages import (
    PARTS_OF_PAGE,
    Open,
    Opened,
    format_percent,
    format_significant,
)
from tests.support.places import FIXTURES

SMALL = analyze(FIXTURES / "1f1b")
INTERLEAVED = analyze(FIXTURES / "zb-v")
#: Rules of axe-core that a page must satisfy.
RULES = "{ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice'] }"
VIOLATIONS = f"""const found = await axe.run(document, {RULES});
return found.violations.map((own) => own.id + ': ' + own.nodes.map((node) => node.html).join(' '));
"""
#: A script that opens an operation, a window, the explanations of columns and all lanes.
OPENED = """for (const own of document.querySelectorAll('[aria-expanded]')) own.click();
for (const own of document.querySelectorAll('input[data-lane]:not(:checked)')) own.click();
timeline.select(run.compute.operation[3]);
timeline.setWindow(run.workSpan(0));"""


def find_violations(page: Opened) -> list[str]:
    axe = files("axe_playwright_python").joinpath("axe.min.js")
    page.page.evaluate(axe.read_text("utf-8"))
    return list(page.run(VIOLATIONS))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_rule_of_accessibility_is_broken(scheme: str, opened: Open) -> None:
    web_page = opened(INTERLEAVED, scheme=scheme)

    assert find_violations(web_page) == []
    web_page.run(OPENED)
    assert find_violations(web_page) == []


# Tests of the first screen.


def test_the_first_screen_answers_questions_in_order(opened: Open) -> None:
    web_page = opened(SMALL)
    tops = [
        web_page.page.locator(selector).bounding_box()
        for selector in ("#run-title", "#headline", "#definition", "#timeline", ".parts", "#advice")
    ]
    heights = [selector["y"] for selector in tops if selector]

    assert len(heights) == 6
    assert heights == sorted(heights)
    assert heights[-1] < 900
    assert web_page.page.locator("#run-date").inner_text() == "recorded 2025-10-09 08:53 UTC"
    assert web_page.page.locator("#run-title").inner_text() == "node0.sqlite"
    assert "idle share of all ranks" in web_page.page.locator("#definition").inner_text()


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "zb-h2"])
def test_the_parts_add_up_to_the_ratio(name: str, opened: Open) -> None:
    report = analyze(FIXTURES / name)
    web_page = opened(report)
    parts_by_name = {part["name"]: part for part in web_page.run("return parts")}
    expected = {part.name: part for part in compute_bubble_parts(report)}

    assert set(parts_by_name) == set(expected)
    for part, values in expected.items():
        assert parts_by_name[part]["share"] == pytest.approx(values.share)
        assert parts_by_name[part]["time_ns"] == pytest.approx(values.time_ns)
    if not expected:
        assert (
            "No averaged iteration has a bubble"
            in web_page.page.locator("#parts-panel").inner_text()
        )
        return
    total = (
        web_page.page.locator("#parts tbody tr", has_text="all").locator("td").first.inner_text()
    )
    assert total == web_page.page.locator("#headline strong").inner_text()


def test_the_contents_lead_to_every_section(opened: Open) -> None:
    web_page = opened(SMALL)
    links = web_page.page.locator("#contents a").all()

    for link in links:
        link.click()
        target = str(link.get_attribute("href"))
        assert web_page.page.locator(f"{target} h2").first.is_visible()
    titles = web_page.page.locator("main h2").count()
    assert len(links) >= titles - 2, "two charts belong to the section before them"


# Tests of numbers and their explanations.


def test_the_page_formats_numbers_by_the_same_rule(opened: Open) -> None:
    numbers = [0, 0.00123456, 0.5, 1, 4.5, 9.994, 9.996, 27.2727, 99.96, 100, 999.6, 12345.6, -3.14]
    written_numbers = opened(SMALL).run(f"return {numbers}.map((own) => significant(own))")

    assert written_numbers == [format_significant(number) for number in numbers]
    assert written_numbers[:8] == ["0", "0.00123", "0.500", "1.00", "4.50", "9.99", "10.0", "27.3"]


def test_percentages_have_at_most_two_decimals(opened: Open) -> None:
    ratios = [0, 3.22e-7, 0.0000999, 0.0001, 0.00123, 0.0456, 0.272727, 1]
    percentages = opened(SMALL).run(f"return {ratios}.map(percent)")

    assert percentages == [format_percent(ratio) for ratio in ratios]
    assert percentages[:6] == ["0 %", "< 0.01 %", "< 0.01 %", "0.01 %", "0.12 %", "4.56 %"]
    assert opened(SMALL).run("return percent(-3e-7)") == "> \N{MINUS SIGN}0.01 %"


def test_columns_are_explained_on_hover_on_demand_and_in_print(opened: Open) -> None:
    web_page = opened(SMALL)
    header = web_page.page.locator("#ratios thead th", has_text="lower bound")
    meaning = header.get_attribute("title")
    terms = web_page.page.locator("#ratios-panel dl.meanings")
    button = web_page.page.get_by_role("button", name="What the columns mean: bubble ratios")

    assert meaning
    assert terms.is_hidden()
    button.press("Enter")
    assert meaning in terms.inner_text()
    button.press("Enter")
    assert terms.is_hidden()
    web_page.page.emulate_media(media="print")
    assert meaning in terms.inner_text()


# Tests of bubbles.


def find_middle_of_bubble(page: Opened, condition: str) -> tuple[int, float, float]:
    """Return (row, x, y) of the center of the first bubble that satisfies a condition."""
    bubble, x, y = page.run(
        f"""const own = run.bubbleRows;
        const at = [...own.rank.keys()].find((i) => {condition});
        timeline.reveal(own, at);
        timeline.painter.paint();
        const box = timeline.canvas.getBoundingClientRect();
        const place = timeline.rows.findIndex((each) => each.rank === own.rank[at]);
        return [at, box.left + timeline.x(own.start_ns[at] + own.length_ns[at] / 2),
          box.top + timeline.top(place + 0.5)];"""
    )
    return int(bubble), float(x), float(y)


def test_a_click_on_a_bubble_shows_its_cause_and_the_awaited_operation(opened: Open) -> None:
    web_page = opened(SMALL)
    bubble, x, y = find_middle_of_bubble(
        web_page, "own.peer_operation[i] >= 0 && own.iteration[i] === 0"
    )
    web_page.page.mouse.click(x, y)
    text = web_page.page.locator("#operation").inner_text()
    peer, cause = web_page.run(
        f"""const peer = run.bubbleRows.peer_operation[{bubble}];
        return [`${{run.label(peer)}} of ${{run.rankLabel(run.operations.rank[peer])}}`,
          run.data.causes[run.bubbleRows.cause[{bubble}]].name];"""
    )

    assert web_page.page.locator("#operation-title").inner_text() == "Bubble"
    assert f"idle: {cause}" in text
    assert f"waited for {peer}" in text
    web_page.page.get_by_role("button", name="which it waited for").click()
    assert web_page.page.locator("#operation-title").inner_text() == "Operation"


def test_the_tip_disappears_when_the_pointer_keys_or_page_move_away(opened: Open) -> None:
    web_page = opened(SMALL)
    _, x, y = find_middle_of_bubble(web_page, "own.iteration[i] === 0")
    tip = web_page.page.locator(".tip")
    leavings: tuple[Callable[[], None], ...] = (
        lambda: web_page.page.mouse.move(5, 5),
        lambda: web_page.page.keyboard.press("Escape"),
        lambda: web_page.page.keyboard.press("+"),
        lambda: web_page.page.mouse.wheel(0, 50),
    )
    for leave in leavings:
        web_page.page.locator("#timeline canvas").focus()
        web_page.page.mouse.move(5, 5)
        web_page.page.mouse.move(x, y)
        tip.wait_for(state="visible")
        leave()
        tip.wait_for(state="hidden")


# Tests of the keyboard.


def test_every_control_is_reached_by_tab_and_shows_its_focus(opened: Open) -> None:
    web_page = opened(SMALL)
    reached = []
    for _ in range(200):
        web_page.page.keyboard.press("Tab")
        controls = web_page.page.evaluate(
            """() => {
              const own = document.activeElement;
              if (own === document.body) return null;
              own.dataset.reached = "";
              return getComputedStyle(own).outlineStyle;
            }"""
        )
        if controls is None:
            break
        reached.append(controls)

    left = web_page.page.evaluate(
        """() => [...document.querySelectorAll('button, select, input, a[href], canvas[tabindex]')]
          .filter((own) => own.offsetParent && !('reached' in own.dataset)).length"""
    )
    assert left == 0
    assert set(reached) <= {"solid", "auto"}


def test_keys_move_between_bubbles_and_are_announced(opened: Open) -> None:
    web_page = opened(SMALL)
    web_page.page.locator("#timeline canvas").focus()
    texts = []
    for key in ("b", "b", "Shift+B"):
        web_page.page.keyboard.press(key)
        texts.append(web_page.page.locator("#live").inner_text())

    assert texts[0].startswith("idle: ")
    assert texts[0] != texts[1]
    assert texts[2] == texts[0]
    web_page.page.keyboard.press("Escape")
    assert web_page.run("return timeline.selectedBubble") == -1
    assert web_page.page.locator("#operation-part").is_hidden()


# Tests of the work per frame.


@pytest.mark.parametrize("fraction_in_view", [1.0, 0.1, 0.001])
def test_the_cost_of_a_frame_depends_on_pixels_and_not_on_operations(
    fraction_in_view: float, opened: Open
) -> None:
    ops = [
        Op(rank, Phase.F, n, 1000 * n, 1000 * n + (700 if n % 3 else 1000))
        for rank in range(2)
        for n in range(20_000)
    ]
    web_page = opened(make_report(ops))
    work, wide, rows = web_page.run(
        f"""const span = {fraction_in_view} * (run.endNs - run.startNs);
        timeline.show(run.startNs + 0.4 * span, run.startNs + 1.4 * span);
        timeline.painter.paint();
        const raster = timeline.painter.raster;
        return [raster.work, raster.wide, timeline.rows.length];"""
    )

    assert rows == 2
    assert 0 < work <= 4 * rows * wide < 20_000


# Tests in Firefox.


@pytest.fixture(scope="module")
def firefox() -> Iterator[Firefox]:
    """Start Firefox once, with the page width used in Chromium."""
    with Firefox(1280) as started:
        yield started


def open_in_firefox(firefox: Firefox, report: Report, folder: Path) -> Any:
    """Open the page of a report, and return a function that runs scripts with its modules."""
    file = folder / "report.html"
    file.write_text(html.render(report, View()), encoding="utf-8")
    firefox.open(file.as_uri())

    def run(script: str) -> Any:
        return firefox.run(f"{PARTS_OF_PAGE} {script}")

    return run


def test_firefox_shows_the_report(firefox: Firefox, tmp_path: Path) -> None:
    run = open_in_firefox(firefox, SMALL, tmp_path)
    mean = SMALL.summary.bubble_ratio[SMALL.headline].mean
    assert mean is not None

    assert run("return document.getElementById('failed').hidden")
    assert run(
        "return document.getElementById('headline').firstChild.textContent"
    ) == format_percent(mean)
    assert run("return document.querySelectorAll('.chart svg').length") == 4
    assert run("return document.documentElement.scrollWidth") <= 1280
    assert run("return timeline.canvas.width") > 1000
    colors = run(
        """const { width, height } = timeline.canvas;
        const data = timeline.context.getImageData(0, 0, width, height).data;
        return new Set(new Uint32Array(data.buffer)).size;"""
    )
    assert colors > 5
    assert firefox.printed()[:5] == b"%PDF-"
