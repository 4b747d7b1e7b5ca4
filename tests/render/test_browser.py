"""The interactive report in a real browser: user input and displayed text."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pytest

from bubbleviz.analyses.idle import idle as measured
from bubbleviz.analyses.idle.page import render as idle_page
from bubbleviz.api.analysis import analyze
from bubbleviz.cli.serving import open_server
from bubbleviz.count.statistics import Spread
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.phases import COMPUTE, WORK, Phase
from bubbleviz.render.json_document import make_document
from bubbleviz.render.picture.numbers import UNKNOWN
from bubbleviz.render.text.first_screen import describe_headline
from bubbleviz.render.web import page as html
from bubbleviz.report.advice import advise
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import write_advice
from bubbleviz.report.view import View
from tests.planting import Planting, plant
from tests.support.drawn_reports import Op, make_report, rename_all
from tests.support.hostile import HOSTILE
from tests.support.opened_pages import Open, Opened
from tests.support.opened_pages import format_percent as written_percent
from tests.support.places import FIXTURES
from tests.support.planted_runs import analyze_planting

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog

REPORTS = {name: analyze(FIXTURES / name) for name in ("1f1b", "zb-h2", "zb-v")}
SMALL = REPORTS["1f1b"]
#: Two pipelines, in which one rank is slow in the last iteration only.
SLOW_IN_ONE = Planting(
    stages=3, microbatches=6, replicas=2, iterations=3, slow_rank=1, slow_rank_from=2, kernels=1
)

#: Two pipelines.
#: The second one has a slow rank, and both have a slow link.
SLOW_COPY = Planting(
    stages=3,
    microbatches=6,
    replicas=2,
    iterations=4,
    transfer_ns=100_000,
    slow_rank=4,
    slow_link=1,
    slow_link_factor=10.0,
)


def test_an_empty_report_can_be_shown(opened: Open) -> None:
    page = opened(make_report([])).page

    assert page.locator("#failed").is_hidden()
    assert "0 ranks" in page.locator("#about").inner_text()


# Tests of the text of the page.


@pytest.mark.parametrize("name", list(REPORTS))
def test_the_numbers_are_those_of_the_json(name: str, opened: Open) -> None:
    page = opened(REPORTS[name]).page
    summary = make_document(REPORTS[name])["summary"]
    rows = page.locator("#ratios tbody tr").all()
    read = {row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in rows}

    assert list(read) == list(summary["bubble_ratio"])
    for definition, spread in summary["bubble_ratio"].items():
        expected = [percent(spread[key]) for key in ("mean", "std", "min", "max")]
        assert read[definition][:4] == expected
        assert read[definition][5] == str(spread["n"])
        assert read[definition][6] == percent(summary["bubble_low"][definition]["mean"])
        assert read[definition][7] == percent(summary["bubble_overhead"][definition]["mean"])
    headline = summary["bubble_ratio"][REPORTS[name].headline]["mean"]
    assert page.locator("#headline strong").inner_text() == percent(headline)


GAPPED = {"kernels": 10, "kernel_gap_ns": 100_000, "optimizer_ns": 0, "communication": False}


@pytest.mark.parametrize(
    ("planting", "expected"),
    [
        ({**GAPPED, "stages": 1, "microbatches": 4}, True),
        ({**GAPPED, "stages": 2, "microbatches": 32}, True),
        ({"kernels": 4, "kernel_gap_ns": 1_000}, False),
    ],
)
def test_the_share_of_kernels_is_next_to_the_ratio_if_the_text_has_it(
    planting: dict[str, Any], expected: bool, opened: Open
) -> None:
    report = analyze_planting(Planting(**planting))

    head = opened(report).page.locator("#headline").inner_text()

    text = describe_headline(report)[1]
    assert ("kernels ran for " in head) == ("; kernels ran for " in text) == expected
    # The page shows marks below the headline.
    without_marks = text.partition(" ! (")[0]
    assert head.partition("; any kernel")[2] == without_marks.partition("; any kernel")[2]
    kernels = make_document(report)["summary"]["kernel_time"]
    assert (kernels["beside_headline"], kernels["share"]) == (
        expected,
        pytest.approx(kernels["kernel_ns"] / kernels["window_ns"]),
    )


@pytest.mark.parametrize("low", [0.0, 0.1234, 0.2627, 0.27, None])
def test_the_lower_bound_is_next_to_the_ratio_if_the_text_has_it(
    low: float | None, opened: Open
) -> None:
    """The ratio is 27.27 %, and a difference of one percentage point is noticeable."""
    summary = SMALL.summary
    known_bound = replace(summary.bubble_low[SMALL.headline], mean=low)
    spread = known_bound if low is not None else Spread(None, None, None, None, None, 0)
    bounds = {**summary.bubble_low, SMALL.headline: spread}
    report = replace(SMALL, summary=replace(summary, bubble_low=bounds))

    head = opened(report).page.locator("#headline").inner_text()

    text = describe_headline(report)[1]
    is_expected = low is not None and low < 0.2627 + 1e-9
    clause = "with compute outside every operation counted as work"
    bound_text = UNKNOWN if low is None else f"{100 * low:.2f} %"
    assert (f"; {percent(low)} {clause}" in head) == is_expected
    assert (f"; {bound_text} {clause}" in text) == is_expected


def percent(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else written_percent(ratio)


@pytest.mark.parametrize("name", list(REPORTS))
def test_a_window_around_an_iteration_has_its_ratios(name: str, opened: Open) -> None:
    report = REPORTS[name]
    page = opened(report)

    for iteration in report.iterations:
        page.page.select_option("#iteration", str(iteration.index))
        rows = page.page.locator("#window-ratios tbody tr").all()
        read = {
            row.locator("th").inner_text(): row.locator("td").first.inner_text() for row in rows
        }
        assert read == {key: percent(ratio.value) for key, ratio in iteration.ratios.items()}


def test_the_ratios_of_a_part_agree_with_a_plain_sum(opened: Open) -> None:
    page = opened(SMALL)
    start, end = page.run("return run.workSpan(0)")
    low, high = start + (end - start) * 0.3, start + (end - start) * 0.62
    ratios = page.run(f"return run.ratios({low}, {high})")
    base = int(page.run("return run.data.base_ns"))
    expected = compute_schedule_ratio(SMALL, 0, low + base, high + base)

    assert ratios[0]["name"] == "schedule"
    assert ratios[0]["ratio"] == pytest.approx(expected, abs=1e-9)


def compute_schedule_ratio(report: Report, index: int, low: float, high: float) -> float:
    """Return 1 - work / window for part of an iteration, by a loop over all busy intervals."""
    operations, busy = report.operations, report.busy
    window = work = 0.0
    for rank in report.iterations[index].ranks:
        account = rank.accounts["schedule"]
        window += max(0.0, min(high, account.end_ns) - max(low, account.start_ns))
    for row, operation in enumerate(busy.operation.tolist()):
        mine = operations.iteration[operation] == index and operations.phase[operation] in WORK
        start, end = max(low, int(busy.start_ns[row])), min(high, int(busy.end_ns[row]))
        work += max(0.0, end - start) if mine else 0.0
    return 1 - work / window


@pytest.mark.parametrize("name", list(REPORTS))
def test_idle_time_of_an_iteration_agrees_with_the_report_by_cause(name: str, opened: Open) -> None:
    report = REPORTS[name]
    page = opened(report)
    for iteration in report.iterations:
        sums = page.run(f"return run.idle(...run.workSpan({iteration.index}))")
        expected_ns = report.explanation.causes.of_iteration(report.headline, iteration.index)
        has_ratio = iteration.ratios[report.headline].value is not None

        assert sums == (list(expected_ns.values()) if has_ratio else [0] * len(expected_ns))


# Tests of zooming, panning, hovering and selecting.


def test_the_wheel_zooms_about_the_pointer(opened: Open) -> None:
    page = opened(SMALL)
    x, y = page.box(5)
    time = "return timeline.timeAt({x} - timeline.canvas.getBoundingClientRect().left)"
    initial_view, time_under_pointer = page.view(), page.run(time.format(x=x))
    pixel = (initial_view[1] - initial_view[0]) / 800
    page.page.mouse.move(x, y)
    page.page.mouse.wheel(0, 30)
    page.page.wait_for_timeout(300)
    assert page.page.evaluate("() => scrollY") == 30
    assert page.view() == initial_view
    page.page.mouse.wheel(0, -30)
    page.page.wait_for_timeout(300)
    page.page.keyboard.down("Control")
    page.page.mouse.wheel(0, -400)
    page.page.keyboard.up("Control")
    page.frame()
    zoomed_view = page.view()

    assert zoomed_view[1] - zoomed_view[0] < 0.6 * (initial_view[1] - initial_view[0])
    assert page.run(time.format(x=x)) == pytest.approx(time_under_pointer, abs=pixel)


@pytest.mark.parametrize(
    ("words", "expected"), [("bw2 stage 1", ("BW 2", 1)), ("rank 3", ("F 0", 3)), ("nothing", None)]
)
def test_an_operation_can_be_searched_for(
    words: str, expected: tuple[str, int] | None, opened: Open
) -> None:
    page = opened(SMALL)
    page.page.get_by_label("find").fill(words)
    page.page.get_by_label("find").press("Enter")
    script = "const row = timeline.selected; return row < 0 ? null"
    selected = page.run(f"{script} : [run.label(row), run.operations.rank[row]]")

    assert selected == (None if expected is None else [*expected])


def test_dragging_pans_and_the_zero_key_shows_everything(opened: Open) -> None:
    page = opened(SMALL)
    x, y = page.box(5)
    page.run("timeline.zoom(0.3)")
    zoomed = page.view()
    page.page.mouse.move(x, y)
    page.page.mouse.down()
    page.page.mouse.move(x - 120, y, steps=4)
    page.page.mouse.up()
    panned = page.view()
    page.page.keyboard.press("0")
    full_view = page.view()

    assert panned[0] > zoomed[0]
    assert panned[1] - panned[0] == pytest.approx(zoomed[1] - zoomed[0])
    assert (
        full_view[0]
        <= page.run("return run.startNs")
        < page.run("return run.endNs")
        <= full_view[1]
    )


@pytest.mark.parametrize(
    ("key", "moves"),
    [("ArrowRight", "later"), ("ArrowLeft", "earlier"), ("+", "closer"), ("-", "farther")],
)
def test_keys_move_the_view(key: str, moves: str, opened: Open) -> None:
    page = opened(SMALL)
    page.run("timeline.zoom(0.2); timeline.canvas.focus()")
    old_view = page.view()
    page.page.keyboard.press(key)
    new_view = page.view()

    length = (new_view[1] - new_view[0]) / (old_view[1] - old_view[0])
    assert {
        "later": new_view[0] > old_view[0],
        "earlier": new_view[0] < old_view[0],
        "closer": length < 0.99,
        "farther": length > 1.01,
    }[moves]


def test_hovering_shows_the_operation(opened: Open) -> None:
    page = opened(SMALL)
    row = int(page.run("return run.compute.operation[7]"))
    page.page.mouse.move(*page.box(row))
    tip = page.page.locator(".tip")
    tip.wait_for(state="visible")
    label, place_line = tip.inner_text().splitlines()

    assert label == page.run(f"return run.label({row})")
    rank = page.run(f"return run.rankLabel(run.operations.rank[{row}])")
    assert place_line.startswith(f"{rank}, ")


def find_next_operation(row: int) -> int:
    """Return the row of the compute operation after a row, in order of (rank, start)."""
    operations = SMALL.operations
    return next(i for i in range(row + 1, len(operations)) if operations.phase[i] in COMPUTE)


def test_a_click_shows_the_chain_of_the_microbatch(opened: Open) -> None:
    page = opened(SMALL)
    row = int(page.run("return run.compute.operation[3]"))
    page.page.mouse.click(*page.box(row))
    operations = SMALL.operations
    expected_rows = [
        other
        for other in range(len(operations))
        if operations.iteration[other] == operations.iteration[row]
        and operations.microbatch[other] == operations.microbatch[row]
        and operations.phase[other] < 7
    ]
    chain = page.run("return [...timeline.chain]")

    assert sorted(chain) == expected_rows
    assert page.page.locator("#operation .chain li").count() == len(expected_rows)
    assert page.page.locator("#operation h4").first.inner_text() == page.run(
        f"return run.label({row})"
    )
    text = page.page.locator("#operation").inner_text()
    assert f"exactly {operations.end_ns[row] - operations.start_ns[row]:,} ns" in text
    assert f"{operations.kernels[row]} compute kernels" in text
    assert operations.names[operations.name_id[row]] in text
    page.page.get_by_role("button", name="next on this rank").click()
    assert page.run("return timeline.selected") == find_next_operation(row)
    page.page.locator("#timeline canvas").focus()
    page.page.keyboard.press("Escape")
    assert page.run("return timeline.selected") == -1


def test_keys_move_from_operation_to_operation(opened: Open) -> None:
    page = opened(SMALL)
    page.page.locator("#timeline canvas").focus()
    visited = []
    for key in ("n", "n", "ArrowDown", "p"):
        page.page.keyboard.press(key)
        visited.append(page.run("return timeline.selected"))
    rank = SMALL.operations.rank

    assert visited[1] == find_next_operation(visited[0])
    assert rank[visited[2]] == rank[visited[1]] + 1
    assert find_next_operation(visited[3]) == visited[2]
    assert page.page.locator("#live").inner_text() != ""


def test_a_chain_stays_on_its_rank_if_pipelines_are_unknown(opened: Open) -> None:
    copies = tuple(replace(rank, stage=rank.index // 2, pipeline=None) for rank in SMALL.ranks)
    page = opened(replace(SMALL, ranks=copies))
    page.run("timeline.select(run.compute.operation[3])")
    ranks = page.run("return [...timeline.chain].map((row) => run.operations.rank[row])")

    assert len(ranks) == 2
    assert set(ranks) == {0}
    assert "pipeline is unknown" in page.page.locator("#operation").inner_text()


def test_a_window_is_selected_by_dragging(opened: Open) -> None:
    page = opened(SMALL)
    x, y = page.box(5)
    page.page.get_by_role("button", name="Select window").click()
    page.page.mouse.move(x - 60, y)
    page.page.mouse.down()
    page.page.mouse.move(x + 60, y, steps=4)
    page.page.mouse.up()
    low, high = page.run("return timeline.window")

    assert low < high
    assert page.page.locator("#window-ratios tbody tr").count() == 4
    page.page.get_by_role("button", name="clear").click()
    assert page.run("return timeline.window") is None


# Tests of switches.


def pixels(page: Opened) -> str:
    page.frame()
    page.frame()
    return str(page.page.evaluate("() => document.querySelector('#timeline canvas').toDataURL()"))


@pytest.mark.parametrize("from_ns", [0, 61])
def test_operations_of_two_streams_stay_in_their_halves(from_ns: int, opened: Open) -> None:
    first = [Op(0, Phase.F, n, 60 * n, 60 * n + 60) for n in range(3)]
    second = [Op(0, Phase.W, n, 20 + 60 * n, 80 + 60 * n) for n in range(3)]
    page = opened(make_report([*first, *second]))
    # Operations that start before the visible range must be drawn as well.
    page.run(f"timeline.show({from_ns}, 180); return null")
    page.frame()

    colors = page.run(
        """const { canvas } = timeline, scale = canvas.width / canvas.getBoundingClientRect().width;
        const at = (ns, share) => [timeline.x(ns) * scale, timeline.top(share) * scale, 1, 1];
        const color = (...place) => canvas.getContext("2d").getImageData(...at(...place)).data;
        const times = [70, 100, 130, 170];
        return [0.3, 0.7].map((share) => times.map((ns) => `${color(ns, share)}`));"""
    )
    upper, lower = map(set, colors)
    assert len(upper) == 1
    assert not upper & lower


@pytest.mark.parametrize("lane", ["operations", "communication", "causes", "critical path"])
def test_lanes_can_be_switched(lane: str, opened: Open) -> None:
    page = opened(SMALL)
    initial_pixels = pixels(page)
    box = page.page.get_by_label(lane, exact=True)
    box.click()
    switched = pixels(page)
    box.click()

    assert switched != initial_pixels
    assert pixels(page) == initial_pixels


def test_rows_can_be_stages(opened: Open) -> None:
    page = opened(SMALL)
    page.page.select_option("#rows", "stage")
    labels = page.run("return timeline.rows.map((row) => row.label)")

    assert labels == [f"stage {stage}" for stage in range(4)]
    assert read_ratios(page) == pytest.approx([3 / 11] * 4)


def read_ratios(page: Opened) -> list[float]:
    """Return the ratios next to the rows of the timeline."""
    ratios: list[float] = page.run(
        "return timeline.rows.map((row) => "
        "timeline.callbacks.ratioOf(row.rank, timeline.ratedIteration))"
    )
    return ratios


def read_ratio_title(page: Opened) -> str:
    """Return the heading of the ratios next to the rows."""
    page.frame()
    title: str = page.page.evaluate(
        "() => document.querySelector('#timeline canvas').dataset.ratioTitle"
    )
    return title


@pytest.mark.parametrize("rows", ["rank", "stage"])
def test_the_ratios_next_to_rows_are_of_the_rank_and_the_iteration_in_view(
    rows: str, opened: Open
) -> None:
    report = analyze_planting(SLOW_IN_ONE)
    ratios = [{r.rank: r.bubble_ratio["schedule"] for r in it.ranks} for it in report.iterations]
    expected_ranks = [rank.index for rank in report.ranks if rows == "rank" or rank.pipeline == 0]
    expected_ranks.sort(key=lambda rank: (rows == "stage" and report.ranks[rank].stage, rank))
    page = opened(report)
    page.page.select_option("#rows", rows)

    for index, iteration in enumerate(report.iterations):
        page.page.select_option("#iteration", str(index))
        assert read_ratios(page) == pytest.approx([ratios[index][rank] for rank in expected_ranks])
        assert read_ratio_title(page) in {
            f"bubble in iteration {iteration.name}",
            "bubble",
        }
    page.page.get_by_role("button", name="Whole run").click()
    means = [fmean(of_rank[rank] or 0.0 for of_rank in ratios) for rank in expected_ranks]
    assert read_ratios(page) == pytest.approx(means)
    assert "mean of 3" in read_ratio_title(page)


def test_stage_rows_draw_the_pipeline_that_the_advice_is_about(opened: Open) -> None:
    """In another replica, the marked row would show a rank that is not slow."""
    report = analyze_planting(SLOW_COPY)
    web_page = opened(report)
    web_page.page.select_option("#rows", "stage")

    row_ranks = web_page.run("return timeline.rows.map((row) => row.rank)")
    assert [report.ranks[rank].pipeline for rank in row_ranks] == [1] * 3
    further = web_page.page.locator("#advice ~ p").all_inner_texts()
    assert [text.removeprefix("Then: ") for text in further] == [
        write_advice(report, advice).sentence for advice in advise(report).further
    ]
    assert further


def test_colors_follow_the_light_or_dark_scheme(opened: Open) -> None:
    light, dark = opened(SMALL), opened(SMALL, scheme="dark")
    ground = "() => getComputedStyle(document.body).backgroundColor"
    initial_color = dark.page.evaluate(ground)
    dark.page.get_by_role("button", name="Light / dark").click()

    assert light.page.evaluate(ground) != initial_color
    assert dark.page.evaluate(ground) == light.page.evaluate(ground)


@pytest.mark.parametrize("width", [1024, 1280, 2560])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_does_not_scroll_sideways(width: int, scheme: str, opened: Open) -> None:
    page = opened(SMALL, width, scheme)

    assert page.page.evaluate("document.documentElement.scrollWidth") <= width
    for chart in ("trend", "causes-chart", "heat"):
        assert page.page.locator(f"#{chart} svg").count() == 1


def test_most_controls_are_hidden_on_a_narrow_screen_until_requested(opened: Open) -> None:
    wide, narrow = opened(SMALL), opened(SMALL, 390)
    more = narrow.page.get_by_role("button", name="More controls")

    assert wide.page.locator("#whole").is_visible()
    assert wide.page.locator("#more-controls").is_hidden()
    assert narrow.page.locator("#iteration").is_visible()
    assert narrow.page.locator("#whole").is_hidden()
    more.click()
    assert narrow.page.locator("#whole").is_visible()
    assert more.get_attribute("aria-expanded") == "true"
    assert narrow.page.evaluate("document.documentElement.scrollWidth") <= 390
    more.click()
    assert narrow.page.locator("#whole").is_hidden()


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        ("stage", Planting(stages=12, microbatches=12, slow_rank=7, kernels=1)),
        (
            "rank",
            Planting(stages=4, microbatches=8, replicas=3, slow_rank=6, slow_rank_factor=1.25),
        ),
    ],
)
def test_row_labels_on_a_narrow_screen_have_one_form(
    rows: str, sizes: Planting, opened: Open
) -> None:
    """A marked label is longer, and so is one of a stage with two digits or of a replica."""
    page = opened(analyze_planting(sizes), 390)
    page.page.select_option("#rows", rows)
    page.page.select_option("#iteration", "1")

    assert read_ratio_title(page) == "bubble"
    labels = json.loads(page.run("return timeline.canvas.dataset.labels"))
    assert len(labels) == 12
    assert any(label.startswith("►") for label in labels)
    assert len({re.sub(r"► ?|\d+", "", label) for label in labels}) == 1, labels


def test_labels_of_lanes_keep_the_names_of_lanes_on_a_narrow_screen(opened: Open) -> None:
    page = opened(str(idle_page(measured([str(FIXTURES / "1f1b")]))), 390)

    labels = json.loads(page.run("return timeline.canvas.dataset.labels"))
    assert labels[:4] == ["compute", "comm.", "copies", "idle"]


def test_narrow_boxes_of_optimizers_have_side_edges(opened: Open) -> None:
    page = opened(SMALL)
    columns = page.run(
        """const own = run.operations, painter = timeline.painter;
        const row = own.phase.findIndex((phase) => phase === run.optimizer);
        const raster = painter.raster;
        raster.begin(20, 20, 0);
        painter.paintBands(own.paint[row], 4, 10, 2, 18, false);
        return [4, 6, 9].map((x) => raster.pixels[10 * 20 + x]);"""
    )
    dark, main, other_dark = columns
    assert dark == other_dark != main


def test_axes_do_not_magnify_small_differences_between_iterations(opened: Open) -> None:
    """Noise of 0.1 percentage points would otherwise look like a trend."""
    report = analyze_planting(Planting(iterations=4, jitter=0.01, kernels=1))
    domain = "return charts.views.get('{}').view.scale('y').domain()"
    page = opened(report)

    assert page.run(domain.format("trend"))[0] == 0
    low, high = page.run(domain.format("slowdown-trend"))
    assert low == 1
    assert high >= 1.1


def test_times_that_differ_by_little_look_different(opened: Open) -> None:
    """With three digits, a saving of 0.1 % would be invisible."""
    report = analyze_planting(Planting(iterations=3, jitter=0.02, kernels=1))
    page = opened(report)
    rows = page.page.locator("#ratios tbody tr").all()
    window = {row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in rows}
    means = report.summary.window_ns

    for name in ("schedule", "step"):
        mean_ns = means[name].mean
        assert mean_ns is not None
        assert float(window[name][8]) == pytest.approx(mean_ns / 1e6, rel=1e-4)


def test_the_page_says_how_to_compare_other_schedules(opened: Open) -> None:
    hint = "pass --what-if to bubbleviz analyze"

    assert hint in opened(SMALL).page.locator("#changes-panel").inner_text()
    compared = analyze(FIXTURES / "1f1b", what_if=True)
    assert hint not in opened(compared).page.locator("#changes-panel").inner_text()


def test_labels_of_close_schedules_are_joined(opened: Open, tmp_path: Path) -> None:
    """The order without delays is almost as long as the measured order."""
    plant(Planting(iterations=3, jitter=0.03, kernels=1), tmp_path / "run")
    page = opened(analyze(tmp_path / "run", what_if=True)).page

    labels = page.locator("#schedules-chart .mark-text text").all_text_contents()
    assert [label for label in labels if "as measured" in label] == ["1f1b (this one), as measured"]


LACKING = Limitation("a", "b", kind=LimitationKind.OPERATIONS_LACKING)


def test_the_headline_has_every_restriction(opened: Open) -> None:
    kinds = (LimitationKind.OPERATIONS_LACKING, LimitationKind.KERNELS_LOST)
    notes = tuple(Limitation("a", "b", kind=kind) for kind in kinds)
    report = replace(SMALL, limitations=notes)

    headline = opened(report).page.locator("#headline").inner_text()

    assert len(report.restrictions) == 2
    assert "; ".join(restriction.text for restriction in report.restrictions) in headline


def test_the_headline_of_one_iteration_has_no_stray_separator(opened: Open) -> None:
    report = replace(analyze_planting(Planting(iterations=1)), limitations=(LACKING,))

    head = opened(report).page.locator("#headline").inner_text()

    _, rest = head.split("%", 1)
    assert report.restrictions[0].text in rest
    assert not rest.strip().startswith(";")


def test_the_iterations_are_those_that_the_primary_ratio_averages(opened: Open) -> None:
    report = analyze(FIXTURES / "zb-h2")

    about = opened(report).page.locator("#about").inner_text()

    assert report.headline == "period"
    assert "2 of 3 iterations averaged" in about
    assert "2 of 3 iterations averaged" in describe_headline(report)[2]


def test_the_page_is_printed_on_white(opened: Open) -> None:
    dark, light = opened(SMALL, scheme="dark"), opened(SMALL)
    on_screen = pixels(dark)
    dark.page.emulate_media(media="print", color_scheme="dark")
    light.page.emulate_media(media="print")
    ground = "() => getComputedStyle(document.body).backgroundColor"

    assert dark.page.locator(".controls").is_hidden()
    assert dark.page.evaluate(ground) == "rgb(255, 255, 255)"
    assert pixels(dark) == pixels(light) != on_screen
    assert dark.page.pdf()[:5] == b"%PDF-"


# Tests of hostile names and huge reports.


@pytest.mark.parametrize(
    "text",
    ["\n".join(HOSTILE), "<img src=x onerror=alert(1)>", "x" * 10_000],
    ids=["all", "image", "long"],
)
def test_hostile_names_are_inert(text: str, opened: Open) -> None:
    page = opened(rename_all(SMALL, text))
    dialog_texts: list[str] = []

    def record_dialog(dialog: Dialog) -> None:
        dialog_texts.append(dialog.message)
        dialog.dismiss()

    page.page.on("dialog", record_dialog)
    row = int(page.run("return run.compute.operation[3]"))
    page.page.mouse.move(*page.box(row))
    page.page.mouse.click(*page.box(row))
    page.page.get_by_label("causes", exact=True).click()
    page.page.wait_for_timeout(50)

    assert dialog_texts == []
    assert page.page.locator("script").count() == opened(SMALL).page.locator("script").count()
    assert page.page.locator("main img").count() == 0
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 1280


# Tests of served pages.


@pytest.mark.parametrize("of_idle", [False, True])
def test_a_served_page_is_shown_only_at_its_address(of_idle: bool, browser: Browser) -> None:
    idle = measured([str(FIXTURES / "1f1b")]) if of_idle else None
    page = (html.render(SMALL, View()) if idle is None else idle_page(idle)).encode()
    with open_server(page) as (url, server):
        answering = threading.Thread(target=server.serve_forever)
        answering.start()
        try:
            served_page = Opened(browser.new_page())
            served_page.page.on(
                "pageerror", lambda error: served_page.complaints.append(str(error))
            )
            served_page.page.goto(url)
            served_page.page.locator("body[data-ready]").wait_for(timeout=60_000)
            heading = served_page.page.locator("h1").inner_text()
            served_page.page.fill("#find", "rank 2")
            served_page.page.press("#find", "Enter")
            live_text = served_page.page.locator("#live").inner_text()
            for key in "bs":
                served_page.page.press("#timeline canvas", key)
            served_page.page.close()
        finally:
            server.shutdown()
            answering.join()

    assert served_page.complaints == []
    ratio = SMALL.summary.bubble_ratio[SMALL.headline].mean
    assert (percent(ratio) if idle is None else "4 devices, idle for 1.01 %") in heading
    assert live_text.endswith(" is selected.")


def test_a_page_without_scripts_says_what_to_do(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(html.render(SMALL, View()), encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())

    assert "bubbleviz analyze RUN -o FILE.txt" in page.locator("noscript").inner_text()
    context.close()


def test_a_damaged_page_says_so(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    text = html.render(SMALL, View())
    start = text.index('id="columns">') + len('id="columns">')
    file.write_text(text[:start] + "AAAA" + text[start + 40 :], encoding="utf-8")
    page = browser.new_page()
    page.goto(file.as_uri())
    page.locator("#failed").wait_for(state="visible", timeout=60_000)

    assert "cannot be shown" in page.locator("#failed").inner_text()
    page.close()
