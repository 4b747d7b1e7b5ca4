"""The SVG picture: empty reports, ties, hostile names, colours, size, and a small golden."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations

import pytest

from bubbleviz.count.iterations import Iterations, Ratio
from bubbleviz.count.rank_iterations import Account
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.phases import COMPUTE, Phase
from bubbleviz.render import palette
from bubbleviz.render.picture.legend import picture as render
from bubbleviz.render.picture.page import at_most, duration, ticks
from bubbleviz.render.rows import counted_windows
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.support.drawn_reports import (
    HOSTILE,
    MS,
    SVG,
    Op,
    iteration_of,
    one_f_one_b,
    parsed,
    rank_of,
    ranks_of,
    report_of,
    simulated,
    tooltips,
    written,
)
from tests.support.places import GOLDEN

# Building reports


# Nothing and little


def test_an_empty_report_says_what_is_missing() -> None:
    report = report_of([], limitations=(Limitation("no ranges", "NVTX was not recorded"),))

    svg = render(report, View())

    assert written(svg) == [
        "Nothing to draw: no GPU has any operation",
        "no ranges: NVTX was not recorded",
    ]
    assert parsed(svg).get("role") == "img"


def test_a_view_of_nothing_there_says_so() -> None:
    report = report_of(one_f_one_b(2, 2))

    assert written(render(report, View(ranks=(7,)))) == ["Nothing to draw: no such rank"]
    assert written(render(report, View(iterations=(7,)))) == [
        "Nothing to draw: no such iteration or rank"
    ]


# Which iteration


def typical(*lengths: int, **changes: bool | str) -> int | None:
    """Return which iteration a report of such ``step`` windows shows."""
    iterations = (
        replace(iteration_of(index, [Op(0, Phase.F, 0, 0, length)]), **changes)  # type: ignore[arg-type]  # by name
        for index, length in enumerate(lengths)
    )
    found = replace(report_of([]), iterations=Iterations(iterations)).typical_iteration()
    return None if found is None else found.index


@pytest.mark.parametrize(
    ("values", "index"),
    [((), None), ((50, 10, 30, 40, 20), 2), ((7, 7, 7), 0), ((9, 7, 7, 5), 1), ((8, 6), 1)],
)
def test_the_first_median_iteration_is_typical(values: tuple[int, ...], index: int | None) -> None:
    assert typical(*values) == index


def test_averaged_iterations_come_first_then_complete_ones() -> None:
    ops = [Op(0, Phase.F, 0, 100 * n, 100 * n + 10 * (3 - n), iteration=n) for n in range(3)]
    report = report_of(ops)

    def shown(*changes: dict[str, object]) -> int | None:
        changed = [
            replace(iteration, **change)  # type: ignore[arg-type]  # by name
            for iteration, change in zip(report.iterations, changes, strict=True)
        ]
        found = replace(report, iterations=Iterations(changed)).typical_iteration()
        return None if found is None else found.index

    left_out: dict[str, object] = {"averaged": False}
    cut: dict[str, object] = {"averaged": False, "complete": False}
    gone: dict[str, object] = {**cut, "ranks": ranks_of(())}
    assert shown(left_out, left_out, {}) == 2
    assert shown(left_out, cut, left_out) == 2
    assert shown({**left_out, "kind": "evaluation"}, left_out, cut) == 1
    assert shown(cut, cut, cut) == 1
    assert shown(gone, gone, cut) == 2


# Which windows


def periodic(*windows: tuple[int, int], ends: int) -> Report:
    """Return a report of one iteration whose ranks have these ``period`` windows."""
    ops = [Op(rank, Phase.F, 0, start, ends) for rank, (start, _) in enumerate(windows)]
    report = report_of(ops, headline="period")
    (iteration,) = report.iterations
    ranks = tuple(
        replace(
            own,
            accounts={**own.accounts, "period": Account(*window, 0, 0, 0, 0, 0)},
            bubble_ratio={"period": 0.25},
        )
        for own, window in zip(iteration.ranks, windows, strict=True)
    )
    ratios = {**iteration.ratios, "period": Ratio(0.25, 0.25, None, windows[0][1] - windows[0][0])}
    return replace(
        report, iterations=Iterations((replace(iteration, ratios=ratios, ranks=ranks_of(ranks)),))
    )


def hatched(svg: str) -> list[tuple[float, float]]:
    """Return left edge and width of what is hatched, row by row."""
    (path,) = (
        element.get("d", "")
        for element in parsed(svg).iter(f"{SVG}path")
        if element.get("fill", "").startswith("url(#bv-bubble)")
        and element.get("d", "").count("M") > 1
    )
    found = re.findall(r"M([0-9.]+) [0-9.]+h([0-9.]+)v", path)
    return [(float(left), float(width)) for left, width in found]


def test_only_the_counted_window_of_a_rank_is_hatched() -> None:
    first, second = hatched(
        render(periodic((0, 80 * MS), (20 * MS, 100 * MS), ends=70 * MS), View())
    )

    assert second[0] - first[0] == pytest.approx(first[1] / 4, abs=0.02)
    assert second[1] == pytest.approx(first[1], abs=0.02)


def test_the_bracket_is_the_window_of_the_first_row_and_says_so() -> None:
    report = periodic((0, 80 * MS), (20 * MS, 100 * MS), ends=70 * MS)

    svg = render(report, View())

    left, width = hatched(svg)[0]
    (bracket,) = re.findall(r"M([0-9.]+) [0-9.]+v8M([0-9.]+) [0-9.]+v8", svg)
    assert [float(x) for x in bracket] == pytest.approx([left, left + width], abs=0.02)
    assert "iteration 0: 25.0\u00a0% of 80.00\u00a0ms" in written(svg)
    assert any("brackets span the first row's" in text for text in written(svg))
    assert not any("brackets" in text for text in written(render(small(), View())))


def test_an_iteration_without_the_headline_falls_back_to_schedule() -> None:
    (iteration,) = report_of(one_f_one_b(2, 2)).iterations

    assert counted_windows(iteration, "period") == {0: (0, 90 * MS), 1: (0, 90 * MS)}
    without = render(replace(report_of(one_f_one_b(2, 2)), headline="period"), View())
    assert "Where an iteration has no period, its schedule window is hatched." in written(without)
    assert written(without)[0] == "period bubble ratio unknown"
    bare = ranks_of([replace(own, accounts={}) for own in iteration.ranks])
    assert counted_windows(replace(iteration, ranks=bare), "period")[1] == (
        10 * MS,
        70 * MS,
    )


def test_the_plus_or_minus_says_what_it_is() -> None:
    ops = one_f_one_b(2, 2) + one_f_one_b(2, 2, iteration=1, start=200 * MS)
    more = ops + one_f_one_b(2, 2, iteration=2, start=400 * MS)

    two, three = (" ".join(written(render(report_of(of), View()))[:2]) for of in (ops, more))

    assert "mean 33.3\u00a0% (33.3\u00a0% and 33.3\u00a0%) over 2 iterations" in two
    assert re.search("\u00b1 [0-9.]+\u00a0% \\(95 % CI\\) over 3 iterations", three)


# What is drawn


def test_every_operation_has_a_number_and_a_tooltip() -> None:
    svg = render(report_of(one_f_one_b(2, 3)), View())

    numbers = [text for text in written(svg) if text in {"0", "1", "2"}]
    # Two boxes of each on either rank; the first 0 after them is that of the axis.
    assert sorted(numbers) == ["0"] * 5 + ["1"] * 4 + ["2"] * 4
    assert tooltips(svg)[:2] == [
        "F 0 (F0.0.0): at 0.000 ms for 10.000 ms",
        "F 1 (F1.0.0): at 10.000 ms for 10.000 ms",
    ]
    assert len(tooltips(svg)) == 12


def test_the_caption_and_the_rows_name_the_ratio() -> None:
    svg = render(report_of(one_f_one_b(4, 8)), View())

    assert written(svg)[0] == "schedule bubble ratio 27.3\u00a0%"
    assert written(svg).count("27.3\u00a0%") == 4
    assert "iteration 0: 27.3\u00a0% of 330.0\u00a0ms" in written(svg)


def test_a_pair_shows_both_microbatches() -> None:
    pair = Op(0, Phase.FB, 7, 0, 9 * MS, 0, second_microbatch=3, second_chunk=1)

    svg = render(report_of([pair]), View())

    assert "7;3" in written(svg)
    assert tooltips(svg) == ["FB 7;3 chunk 0;1: at 0.000 ms for 9.000 ms"]


def test_an_operation_without_device_time_gets_no_box() -> None:
    ops = one_f_one_b(2, 2)
    ops[0] = replace(ops[0], busy=None)

    svg = render(report_of(ops), View())

    assert "without device time: F 0" in tooltips(svg)
    assert not [text for text in tooltips(svg) if text.startswith("F 0 (F0.0.0): at 0.000")]
    assert any("Hollow mark: 1 without GPU work" in text for text in written(svg))


def test_other_iterations_in_the_window_are_paler() -> None:
    ops = [Op(0, Phase.F, 0, 0, 60), Op(0, Phase.F, 1, 100, 140)]
    ops += [Op(0, Phase.F, 0, 70, 90, iteration=1), Op(0, Phase.F, 1, 150, 160, iteration=1)]

    svg = render(report_of(ops), View(iterations=(0,)))

    assert "Faded: neighbouring iterations." in written(svg)
    assert svg.count('fill-opacity="0.3"') == 1


def test_a_cut_operation_is_torn() -> None:
    svg = render(report_of([Op(0, Phase.F, 0, 0, 9, cut=True)]), View())

    assert "Torn edge: cut by the end of the capture." in written(svg)


def test_communication_is_drawn_on_request_only() -> None:
    ops = [*one_f_one_b(2, 2), Op(0, Phase.SEND_F, 0, 10 * MS, 12 * MS)]

    assert "communication (thin lane)" not in written(render(report_of(ops), View()))
    assert "communication (thin lane)" in written(render(report_of(ops), View((), (), True)))


def test_hosts_are_grouped_where_there_are_several() -> None:
    ranks = tuple(rank_of(index, f"node{index // 4}") for index in range(8))

    texts = written(render(report_of(one_f_one_b(8, 8), ranks=ranks), View()))

    assert {"node0", "node1", "3 GPU 3"} <= set(texts)


# Hostile input


def test_hostile_names_are_inert() -> None:
    ops = [replace(op, name=HOSTILE) for op in one_f_one_b(2, 2)]
    ranks = tuple(replace(rank_of(index, HOSTILE), label=f"{index}{HOSTILE}") for index in range(2))
    report = report_of(ops, ranks=ranks, limitations=(Limitation(HOSTILE, HOSTILE),) * 9)
    report = replace(report, headline=HOSTILE, headline_reason=HOSTILE)
    report = replace(
        report, iterations=Iterations(replace(it, name=HOSTILE) for it in report.iterations)
    )

    svg = render(report, View())

    assert "<script" not in svg
    assert not [element for element in parsed(svg).iter() if "script" in element.tag]
    assert len(svg) < 20_000
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e\ud800-\udfff\ufffe\uffff]", svg)


# Time


@pytest.mark.parametrize(
    ("span", "texts", "unit"),
    [
        (1, ["0", "1"], "ns"),
        (63_000_000, ["0", "10", "20", "30", "40", "50", "60"], "ms"),
        (1_200_000, ["0", "200", "400", "600", "800", "1000", "1200"], "µs"),
        (2_500_000_000, ["0.0", "0.5", "1.0", "1.5", "2.0", "2.5"], "s"),
    ],
)
def test_ticks_are_round(span: int, texts: list[str], unit: str) -> None:
    times, found = ticks(span, 7)

    assert ([text for _, text in times], found) == (texts, unit)


def test_durations_have_a_unit() -> None:
    assert [duration(ns) for ns in (0, 999, 1_500, 63_214_000, 12_345_678_901)] == [
        "0\u00a0ns",
        "999\u00a0ns",
        "1.500\u00a0µs",
        "63.21\u00a0ms",
        "12.35\u00a0s",
    ]


# Colours


@pytest.mark.parametrize("shades", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("phase", COMPUTE)
def test_numbers_are_legible_on_their_fill(phase: Phase, shades: int) -> None:
    for shade in range(shades):
        paint = palette.paint(phase, shade, shade, shades)

        assert palette.contrast(paint.main, paint.number) >= 4.5
        assert sum(share for share, _ in paint.bands) == pytest.approx(1)


@pytest.mark.parametrize(
    ("first", "second"), list(combinations((Phase.F, Phase.B, Phase.W, Phase.OPTIMIZER), 2))
)
def test_phases_differ_in_grey(first: Phase, second: Phase) -> None:
    one, other = palette.paint(first), palette.paint(second)

    shares = [[share for share, _ in paint.bands] for paint in (one, other)]
    assert shares[0] != shares[1] or palette.contrast(one.main, other.main) >= 1.5


def test_text_is_legible_on_both_papers() -> None:
    for ink in (palette.LIGHT, palette.DARK):
        assert palette.contrast(ink.text, ink.paper) >= 7
        assert palette.contrast(ink.quiet, ink.paper) >= 4.5


# Size, and the same again


def test_coordinates_have_two_decimals_at_most() -> None:
    svg = render(report_of(one_f_one_b(3, 7, latency=1_234_567)), View(communication=True))

    assert not re.search(r"\d\.\d{3}", re.sub(r"<title>[^<]*</title>", "", svg))


def test_an_operation_inside_another_leaves_no_bubble_above_it() -> None:
    ops = [Op(0, Phase.F, 0, 0, 60), Op(0, Phase.W, 1, 40, 100)]

    svg = render(report_of(ops), View())

    boxes = [path for path in parsed(svg).iter(f"{SVG}path") if path.get("class") == "bv-paper"]
    lowered = [path for path in parsed(svg).iter(f"{SVG}path") if "v15h" in path.get("d", "")]
    assert len(boxes) == len(lowered) == 1
    assert boxes[0].get("d", "").split("h")[1] == lowered[0].get("d", "").split("h")[1].replace(
        "v15", "v30"
    )


def test_numbers_go_sideways_and_then_go() -> None:
    wide, narrow, tiny = (render(report_of(one_f_one_b(4, m)), View()) for m in (8, 40, 300))

    assert "rotate(-90" not in wide
    assert "rotate(-90" in narrow
    assert "150" not in written(tiny)


# Golden


def small() -> Report:
    """Return what the golden picture shows: 2 ranks, 3 microbatches, B and W apart."""
    orders = [
        [(Phase[word[0]], int(word[1]), 0) for word in order.split()]
        for order in ("F0 F1 B0 F2 B1 W0 B2 W1 W2", "F0 B0 F1 B1 W0 F2 B2 W1 W2")
    ]
    times = {Phase.F: 10 * MS, Phase.B: 11 * MS, Phase.W: 8 * MS}
    ops = simulated(orders, times, {(0, 0): 0, (1, 0): 1}, latency=MS, optimizer=6 * MS)
    return report_of(ops, limitations=(Limitation("no NIC metrics", "they were not recorded"),))


# Several clocks, copies


def on_clocks(report: Report, *uncertainties: int | None, host: str | None = None) -> Report:
    """Return the report with a profile a rank, their clocks as uncertain as that."""
    (profile,) = report.profiles
    hosts = [host or f"node{number}" for number in range(len(uncertainties))]
    return replace(
        report,
        profiles=tuple(
            replace(profile, host=own, clock_uncertainty_ns=uncertainty)
            for own, uncertainty in zip(hosts, uncertainties, strict=True)
        ),
        ranks=tuple(
            replace(rank, host=own, profile=rank.index, label=f"{own} GPU {rank.index}")
            for own, rank in zip(hosts, report.ranks, strict=True)
        ),
    )


def error_bars(svg: str) -> list[tuple[float, float]]:
    """Return (left, right) of the error bars, from the top down."""
    return [
        (float(left), float(right))
        for path in parsed(svg).iter(f"{SVG}path")
        if path.get("class") == "bv-mark" and path.get("fill") == "none"
        for left, right in re.findall(r"M([0-9.]+) [0-9.]+H([0-9.]+)", path.get("d", ""))
    ]


def test_clocks_have_error_bars_where_they_can_be_seen() -> None:
    report = on_clocks(report_of(one_f_one_b(4, 4)), 0, 500_000, 1_000_000, None)

    svg = render(report, View())

    texts = written(svg)
    assert [text for text in texts if text.startswith("node")] == [
        "node0 GPU 0 ± 0",
        "node1 GPU 1 ± 500 µs",
        "node2 GPU 2 ± 1 ms",
        "node3 GPU 3 ± ?",
    ]
    assert "± and bars: clock uncertainty of a host." in " ".join(texts)
    (left, right), (lower, higher) = error_bars(svg)
    assert higher - lower == pytest.approx(2 * (right - left), abs=0.2)
    # Around the first start of the rank, one F later a rank.
    assert lower + higher > left + right
    assert error_bars(render(on_clocks(report_of(one_f_one_b(2, 2)), 0, 1_000), View())) == []


def test_machines_of_one_hostname_have_error_bars_of_their_own() -> None:
    report = on_clocks(report_of(one_f_one_b(2, 2)), 0, 1_000_000, host="localhost")

    svg = render(report, View())

    assert len(error_bars(svg)) == 1
    assert "localhost GPU 1 ± 1 ms" in written(svg)


def with_ratio(**changes: object) -> list[str]:
    """Return the texts of a picture whose iteration has another ratio."""
    report = report_of(one_f_one_b(2, 2))
    (iteration,) = report.iterations
    ratio = replace(iteration.ratios["schedule"], **changes)  # type: ignore[arg-type]  # by name
    changed = replace(iteration, ratios={**iteration.ratios, "schedule": ratio})
    return written(render(replace(report, iterations=Iterations((changed,))), View()))


def test_clocks_that_contradict_are_marked() -> None:
    texts = with_ratio(contradicted=True)

    assert [text for text in texts if text.endswith("!")] == [
        "schedule bubble ratio 33.3\u00a0% !",
        *["33.3\u00a0% !"] * 2,
    ]
    assert "! depends on clocks that contradict each other." in " ".join(texts)


@pytest.mark.parametrize(
    ("interval", "says"),
    [
        ((0.30, 0.36), "Clock bounds: 30.0 % to 36.0 %."),
        ((0.33331, 0.33333), "Clock bounds: 33.331 % to 33.333 %."),
        ((0.33333, 0.33333), None),
        (None, None),
    ],
)
def test_what_the_clocks_allow_is_noted(
    interval: tuple[float, float] | None, says: str | None
) -> None:
    texts = " ".join(with_ratio(interval=interval)).replace("\u00a0", " ")

    assert ("Clock bounds" in texts) == (says is not None)
    assert says is None or says in texts


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (1, "1 ns"),
        (123, "130 ns"),
        (9_950, "10 µs"),
        (1_010, "1.1 µs"),
        (999_999, "1 ms"),
        (12_000_001, "13 ms"),
        (1_500_000_000, "1.5 s"),
    ],
)
def test_an_error_is_rounded_up(ns: int, text: str) -> None:
    assert at_most(ns).replace("\u00a0", " ") == text


def copies() -> Report:
    """Return two replicas of two stages."""
    ranks = tuple(rank_of(i, pipeline=i // 2, stage=i % 2) for i in range(4))
    ops = [
        replace(op, rank=op.rank + 2 * replica, busy=())
        for op in one_f_one_b(2, 2)
        for replica in (0, 1)
    ]
    return report_of(ops, ranks=ranks)


def test_copies_of_a_stage_share_a_row_if_asked() -> None:
    texts = written(render(copies(), View(rows="stage")))

    assert [text for text in texts if "GPU" in text] == [
        "1 of 2: node1:0 GPU 0",
        "1 of 2: node1:1 GPU 1",
    ]
    assert "Rows: stages; each is drawn as its first replica ran" in " ".join(texts)
    by_rank = written(render(copies(), View(rows="rank")))
    assert len([text for text in by_rank if "GPU" in text]) == 4
    assert "share a row" not in " ".join(by_rank)


def test_golden() -> None:
    assert render(small(), View()) == (GOLDEN / "small.svg").read_text(encoding="utf-8")
