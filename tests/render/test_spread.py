"""The spread of very many ranks in tables and pictures, and the ranks that stand out."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from bubbleviz.cli.app import main
from bubbleviz.count.iterations import make_iteration_records
from bubbleviz.explain.standouts import Standout
from bubbleviz.model.phases import Phase
from bubbleviz.render.picture.picture import picture as render
from bubbleviz.render.rows import make_rows
from bubbleviz.render.text.first_screen import MAX_LINES, render_first_screen
from bubbleviz.render.text.report import list_sections, select_sections
from bubbleviz.render.text.terminal import Display, join_plain_lines, render_plain_text
from bubbleviz.render.wrapping import measure_cells
from bubbleviz.report import rank_means
from bubbleviz.report.rank_means import compute_rank_means as means_of
from bubbleviz.report.rank_means import list_standouts
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.planting import Planting
from tests.support.command_line import CommandLine
from tests.support.drawn_reports import (
    MS,
    Op,
    list_texts,
    make_pipelines,
    make_rank_iterations,
    make_report,
)
from tests.support.places import CHECKOUT
from tests.support.planted_runs import analyze_planting

GOLDEN = CHECKOUT / "tests" / "golden"
FORWARD, BACKWARD = 10 * MS, 20 * MS


@cache
def make_run(pipelines: int, stages: int = 2, *, slow: tuple[int, ...] = ()) -> Report:
    """Return ideal pipelines of 4 microbatches. Slow pipelines take 1.5 times as long."""
    ops, ranks = make_pipelines(pipelines, stages, 4, slow)
    report = make_report(ops, ranks=ranks)
    busy = [
        tuple(
            replace(entry, busy_ns=_busy(ops, entry.rank), compute_ns=1, active_ns=1)
            for entry in iteration.ranks
        )
        for iteration in report.iterations
    ]
    iterations = [
        replace(i, ranks=make_rank_iterations(busy_of_ranks))
        for i, busy_of_ranks in zip(report.iterations, busy, strict=True)
    ]
    return replace(report, iterations=make_iteration_records(iterations))


@pytest.mark.parametrize("kind", ["stage", "spread"])
def test_rows_are_in_order_of_stages_although_the_first_pipeline_lacks_one(kind: str) -> None:
    report = make_run(3, 4)
    ranks = tuple(
        replace(rank, stage=None if rank.index == 5 else rank.stage)
        for rank in report.ranks
        if rank.index != 1
    )

    rows = make_rows(replace(report, ranks=ranks), View(rows=kind, ranks=tuple(range(2, 12))))

    assert [row.rank.stage for row in rows] == [0, 1, 2, None, 3]


def _busy(ops: list[Op], rank: int) -> dict[str, int]:
    operations = [op for op in ops if op.rank == rank]
    return {
        phase.label: sum(op.end - op.start for op in operations if op.phase is phase)
        for phase in (Phase.F, Phase.BW)
    }


@pytest.fixture
def few_ranks_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat more than four ranks as many ranks."""
    monkeypatch.setattr(rank_means, "MANY_RANKS", 4)


# Tests of ranks that stand out.


def test_a_low_bubble_ratio_does_not_read_as_praise() -> None:
    busy = Standout("stage", "stage 5", (5,), 0.2, -0.1768, "", 1.0)
    idle = replace(busy, above=0.1768)

    assert busy.why == "busier than the other ranks (bubble ratio 17.68 points below the median)"
    assert idle.why == "more idle than the other ranks (bubble ratio 17.68 points above the median)"


def test_ranks_of_a_slow_pipeline_stand_out_together() -> None:
    report = make_run(6, slow=(2,))
    (standout,) = list_standouts(report, means_of(report))

    assert (standout.name, standout.ranks) == ("pipeline p2", (4, 5))
    assert (standout.phase, standout.times) == ("BW", 1.5)
    assert standout.why == "BW takes 1.50 times the median of its stage"


def test_a_single_rank_stands_out() -> None:
    report = make_run(6)
    (iteration,) = report.iterations
    slow = replace(iteration.ranks[3], busy_ns={"F": 4 * FORWARD, "BW": 9 * BACKWARD})
    ranks = (*iteration.ranks[:3], slow, *iteration.ranks[4:])
    changed = replace(
        report,
        iterations=make_iteration_records([replace(iteration, ranks=make_rank_iterations(ranks))]),
    )
    (standout,) = list_standouts(changed, means_of(changed))
    assert standout.ranks == (3,)
    assert standout.why == "BW takes 2.25 times the median of its stage"


@pytest.mark.parametrize(("times", "stands_out"), [(1.1, False), (3.0, True)])
def test_a_rank_stands_out_by_a_time_that_is_noticeable_in_its_window(
    times: float, stands_out: bool
) -> None:
    """Ten percent of a phase of 1 ms is negligible in a window of 150 ms."""
    report = make_run(6)
    (iteration,) = report.iterations
    busy = [dict(rank.busy_ns) | {"Optimizer": MS} for rank in iteration.ranks]
    busy[3]["Optimizer"] = round(times * MS)
    ranks = [
        replace(rank_iteration, busy_ns=b)
        for rank_iteration, b in zip(iteration.ranks, busy, strict=True)
    ]
    changed = replace(
        report,
        iterations=make_iteration_records([replace(iteration, ranks=make_rank_iterations(ranks))]),
    )

    found_standouts = list_standouts(changed, means_of(changed))

    assert report.summary.window_ns["schedule"].mean == 150 * MS
    assert [rank_iteration.phase for rank_iteration in found_standouts] == [
        "Optimizer"
    ] * stands_out


def test_neither_of_two_ranks_stands_out() -> None:
    two = make_run(1)
    means = replace(means_of(two), bubble_ratio=np.array([0.1, 0.4]))

    assert list_standouts(two, means) == ()


# Tests of tables.


@pytest.fixture(scope="module")
def planted() -> Report:
    """Return a run of ten two-stage pipelines. The last pipeline is slow."""
    planting = Planting(
        stages=2,
        microbatches=4,
        replicas=10,
        slow_pipeline=9,
        slow_factor=1.5,
        iterations=2,
        jitter=0.02,
    )
    return analyze_planting(planting)


@pytest.mark.usefixtures("few_ranks_are_many")
def test_tables_of_many_ranks_have_a_row_per_stage(planted: Report) -> None:
    text = render_plain_text(list_sections(planted, View()))

    assert "idle time by cause per stage (mean of its replicas), ms" in text
    assert "Distribution over 20 ranks" in text
    assert re.search(r"^pipeline p9 +2 .* takes 1.[45][0-9] times", text, re.MULTILINE)
    assert not re.search(r"^17 ", text, re.MULTILINE)


@pytest.mark.usefixtures("few_ranks_are_many")
def test_all_ranks_or_some_are_listed_on_request(planted: Report) -> None:
    for table in ("ranks", "causes"):
        all_numbers = _list_rank_numbers(
            render_plain_text(select_sections(planted, View(rows="rank"), [table]))
        )
        selected_text = render_plain_text(select_sections(planted, View(ranks=(4, 5)), [table]))

        assert all_numbers == [*range(20)]
        assert _list_rank_numbers(selected_text) == [4, 5]
        assert "spread" not in selected_text


def _list_rank_numbers(text: str) -> list[int]:
    """Return the rank numbers at the start of lines."""
    return [int(digits) for digits in re.findall(r"^ *([0-9]+) +[01] ", text, re.MULTILINE)]


@pytest.mark.usefixtures("few_ranks_are_many")
@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize("unicode", [True, False])
def test_the_first_screen_shows_how_ranks_are_spread(width: int, unicode: bool) -> None:
    display = Display(width, color=False, unicode=unicode)
    lines = join_plain_lines(
        render_first_screen(make_run(300, slow=(7,)), View(), display)
    ).splitlines()

    assert len(lines) <= MAX_LINES
    assert max(map(measure_cells, lines)) <= width
    assert any(line.startswith("The 600 ranks: ") for line in lines)
    assert any("pipeline p7 (2 ranks)" in line for line in lines)
    assert unicode or "\n".join(lines).isascii()


# Tests of pictures.


@pytest.mark.usefixtures("few_ranks_are_many")
def test_stages_are_drawn_as_their_median_replica() -> None:
    report = make_run(5, slow=(0,))
    rows = make_rows(report, View(), with_standouts=True)

    assert [row.spread for row in rows] == [True, True, False]
    assert [row.rank.stage for row in rows] == [0, 1, 0]
    assert all(row.rank.pipeline != 0 for row in rows[:2])
    assert rows[2].reason == "one of pipeline p0: BW 1.50 x median"
    assert [len(row.replicas) for row in rows] == [5, 5, 1]


def test_the_picture_of_a_spread_equals_the_golden_file() -> None:
    expected = (GOLDEN / "spread.svg").read_text(encoding="utf-8")

    assert render(make_run(6, slow=(2,)), View(rows="spread")) == expected


def test_the_note_of_a_spread_describes_its_numbers() -> None:
    texts = " ".join(list_texts(render(make_run(6, slow=(2,)), View(rows="spread"))))

    assert "minimum and maximum ratio of all replicas, and the ratio of the drawn replica" in texts
    assert "mean ratio" not in texts


@pytest.mark.usefixtures("few_ranks_are_many")
def test_a_picture_of_many_ranks_stays_small() -> None:
    svg = render(make_run(300, 4, slow=(7,)), View())

    assert len(svg) < 500_000
    assert "300 ranks: " in " ".join(list_texts(svg))


# Tests of the command line.


def test_pipelines_and_hosts_are_selected(tmp_path: Path, cli: CommandLine) -> None:
    lines = ["rank,stage,pipeline,iteration,phase,microbatch,start_ns,end_ns,host"]
    for rank in range(4):
        stage_and_pipeline = f"{rank % 2},{rank // 2}"
        for phase, start in (("F", rank % 2 * 100), ("BW", 400 - rank % 2 * 200)):
            lines.append(
                f"{rank},{stage_and_pipeline},0,{phase},0,{start},{start + 100},node{rank // 2}"
            )
    table = tmp_path / "operations.csv"
    table.write_text("\n".join(lines))
    for number, selected in enumerate((["--pipelines", "1"], ["--hosts", "node1"])):
        picture = tmp_path / f"{number}.svg"
        assert main(["analyze", str(table), *selected, "--rows", "rank", "-o", str(picture)]) == 0
        assert "node1" in picture.read_text()
        assert "node0" not in picture.read_text()

    assert "there is no host node7; the hosts are node0, node1" in cli.refused(
        "analyze", str(table), "--hosts", "node7", code=2
    )
    assert "none of the ranks selected by other options" in cli.refused(
        "analyze", str(table), "--pipelines", "0", "--hosts", "node1", code=2
    )
