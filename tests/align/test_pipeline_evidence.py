"""Stages inferred from times: evidence that ranks form a pipeline, and insufficient evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bubbleviz
from bubbleviz.align.stages.pipelines import Parallel
from bubbleviz.explain.recognition.reasons import SINGLE_STAGE
from bubbleviz.model.phases import Phase
from bubbleviz.render.formats import latex
from bubbleviz.render.json_document import make_document
from bubbleviz.render.picture.picture import picture
from bubbleviz.render.text.first_screen import render_first_screen
from bubbleviz.render.text.terminal import Display, join_plain_lines
from bubbleviz.report.methods import write_methods
from bubbleviz.report.report import Report
from bubbleviz.report.restrictions import RANKS_MISSING, find_no_pipeline
from bubbleviz.report.sentences import describe_first_steps
from bubbleviz.report.summarizing import summarize
from bubbleviz.report.view import View
from tests.planting import Planting
from tests.support.needs import get_real_file
from tests.support.nsys_exports import ExportRows
from tests.support.planted_runs import analyze_planting
from tests.support.report_texts import text_of

UNKNOWN = (
    "the profiles do not show whether the ranks are stages of a pipeline or replicas of one stage"
)
#: (name, first start, last end) of an operation of a rank.
Operation = tuple[str, int, int]

#: One rank waits longer between F and B than the other rank works, like an upstream rank.
SLOW_INPUT = (
    (("F0.0.0", 0, 100), ("B0.0.0", 1000, 1200)),
    (("F0.0.0", 500, 600), ("B0.0.0", 700, 900)),
)
#: Both ranks run all forwards, then all backwards.
#: The waits of one rank contain the waits of the other rank.
GPIPE = (
    (("F0.0.0", 0, 100), ("F1.0.0", 100, 200), ("B0.0.0", 500, 600), ("B1.0.0", 600, 700)),
    (("F0.0.0", 100, 200), ("F1.0.0", 200, 300), ("B0.0.0", 300, 400), ("B1.0.0", 400, 500)),
)
#: The order is the same, but the first rank waits too briefly for one microbatch.
#: The second rank cannot have run the microbatch in this time.
UNLIKE_A_PIPELINE = (
    (("F0.0.0", 0, 100), ("F1.0.0", 100, 200), ("B0.0.0", 700, 800), ("B1.0.0", 800, 900)),
    (("F0.0.0", 100, 200), ("F1.0.0", 200, 210), ("B0.0.0", 300, 310), ("B1.0.0", 800, 900)),
)
#: Two replicas, one of which is late.
LATE = ((("F0.0.0", 0, 300), ("B0.0.0", 700, 900)), (("F0.0.0", 0, 100), ("B0.0.0", 120, 320)))
#: One rank runs one forward before its first backward, and the other rank runs two.
WARM_UP = (
    (("F0.0.0", 0, 100), ("F1.0.0", 100, 200), ("B0.0.0", 300, 400), ("B1.0.0", 500, 600)),
    (("F0.0.0", 100, 200), ("B0.0.0", 200, 300), ("F1.0.0", 300, 400), ("B1.0.0", 400, 500)),
)


def _sending(transfer: str) -> Sequence[Sequence[Operation]]:
    upper, lower = SLOW_INPUT
    return (upper[0], (transfer, 110, 120), upper[1]), lower


def _write_ranks(
    folder: Path, ranks: Sequence[Sequence[Operation]], *, host: str | None = None
) -> list[Path]:
    """Write one profile per rank with three iterations of these operations, on separate hosts."""
    paths = []
    for pid, operations in enumerate(ranks, 1):
        rows = ExportRows(pid)
        step = (*operations, ("Optimizer", 1300, 1310))
        for i in range(3):
            begin_ns = 2_000_000 * i
            for name, start, end in step:
                kernel = "ncclDevKernel_SendRecv" if "_" in name else "gemm"
                start_ns, end_ns = begin_ns + 1000 * start, begin_ns + 1000 * end
                rows.launch(start_ns - 90, start_ns, end_ns, kernel, took=10)
                rows.add_range(start_ns - 100, start_ns - 50, name)
            rows.add_range(begin_ns - 150, begin_ns + 1_350_000, f"iter_{pid - 1}_{i}")
        paths.append(rows.write(folder, name=f"{pid}.sqlite", hostname=host or f"host{pid}"))
    return paths


def _schedule(report: Report) -> tuple[str | None, str]:
    assert report.schedule is not None
    return report.schedule.name, report.schedule.reason


def test_no_output_draws_conclusions_about_a_pipeline(tmp_path: Path) -> None:
    report = bubbleviz.analyze(_write_ranks(tmp_path, SLOW_INPUT), what_if=True)

    assert _schedule(report) == (None, UNKNOWN)
    assert [rank.stage for rank in report.ranks] == [None, None]
    reasons = {n.what: n.reason for n in report.limitations}
    assert reasons["stages of ranks"].startswith("the ranks may be stages or replicas")
    assert report.explanation.path is None
    assert report.explanation.changes == ()
    assert report.other_schedules is not None
    assert report.other_schedules.rows == ()
    text = text_of(report)
    assert f"no schedule: {UNKNOWN}" in text
    for claim in ("ready to paste", "1f1b", "the pipeline", "The schedule itself", "gpipe"):
        assert claim not in text
    assert "2 pipeline stages" not in write_methods(report)
    assert write_methods(report).startswith("No pipeline was measured with bubbleviz ")
    for output in (latex.render(report, View()), picture(report, View())):
        assert UNKNOWN in output
        assert "1f1b" not in output
    assert (
        make_document(report)["restrictions"][0]["text"] == f"no pipeline was measured: {UNKNOWN}"
    )
    assert find_no_pipeline(summarize(report).restrictions) == UNKNOWN
    # The first piece of advice explains how to specify the stages, so it is never empty.
    first = "Set the sizes of the run with --parallel tp=,pp=,dp="
    assert (describe_first_steps(report) or "").startswith(first)
    screen = join_plain_lines(render_first_screen(report, View(), Display()))
    assert f"First: {first}" in screen


@pytest.mark.parametrize(("ranks", "host"), [(LATE, "one"), (UNLIKE_A_PIPELINE, None)])
def test_behavior_that_no_pipeline_has_shows_no_pipeline(
    tmp_path: Path, ranks: Sequence[Sequence[Operation]], host: str | None
) -> None:
    report = bubbleviz.analyze(_write_ranks(tmp_path, ranks, host=host))

    assert _schedule(report) == (None, UNKNOWN)


@pytest.mark.parametrize(
    ("ranks", "expected", "name"),
    [
        (
            GPIPE,
            {},
            "gpipe",
        ),  # the gaps of one rank equal the work of the other rank for both microbatches
        (WARM_UP, {}, "1f1b"),  # the ranks run different orders
        (_sending("SEND_FORWARD.0.0.0"), {}, "1f1b"),
        (_sending("RECV_BACKWARD.0.0.0"), {}, "1f1b"),
        (SLOW_INPUT, {"order": [0, 1]}, "1f1b"),
        (SLOW_INPUT, {"parallel": Parallel(pp=2)}, "1f1b"),
    ],
)
def test_microbatches_transfers_or_the_user_show_a_pipeline(
    tmp_path: Path, ranks: Sequence[Sequence[Operation]], expected: dict[str, Any], name: str
) -> None:
    report = bubbleviz.analyze(_write_ranks(tmp_path, ranks), **expected)

    assert _schedule(report)[0] == name
    assert [rank.stage for rank in report.ranks] == [0, 1]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "zb-v"])
@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_a_pipeline_whose_transfers_are_not_recorded_keeps_its_schedule(
    schedule: str, jitter: float
) -> None:
    report = analyze_planting(
        Planting(
            schedule=schedule, stages=4, microbatches=8, communication=False, jitter=jitter, seed=3
        )
    )

    assert not (report.operations.phase == Phase.RECV_F).any()
    assert _schedule(report)[0] == schedule


@pytest.mark.parametrize(
    ("stages", "absent", "jitter"),
    [(2, (1,), 0.0), (2, (0,), 0.05), (4, (1, 2, 3), 0.02), (4, (0, 2, 3), 0.0)],
)
def test_ranks_that_all_receive_are_not_the_whole_pipeline(
    stages: int, absent: tuple[int, ...], jitter: float
) -> None:
    """Each server ran one stage of every replica, so no rank number identifies the stage."""
    planting = Planting(
        stages=stages, replicas=2, servers=stages, jitter=jitter, iteration_ranges=True
    )
    report = analyze_planting(replace(planting, absent=absent))

    assert RANKS_MISSING in report.restrictions
    assert RANKS_MISSING not in analyze_planting(planting).restrictions


@pytest.mark.parametrize("schedule", ["dualpipe", "chimera"])
def test_both_ends_of_a_bidirectional_pipeline_may_receive(schedule: str) -> None:
    report = analyze_planting(Planting(schedule=schedule, stages=2, microbatches=8))

    assert RANKS_MISSING not in report.restrictions


@pytest.mark.real_files
def test_two_ranks_of_a_real_run_of_128_show_no_pipeline(tmp_path: Path) -> None:
    convention = tmp_path / "mine.toml"
    convention.write_text(
        'name = "mine"\n'
        + "".join(
            f'[[pattern]]\nglob = "## {name} ##"\nmatch = "^## {name} ##$"\nphase = "{phase}"\n'
            for name, phase in (("forward", "F"), ("backward", "BW"), ("optimizer", "Optimizer"))
        ),
        encoding="utf-8",
    )

    report = bubbleviz.analyze(
        sorted(get_real_file("kineto").glob("hta_sampled_rank-*")),
        convention=convention,
        what_if=True,
    )

    # All-to-alls join two of the ranks into one stage.
    # The stages of the other ranks are unknown.
    assert _schedule(report) == (None, SINGLE_STAGE)
    assert {rank.stage for rank in report.ranks} == {0}
    assert report.incomplete
    text = text_of(report)
    for claim in ("bubble ratio (", "the pipeline", "schedule ratio", "ready to paste"):
        assert claim not in text
    assert not any("clocks" in n.what and "contradict" in n.what for n in report.limitations)
