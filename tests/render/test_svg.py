"""SVG pictures of empty reports, ties and hostile names; colors, size and a golden file."""

from __future__ import annotations

import re
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from bubbleviz.count.iterations import Ratio, make_iteration_records
from bubbleviz.count.rank_iterations import Account
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.phases import COMPUTE, Phase
from bubbleviz.render import palette
from bubbleviz.render.picture.picture import picture as render
from bubbleviz.render.selection import select
from bubbleviz.report.advice import choose_shown_iteration
from bubbleviz.report.labels import MARK
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.planting import Planting
from tests.planting.orders import Operation, Plan
from tests.support.drawn_reports import (
    HOSTILE,
    MS,
    SVG,
    Op,
    list_texts,
    list_tooltips,
    make_iteration,
    make_rank,
    make_rank_iterations,
    make_report,
    parse_svg,
    rename_all,
    run_1f1b,
    run_plan,
)
from tests.support.places import GOLDEN
from tests.support.planted_runs import analyze_planting
from tests.support.stage_times import make_durations

# Tests of windows.


def make_period_report(*windows: tuple[int, int], end: int) -> Report:
    """Return a report of one iteration whose ranks have the given ``period`` windows."""
    ops = [Op(rank, Phase.F, 0, start, end) for rank, (start, _) in enumerate(windows)]
    report = make_report(ops, headline="period")
    (iteration,) = report.iterations
    ranks = tuple(
        replace(
            rank_iteration,
            accounts={**rank_iteration.accounts, "period": Account(*window, 0, 0, 0, 0, 0)},
            bubble_ratio={"period": 0.25},
        )
        for rank_iteration, window in zip(iteration.ranks, windows, strict=True)
    )
    ratios = {**iteration.ratios, "period": Ratio(0.25, 0.25, None, windows[0][1] - windows[0][0])}
    return replace(
        report,
        iterations=make_iteration_records(
            (replace(iteration, ratios=ratios, ranks=make_rank_iterations(ranks)),)
        ),
    )


def list_hatched_areas(svg: str) -> list[tuple[float, float]]:
    """Return (left, width) of each hatched area, row by row."""
    (path,) = (
        element.get("d", "")
        for element in parse_svg(svg).iter(f"{SVG}path")
        if element.get("fill", "").startswith("url(#bv-bubble)")
        and element.get("d", "").count("M") > 1
    )
    matches = re.findall(r"M([0-9.]+) [0-9.]+h([0-9.]+)v", path)
    return [(float(left), float(width)) for left, width in matches]


def test_only_the_window_of_a_rank_is_hatched() -> None:
    first, second = list_hatched_areas(
        render(make_period_report((0, 80 * MS), (20 * MS, 100 * MS), end=70 * MS), View())
    )

    assert second[0] - first[0] == pytest.approx(first[1] / 4, abs=0.02)
    assert second[1] == pytest.approx(first[1], abs=0.02)


def test_the_bracket_shows_the_window_of_the_first_row_and_says_so() -> None:
    report = make_period_report((0, 80 * MS), (20 * MS, 100 * MS), end=70 * MS)

    svg = render(report, View())

    left, width = list_hatched_areas(svg)[0]
    (bracket,) = re.findall(r"M([0-9.]+) [0-9.]+v8M([0-9.]+) [0-9.]+v8", svg)
    assert [float(x) for x in bracket] == pytest.approx([left, left + width], abs=0.02)
    assert "iteration 0: 25.0\u00a0% of 80.00\u00a0ms (period window)" in list_texts(svg)
    assert any("brackets show the first row's window" in text for text in list_texts(svg))
    assert not any("brackets" in text for text in list_texts(render(make_golden_report(), View())))


def test_an_iteration_without_the_headline_falls_back_to_schedule() -> None:
    report = make_report(run_1f1b(2, 2))
    without = render(replace(report, headline="period"), View())

    assert list_texts(without)[0] == "period bubble ratio unknown"
    assert list_hatched_areas(without) == list_hatched_areas(render(report, View()))


def test_the_plus_minus_sign_is_explained() -> None:
    two_iterations = run_1f1b(2, 2) + run_1f1b(2, 2, iteration=1, start=200 * MS)
    three_iterations = two_iterations + run_1f1b(2, 2, iteration=2, start=400 * MS)

    text_of_two, text_of_three = (
        " ".join(list_texts(render(make_report(ops), View()))[:2])
        for ops in (two_iterations, three_iterations)
    )

    assert "33.3\u00a0% (33.3\u00a0% and 33.3\u00a0%) mean over 2 iterations" in text_of_two
    assert re.search("\u00b1 [0-9.]+\u00a0% \\(95 % CI\\) mean over 3 iterations", text_of_three)


# Tests of the content.


def test_an_operation_without_device_time_gets_no_box() -> None:
    ops = run_1f1b(2, 2)
    ops[0] = replace(ops[0], busy=None)

    svg = render(make_report(ops), View())

    assert "without device time: F0" in list_tooltips(svg)
    assert not [text for text in list_tooltips(svg) if text.startswith("F0 (F0.0.0): at 0.000")]
    assert any("Hollow mark: 1 without GPU work" in text for text in list_texts(svg))


# Tests of colors.


@pytest.mark.parametrize("shades", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("phase", COMPUTE)
def test_numbers_are_legible_on_their_fill(phase: Phase, shades: int) -> None:
    for shade in range(shades):
        paint = palette.make_paint(phase, shade, shade, shades)

        assert palette.measure_contrast(paint.main, paint.number) >= 4.5
        assert sum(share for share, _ in paint.bands) == pytest.approx(1)


def test_text_is_legible_on_both_papers() -> None:
    for ink in (palette.LIGHT, palette.DARK):
        assert palette.measure_contrast(ink.text, ink.paper) >= 7
        assert palette.measure_contrast(ink.quiet, ink.paper) >= 4.5


# Tests of the size and reproducibility.


def test_an_operation_inside_another_leaves_no_bubble_above_it() -> None:
    ops = [Op(0, Phase.F, 0, 0, 60), Op(0, Phase.W, 1, 40, 100)]

    svg = render(make_report(ops), View())

    boxes = [path for path in parse_svg(svg).iter(f"{SVG}path") if path.get("class") == "bv-paper"]
    lowered = [path for path in parse_svg(svg).iter(f"{SVG}path") if "v15h" in path.get("d", "")]
    assert len(boxes) == len(lowered) == 1
    assert boxes[0].get("d", "").split("h")[1] == lowered[0].get("d", "").split("h")[1].replace(
        "v15", "v30"
    )


def list_boxes(svg: str) -> list[tuple[str, tuple[float, float, float, float]]]:
    """Return (color, (left, top, right, bottom)) of the boxes of rows, in drawing order."""
    shape = re.compile(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h")
    boxes = []
    for path in parse_svg(svg).iter(f"{SVG}path"):
        if path.get("class") == "bv-paper" or path.find(f"{SVG}title") is not None:
            left, top, wide, high = map(float, shape.findall(path.get("d", ""))[0])
            boxes.append((path.get("fill", ""), (left, top, left + wide, top + high)))
    return boxes


def find_color_at(svg: str, x: float, y: float) -> str:
    """Return the color of the topmost box at a point of the only row."""
    visible_color = ""
    for color, (left, top, right, bottom) in list_boxes(svg):
        if left < x < right and top < y < bottom:
            visible_color = color
    return visible_color


def list_numbers(svg: str) -> list[tuple[str, float, float]]:
    """Return (text, x, y of the baseline) of the microbatch numbers, sorted by text."""
    centered = (g for g in parse_svg(svg).iter(f"{SVG}g") if g.get("pointer-events") == "none")
    texts = [text for group in centered for text in group.iter(f"{SVG}text")]
    return sorted((t.text or "", float(t.get("x", "")), float(t.get("y", ""))) for t in texts)


@pytest.mark.parametrize("end", [60, 100])
def test_operations_side_by_side_have_a_half_and_a_number_each(end: int) -> None:
    ops = [Op(0, Phase.F, 0, 0, 60), Op(0, Phase.W, 1, 0, end), Op(0, Phase.F, 2, 100, 200)]

    svg = render(make_report(ops), View())

    forward, weights = palette.make_paint(Phase.F).main, palette.make_paint(Phase.W).main
    assert find_color_at(svg, 100, 5) == forward
    assert weights in find_color_at(svg, 100, 20)
    assert [(text, y < 15) for text, _, y in list_numbers(svg)] == [
        ("0", True),
        ("1", False),
        ("2", False),
    ]


def test_operations_of_two_streams_stay_in_their_halves() -> None:
    first = [Op(0, Phase.F, n, 60 * n, 60 * n + 60) for n in range(3)]
    second = [Op(0, Phase.W, n, 20 + 60 * n, 80 + 60 * n) for n in range(3)]

    svg = render(make_report([*first, *second]), View())

    forward, weights = palette.make_paint(Phase.F).main, palette.make_paint(Phase.W).main
    for x in (150, 250, 450, 620, 750):
        assert find_color_at(svg, x, 5) == forward
        assert weights in find_color_at(svg, x, 20)
    assert {y < 15 for text, _, y in list_numbers(svg)} == {True, False}
    assert len(list_numbers(svg)) == 6


def test_numbers_are_written_upright_in_all_boxes_or_in_none() -> None:
    wide, narrow = (render(make_report(run_1f1b(4, m)), View()) for m in (8, 40))

    assert list_texts(wide).count("7") == 8
    assert not {"7", "39"} & set(list_texts(narrow))
    assert "rotate(-90" not in wide + narrow


# Test with a golden file.


def make_golden_report() -> Report:
    """Return the report of the golden picture: 2 ranks, 3 microbatches, separate B and W."""
    orders = tuple(
        tuple(Operation(rank, Phase[word[0]], int(word[1])) for word in order.split())
        for rank, order in enumerate(("F0 F1 B0 F2 B1 W0 B2 W1 W2", "F0 B0 F1 B1 W0 F2 B2 W1 W2"))
    )
    durations = make_durations(10 * MS, 11 * MS, 8 * MS, 6 * MS)
    ops = run_plan(Plan(2, 3, 1, (0, 1), orders), durations, latency=MS, optimizer=True)
    return make_report(ops, limitations=(Limitation("no NIC metrics", "they were not recorded"),))


# Tests of several clocks and replicas.


def set_clocks(report: Report, *uncertainties: int | None, host: str | None = None) -> Report:
    """Return the report with one profile per rank and the given clock uncertainties."""
    (profile,) = report.profiles
    hosts = [host or f"node{number}" for number in range(len(uncertainties))]
    return replace(
        report,
        profiles=tuple(
            replace(profile, host=hostname, clock_uncertainty_ns=uncertainty)
            for hostname, uncertainty in zip(hosts, uncertainties, strict=True)
        ),
        ranks=tuple(
            replace(rank, host=hostname, profile=rank.index, label=f"{hostname} GPU {rank.index}")
            for hostname, rank in zip(hosts, report.ranks, strict=True)
        ),
    )


def list_error_bars(svg: str) -> list[tuple[float, float]]:
    """Return (left, right) of the error bars, from top to bottom."""
    return [
        (float(left), float(right))
        for path in parse_svg(svg).iter(f"{SVG}path")
        if path.get("class") == "bv-mark" and path.get("fill") == "none"
        for left, right in re.findall(r"M([0-9.]+) [0-9.]+H([0-9.]+)", path.get("d", ""))
    ]


def test_clocks_have_error_bars_if_these_are_visible() -> None:
    report = set_clocks(make_report(run_1f1b(4, 4)), 0, 500_000, 1_000_000, None)

    svg = render(report, View())

    texts = list_texts(svg)
    assert [text for text in texts if text.startswith("node")] == [
        "node0 GPU 0, clock ± 0",
        "node1 GPU 1, clock ± 500.0 µs",
        "node2 GPU 2, clock ± 1.000 ms",
        "node3 GPU 3, clock ± ?",
    ]
    assert "± and bars: clock uncertainty of the host." in " ".join(texts)
    (left, right), (lower, higher) = list_error_bars(svg)
    assert higher - lower == pytest.approx(2 * (right - left), abs=0.2)
    # A bar is centered on the first start of its rank, which is one F later for each rank.
    assert lower + higher > left + right
    invisible = render(set_clocks(make_report(run_1f1b(2, 2)), 0, 1_000), View())
    assert list_error_bars(invisible) == []
    assert "±" not in " ".join(list_texts(invisible))
    # Two machines with the same hostname have separate clocks.
    local = render(set_clocks(make_report(run_1f1b(2, 2)), 0, 1_000_000, host="localhost"), View())
    assert len(list_error_bars(local)) == 1
    assert "localhost GPU 1, clock ± 1.000 ms" in list_texts(local)


def render_with_ratio(**changes: object) -> list[str]:
    """Return the texts of a picture after changing the ratio of its iteration."""
    report = make_report(run_1f1b(2, 2))
    (iteration,) = report.iterations
    ratio = replace(iteration.ratios["schedule"], **changes)  # type: ignore[arg-type]  # by name
    changed = replace(iteration, ratios={**iteration.ratios, "schedule": ratio})
    return list_texts(
        render(replace(report, iterations=make_iteration_records((changed,))), View())
    )


def test_copies_of_a_stage_share_a_row_if_asked() -> None:
    texts = list_texts(render(COPIES, View(rows="stage")))

    assert [text for text in texts if "GPU" in text] == [
        "one of 2: node1:0 GPU 0",
        "one of 2: node1:1 GPU 1",
    ]
    note = "Rows: stages, each drawn as its first replica, with the ratio of that replica."
    assert note in " ".join(texts)
    by_rank = list_texts(render(COPIES, View(rows="rank")))
    assert len([text for text in by_rank if "GPU" in text]) == 4
    assert "share a row" not in " ".join(by_rank)


def test_stage_rows_draw_the_pipeline_that_the_advice_is_about() -> None:
    """In another replica, the marked row would show a rank that is not slow."""
    report = analyze_planting(Planting(stages=3, microbatches=6, replicas=2, slow_rank=4))
    texts = list_texts(render(report, View(rows="stage")))

    iteration = choose_shown_iteration(report)
    assert iteration is not None
    ratios = {rank.rank: rank.bubble_ratio[report.headline] for rank in iteration.ranks}
    expected_ranks = [rank for rank in report.ranks if rank.pipeline == 1]
    assert [text for text in texts if "GPU" in text and text.startswith("one of 2: ")] == [
        f"one of 2: {rank.label}" for rank in expected_ranks
    ]
    percentages = [text.split() for text in texts if text.endswith("%")]
    assert [words for words in percentages if len(words) == 2] == [
        [f"{100 * (ratios[rank.index] or 0.0):.1f}", "%"] for rank in expected_ranks
    ]
    assert f"{MARK} p1 stage 1" in texts
    note = "Rows: stages, each drawn as its replica in the pipeline that the advice is"
    assert note in " ".join(texts)


def test_the_picture_equals_the_golden_file() -> None:
    assert render(make_golden_report(), View()) == (GOLDEN / "small.svg").read_text(
        encoding="utf-8"
    )


# Tests of texts.


def test_only_an_unusual_primary_ratio_is_explained() -> None:
    report = make_report(run_1f1b(2, 2))
    unknown = {name: replace(s, mean=None) for name, s in report.summary.bubble_ratio.items()}
    without = replace(report, summary=replace(report.summary, bubble_ratio=unknown))

    assert report.headline_reason not in " ".join(list_texts(render(report, View())))
    for unusual in (replace(report, headline="stage"), without):
        reason = f"{unusual.headline}, because {report.headline_reason}"
        assert reason in list_texts(render(unusual, View()))


LEFT_OUT, CUT = {"averaged": False}, {"averaged": False, "complete": False}
BARE: dict[str, object] = {**CUT, "ranks": make_rank_iterations(())}


@pytest.mark.parametrize(
    ("lengths", "changes", "index"),
    [
        ((), (), None),
        ((50, 10, 30, 40, 20), (), 2),
        ((7, 7, 7), (), 0),
        ((8, 6), (), 1),
        ((9, 7, 7, 5), (), 1),
        # Averaged iterations come first, then complete ones.
        ((30, 20, 10), (LEFT_OUT, LEFT_OUT, {}), 2),
        ((30, 20, 10), (LEFT_OUT, CUT, LEFT_OUT), 2),
        ((30, 20, 10), ({**LEFT_OUT, "kind": "evaluation"}, LEFT_OUT, CUT), 1),
        ((30, 20, 10), (CUT, CUT, CUT), 1),
        ((30, 20, 10), (BARE, BARE, CUT), 2),
    ],
)
def test_the_first_median_iteration_is_typical(
    lengths: tuple[int, ...], changes: tuple[dict[str, Any], ...], index: int | None
) -> None:
    iterations = make_iteration_records(
        replace(make_iteration(n, [Op(0, Phase.F, 0, 0, length)]), **change)
        for n, (length, change) in enumerate(
            zip(lengths, changes or [{}] * len(lengths), strict=True)
        )
    )
    typical = replace(make_report([]), iterations=iterations).typical_iteration()

    assert (typical and typical.index) == index


PAIR = Op(0, Phase.FB, 7, 0, 9 * MS, 0, second_microbatch=3, second_chunk=1)
LONE = make_report([], limitations=(Limitation("no ranges", "NVTX was not recorded"),))
TWO_NODES = tuple(make_rank(index, f"node{index // 4}") for index in range(8))
SENDING = [*run_1f1b(2, 2), Op(0, Phase.SEND_F, 0, 10 * MS, 12 * MS)]
NEIGHBORS, SLIVERS = (
    [
        Op(0, Phase.F, mb, start, end, iteration=iteration)
        for (mb, iteration), (start, end) in zip(
            ((0, 0), (1, 0), (0, 1), (1, 1)), times, strict=True
        )
    ]
    for times in (
        ((0, 60), (100, 140), (70, 90), (150, 160)),
        ((0, 60_000), (100_000, 140_000), (139_990, 160_000), (150_000, 160_000)),
    )
)
COPIES = replace(
    make_report(
        [replace(op, rank=op.rank + 2 * n, busy=()) for op in run_1f1b(2, 2) for n in (0, 1)]
    ),
    ranks=tuple(make_rank(i, pipeline=i // 2, stage=i % 2) for i in range(4)),
)


def test_slivers_of_other_iterations_are_not_mentioned() -> None:
    svg = render(make_report(SLIVERS), View(iterations=(0,)))

    assert "other iteration" not in svg
    assert "merged" not in svg


@pytest.mark.parametrize(
    ("report", "view", "texts"),
    [
        (
            LONE,
            View(),
            {"Nothing to draw: no GPU ran any operation", "no ranges: NVTX was not recorded"},
        ),
        (make_report(SENDING), View(ranks=(7,)), {"Nothing to draw: no such rank"}),
        (
            make_report(SENDING),
            View(iterations=(7,)),
            {"Nothing to draw: no such iteration or rank"},
        ),
        (make_report([PAIR]), View(), {"7;3", "FB7;3: at 0.000 ms for 9.000 ms"}),
        (make_report(SENDING), View(communication=True), {"communication (thin lane)"}),
        (make_report(NEIGHBORS), View(iterations=(0,)), {"other iteration"}),
        (make_report(run_1f1b(8, 8), ranks=TWO_NODES), View(), {"node0:0 GPU 0", "node1:7 GPU 7"}),
    ],
)
def test_a_picture_says_what_it_shows(report: Report, view: View, texts: set[str]) -> None:
    svg = render(report, view)

    assert texts <= {*list_texts(svg), *list_tooltips(svg)}
    assert "Nothing" not in "".join(texts) or len(list_texts(svg)) == len(texts)
    assert ("communication (thin lane)" in list_texts(svg)) == view.communication


def test_hostile_names_are_inert() -> None:
    svg = render(rename_all(make_report(run_1f1b(2, 2)), HOSTILE), View())

    assert "<script" not in svg
    assert not [element for element in parse_svg(svg).iter() if "script" in element.tag]
    assert len(svg) < 20_000
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e\ud800-\udfff\ufffe\uffff]", svg)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"interval": (0.30, 0.36)}, "Clock bounds: 30.0 % to 36.0 %."),
        ({"interval": (0.3331, 0.3346)}, "Clock bounds: 33.3 % to 33.5 %."),
        ({"interval": (0.33331, 0.33333)}, ""),
        ({"interval": None}, ""),
        ({"contradicted": True}, "!: the ratio depends on clocks that contradict each other."),
    ],
)
def test_the_bounds_that_clocks_allow_are_noted(changes: dict[str, object], says: str) -> None:
    texts = render_with_ratio(**changes)

    assert says in " ".join(texts).replace("\u00a0", " ")
    assert ("Clock bounds" in " ".join(texts)) == says.startswith("Clock bounds")
    marked = ["schedule bubble ratio 33.3\u00a0% !", *["33.3\u00a0% !"] * 2]
    assert [t for t in texts if t.endswith("!")] == (marked if "contradicted" in changes else [])


def test_clock_bounds_are_those_of_the_drawn_iteration() -> None:
    report = analyze_planting(Planting(iterations=3))
    ratio = replace(report.iterations[1].ratios["schedule"], interval=(0.30, 0.36))
    selected = replace(report.iterations[1], ratios={"schedule": ratio})
    iterations = make_iteration_records((report.iterations[0], selected, report.iterations[2]))
    svg = render(replace(report, iterations=iterations), View(iterations=(1,)))

    text = " ".join(list_texts(svg)).replace("\u00a0", " ")
    assert f"Clock bounds of iteration {selected.name}: 30.0 % to 36.0 %." in text


@pytest.mark.parametrize("microbatches", [8, 128])
def test_the_description_explains_numbers_only_if_boxes_have_some(microbatches: int) -> None:
    svg = render(analyze_planting(Planting(microbatches=microbatches, iterations=1)), View())

    has_numbers = bool(list_numbers(svg))
    assert has_numbers == (microbatches == 8)
    assert ("the number in a box is its microbatch" in svg) == has_numbers


#: Two pipelines, in which one rank is slow in the last iteration only.
SLOW_IN_ONE = Planting(
    stages=3, microbatches=6, replicas=2, iterations=3, slow_rank=1, slow_rank_from=2, kernels=1
)


@pytest.mark.parametrize("rows", ["rank", "stage", "spread"])
@pytest.mark.parametrize("selected", [(0,), (2,), (0, 1, 2)])
def test_the_number_next_to_a_row_belongs_to_what_is_drawn(
    rows: str, selected: tuple[int, ...]
) -> None:
    report = analyze_planting(SLOW_IN_ONE)
    view = View(rows=rows, iterations=selected)
    selection = select(report, view)
    assert selection is not None
    ratios = [
        {
            rank_iteration.rank: rank_iteration.bubble_ratio["schedule"] or 0.0
            for rank_iteration in report.iterations[index].ranks
        }
        for index in selected
    ]

    texts = list_texts(render(report, view))

    title = "mean bubble" if len(selected) > 1 else "bubble"
    printed = texts[: texts.index(title)]
    means = [fmean(ratio[rank.index] for ratio in ratios) for rank in selection.ranks]
    expected = [f"{100 * mean:.1f}\u00a0%" for mean in means]
    assert [text for text in printed if text in expected][-len(expected) :] == expected
