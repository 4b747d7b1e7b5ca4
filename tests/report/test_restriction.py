"""All outputs mark ratios of incomplete pipelines, and give no advice based on these ratios."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.align.stages.pipelines import Parallel
from bubbleviz.render.formats import latex
from bubbleviz.render.json_document import make_document
from bubbleviz.render.picture.picture import picture
from bubbleviz.render.text.first_screen import describe_headline, render_first_screen
from bubbleviz.render.text.report import render_summary
from bubbleviz.render.text.terminal import Display, join_plain_lines
from bubbleviz.report.measure import name_measure, name_saved_measure
from bubbleviz.report.methods import write_methods
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import describe_first_steps
from bubbleviz.report.summarizing import summarize
from bubbleviz.report.view import View
from tests.planting import Planting, plant
from tests.support.edited_databases import edit_database
from tests.support.notes import find_limitation, list_limitation_subjects, list_restriction_texts
from tests.support.nsys_exports import C, ExportRows, K, R, write_profile
from tests.support.places import EXAMPLE, FIXTURES
from tests.support.report_texts import text_of
from tests.support.torch_traces import set_world_size, write_traces

INCOMPLETE = "incomplete: ranks of the run are missing"
NO_PIPELINE = "no pipeline was measured: a single stage is not a pipeline"
#: Profiles of fixtures that lack some stages of the pipeline.
PARTIAL = {
    "both ends of a V": ["zb-v/rank0.sqlite"],
    "a stage of a V": ["zb-v/rank1.sqlite"],
    "the middle of a V": ["zb-v/rank1.sqlite", "zb-v/rank2.sqlite"],
    "the first half of a V": ["zb-v/rank0.sqlite", "zb-v/rank1.sqlite"],
    "the second half of a V": ["zb-v/rank2.sqlite", "zb-v/rank3.sqlite"],
    "the second host": ["zb-h2/node1.sqlite"],
}


def get_first_restriction(report: Report) -> str | None:
    """Return the text of the first restriction, or None if there is none."""
    return next((restriction.text for restriction in report.restrictions), None)


def _analyze_fixtures(names: list[str]) -> Report:
    return bubbleviz.analyze([FIXTURES / name for name in names])


@pytest.mark.parametrize("names", PARTIAL.values(), ids=PARTIAL)
def test_every_output_says_that_ranks_are_missing(names: list[str]) -> None:
    report = _analyze_fixtures(names)

    assert report.incomplete
    assert not report.single_stage
    assert "stages without a profile" in list_limitation_subjects(report)
    text = text_of(report)
    assert f"! ({INCOMPLETE})" in text.splitlines()[0]
    assert "a single stage is not a pipeline" not in text
    assert "it is incomplete because ranks of the run are missing" in write_methods(report)
    assert "Incomplete: ranks of the run are missing." in latex.render(report, View())
    assert INCOMPLETE in picture(report, View())
    document = make_document(report)
    assert document["restrictions"][0]["text"] == INCOMPLETE
    assert all(iteration["incomplete"] for iteration in document["iterations"])
    assert not re.search(
        "almost no|No single delay|The schedule itself", describe_first_steps(report) or ""
    )


@pytest.mark.parametrize("names", [["zb-v/rank0.sqlite"], ["zb-v/rank3.sqlite"]])
def test_one_stage_of_a_pipeline_has_no_schedule(names: list[str]) -> None:
    report = bubbleviz.analyze([FIXTURES / name for name in names], what_if=True)

    reason = "the profiles contain only one stage of a pipeline"
    assert report.schedule is not None
    assert (report.schedule.name, report.schedule.reason) == (None, reason)
    assert report.other_schedules is not None
    assert (report.other_schedules.rows, report.other_schedules.reason) == ((), reason)


@pytest.mark.parametrize("name", ["1f1b", "zb-h2", "zb-v"])
def test_a_complete_pipeline_has_no_restriction(name: str) -> None:
    report = bubbleviz.analyze(FIXTURES / name)

    assert (report.incomplete, get_first_restriction(report)) == (False, None)
    assert make_document(report)["restrictions"] == []
    for text in (text_of(report), latex.render(report, View()), picture(report, View())):
        assert "ncomplete:" not in text
    assert "incomplete" not in write_methods(report)


def _analyze_rank(folder: Path, *transfers: str, launched: bool = True) -> Report:
    """Return the report on one rank with F, B and the given transfers, with or without kernels."""
    rows = ExportRows()
    for iteration in range(3):
        for number, name in enumerate(("F0.0.0", *transfers, "B0.0.0", "Optimizer")):
            start = 1000 * iteration + 100 * number
            rows.add_range(start, start + 5, name)
            if name not in transfers or launched:
                kernel = "ncclDevKernel_SendRecv" if name in transfers else "gemm"
                rows.launch(start + 2, start + 10, start + 90, kernel)
    return bubbleviz.analyze(rows.write(folder))


@pytest.mark.parametrize(
    ("transfers", "launched"),
    [
        (("SEND_FORWARD.0.0.0",), True),
        (("RECV_BACKWARD.0.0.0",), True),
        (("SEND_FORWARD.0.0.0", "SEND_BACKWARD.0.0.0"), True),
        ((), False),
        # A range without a transfer is no evidence of another stage.
        (("SEND_FORWARD.0.0.0",), False),
    ],
)
def test_transfers_of_a_single_rank_show_other_stages(
    tmp_path: Path, transfers: tuple[str, ...], launched: bool
) -> None:
    report = _analyze_rank(tmp_path, *transfers, launched=launched)
    assert report.single_stage != launched
    assert get_first_restriction(report) == (INCOMPLETE if launched else NO_PIPELINE)


def _write_traces(folder: Path, world: int) -> list[Path]:
    """Write traces of one stage with the given world size, and return their paths."""
    plant(Planting(stages=1, files="rank"), folder / "exports")
    exports = sorted((folder / "exports").glob("*.sqlite"))
    traces = [trace for export in exports for trace in write_traces(export, folder)]
    return set_world_size(traces, world)


@pytest.mark.parametrize(
    ("parallel", "restriction"),
    [
        (Parallel(tp=1, pp=4, dp=1), INCOMPLETE),
        (Parallel(tp=1, pp=2, dp=2), INCOMPLETE),
        (Parallel(tp=1, pp=1, dp=4), NO_PIPELINE),
    ],
)
def test_given_sizes_show_other_stages(
    tmp_path: Path, parallel: Parallel, restriction: str
) -> None:
    report = bubbleviz.analyze(_write_traces(tmp_path, world=4), parallel=parallel)

    assert (report.incomplete, get_first_restriction(report)) == (True, restriction)


@pytest.mark.parametrize("world", [1, 8])
def test_every_output_says_that_no_pipeline_was_measured(tmp_path: Path, world: int) -> None:
    report = bubbleviz.analyze(_write_traces(tmp_path, world))

    assert (report.single_stage, report.incomplete) == (True, world > 1)
    assert make_document(report)["restrictions"][0]["text"] == NO_PIPELINE
    assert NO_PIPELINE in picture(report, View())
    assert "No pipeline was measured: a single stage is not a pipeline." in latex.render(
        report, View()
    )
    assert (INCOMPLETE in text_of(report)) == (world > 1)
    assert world == 1 or "almost no bubble to remove" not in (describe_first_steps(report) or "")


def test_stages_that_may_be_missing_are_marked_and_come_first(tmp_path: Path) -> None:
    # Numbers in file names would identify the missing rank.
    paths = [tmp_path / f"{'abcd'[rank]}.sqlite" for rank in (0, 1, 3)]
    for path, rank in zip(paths, (0, 1, 3), strict=True):
        path.symlink_to(FIXTURES / f"zb-v/rank{rank}.sqlite")
    report = bubbleviz.analyze(paths)

    assert not report.incomplete
    assert get_first_restriction(report) == "maybe incomplete: stages may be missing"
    assert f"! ({get_first_restriction(report)})" in text_of(report).splitlines()[0]
    assert str(describe_first_steps(report)).startswith("Check for missing profiles")
    stated = bubbleviz.analyze(paths, parallel=Parallel(tp=1, pp=3, dp=1))
    assert get_first_restriction(stated) is None


# Tests of ranges whose GPU work was not recorded.

WITHOUT_WORK = "incomplete: the GPU work of some stages was not recorded"
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


def _write_without_rows(folder: Path, *ranks: int, table: str = KERNELS) -> Path:
    """Write the 1F1B example without the rows of some ranks in a table, and return its path."""
    column = "globalPid" if table == KERNELS else "globalTid"
    pids = f"SELECT DISTINCT deviceId AS rank, globalPid >> 24 AS pid FROM {KERNELS}"
    rows = f"{column} >> 24 = (SELECT pid FROM pids WHERE rank ="
    statements = (f"DELETE FROM {table} WHERE {rows} {rank})" for rank in ranks)
    return edit_database(
        folder / "node0.sqlite", f"CREATE TEMP TABLE pids AS {pids}", *statements, source=EXAMPLE
    )


@pytest.mark.parametrize(
    ("rank", "table"), [*((rank, KERNELS) for rank in range(4)), (1, "CUPTI_ACTIVITY_KIND_RUNTIME")]
)
def test_a_rank_without_gpu_work_is_a_missing_stage(rank: int, table: str, tmp_path: Path) -> None:
    report = bubbleviz.analyze(_write_without_rows(tmp_path, rank, table=table))

    # The remaining transfers of the first and last stage show that stages are missing.
    missing = [] if rank in (1, 2) else [INCOMPLETE]
    words = list_restriction_texts(report)
    numbering_note = [] if rank else ["stages are counted from the first stage that has a profile"]
    assert words == [*missing, WITHOUT_WORK, *numbering_note]
    head = " ".join(text_of(report).split("\n\n")[0].split())
    assert all(f"! ({text})" in head for text in words)
    assert "because the GPU work of some stages was not recorded" in write_methods(report)
    assert str(describe_first_steps(report)).startswith("Trace GPU work in every process")
    notes = {note.what: note for note in report.limitations}
    assert notes["stages without GPU work"].count == 1
    assert "ranges without GPU work whose device is unknown" not in notes
    assert report.schedule is not None
    assert report.schedule.name is None
    assert "the schedule" not in write_methods(report)


def test_the_processes_without_gpu_work_are_named(tmp_path: Path) -> None:
    complete = bubbleviz.analyze(FIXTURES / "1f1b")
    for ranks, single in (((0, 2), False), ((1, 2, 3), True)):
        report = bubbleviz.analyze(_write_without_rows(tmp_path, *ranks))
        note = find_limitation(report, "stages without GPU work")
        pids = ", ".join(str(complete.ranks[rank].pid) for rank in ranks)

        assert f"but no kernels of processes {pids}, so" in note.reason
        assert "record CUDA in all processes" in note.reason
        assert report.schedule is not None
        assert report.schedule.reason.startswith("the profiles contain only one stage") == single


@pytest.mark.parametrize(
    ("names", "stage"),
    [
        (("F0.0.0",), False),
        (("B0.0.0",), True),
        (("F0.0.0", "F1.0.0"), True),
        (("F0.0.0", "Optimizer", "Optimizer"), False),
    ],
)
def test_a_helper_that_names_one_forward_is_not_a_stage(
    names: tuple[str, ...], stage: bool, tmp_path: Path
) -> None:
    added = (
        "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) "
        f"SELECT begin + {100 * number}, begin + {100 * number + 10}, 59, '{name}', tid FROM first"
        for number, name in enumerate(names)
    )
    thread = "MAX(globalTid) + (77 << 24) AS tid"
    first = f"CREATE TEMP TABLE first AS SELECT MIN(start) AS begin, {thread} FROM NVTX_EVENTS"
    path = edit_database(tmp_path / "node0.sqlite", first, *added, source=EXAMPLE)
    report = bubbleviz.analyze(path)

    assert get_first_restriction(report) == (WITHOUT_WORK if stage else None)


@pytest.fixture(name="report")
def one_stage(tmp_path: Path) -> Report:
    """Return the report on one rank without transfers, idle between forward and backward."""
    kernels = [K(0, 40, 1), K(80, 140, 2), K(200, 240, 3), K(280, 340, 4)]
    calls = [C(1, 2, 1), C(71, 72, 2), C(201, 202, 3), C(271, 272, 4)]
    ranges = [
        *(R(200 * i, 200 * i + 150, f"iter_{i}") for i in range(2)),
        *(R(200 * i, 200 * i + 5, "F0.0.0") for i in range(2)),
        *(R(200 * i + 70, 200 * i + 75, "B0.0.0") for i in range(2)),
    ]
    return bubbleviz.analyze(write_profile(tmp_path, kernels, calls, ranges))


def test_every_output_describes_iterations_and_idle_time(report: Report) -> None:
    assert report.single_stage
    value, bounds, *_ = describe_headline(report)
    assert value == "idle in iterations: 28.57 %"
    assert "a single stage is not a pipeline" in bounds
    svg_text = picture(report, View())
    assert ">idle in iterations 28.6" in svg_text
    assert "28.6 % of its time is idle.</title>" in svg_text
    assert ">Idle in iterations: 1 " in svg_text
    screen = join_plain_lines(render_first_screen(report, View(), Display()))
    assert screen.startswith("Idle in iterations: 28.57 %")
    assert "What the idle time is made of" in screen
    assert "What the bubble is made of" not in screen + render_summary(report, View())
    assert name_saved_measure(summarize(report)) == name_measure(report)
    table = latex.render(report, View())
    assert "Idle time in iterations" in table
    assert "Bubble ratios" not in table
    advice = describe_first_steps(report) or ""
    assert ": iterations would take " in advice
    assert "schedule" not in advice
