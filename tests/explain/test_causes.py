"""Causes of idle time: planted causes are found, and each nanosecond of bubble has one cause."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bubbleviz
from bubbleviz.align.stages.pipelines import Parallel
from bubbleviz.count.rank_iterations import RankIteration
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.phases import Phase
from bubbleviz.render import json_document
from bubbleviz.render.formats.csv import list_bubble_columns, render_bubbles
from bubbleviz.render.palette import CAUSES, CRITICAL, get_heat_color
from bubbleviz.render.picture.picture import picture as render
from bubbleviz.report.long_bubbles import find_longest_bubbles
from bubbleviz.report.methods import write_methods
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import describe_first_steps
from bubbleviz.report.view import View
from bubbleviz.schedules.communication import torch_csv
from bubbleviz.schedules.known import search_plan
from bubbleviz.schedules.plan import Memory
from bubbleviz.schedules.workload import build_device_workload
from tests.planting import plant
from tests.planting.options import Planting
from tests.support.notes import list_limitation_subjects
from tests.support.nsys_exports import C, ExportRows, K, R, write_profile
from tests.support.places import FIXTURES
from tests.support.planted_runs import analyze_planting

BASE = Planting(iterations=2, kernels=2)
US = 1_000
REPLICAS = replace(BASE, replicas=2, jitter=0.1)
RUNS = {
    "plain": BASE,
    "late host": replace(BASE, late_stage=2, late_ns=400 * US),
    "slow link": replace(BASE, transfer_ns=300 * US),
    "slow link, receive inside F": replace(
        BASE, transfer_ns=300 * US, nested_receive_ns=20 * US, kernels=3
    ),
    "slow stage": replace(BASE, slow_stage=1, slow_factor=1.5),
    "profiler": replace(BASE, overhead=True, transfer_ns=50 * US),
    "collective": replace(BASE, barrier=True, jitter=0.2),
    "gradient norm": replace(BASE, barrier=True, norm_ns=20 * US, jitter=0.2),
    "replicas reduce": replace(REPLICAS, reduce_ns=700 * US),
    "a replica reduces late": replace(
        REPLICAS, reduce_ns=700 * US, late_reducer=5, late_reduce_ns=900 * US
    ),
    "a reduction in pieces": replace(
        REPLICAS, reduce_ns=700 * US, reduce_pieces=3, late_reducer=4, late_reduce_ns=300 * US
    ),
    "reduction and norm": replace(
        REPLICAS, reduce_ns=700 * US, barrier=True, norm_ns=30 * US, overhead=True
    ),
    "all of it": replace(
        BASE,
        late_stage=1,
        late_ns=200 * US,
        transfer_ns=100 * US,
        jitter=0.1,
        overhead=True,
        barrier=True,
        stray="idle",
    ),
    "zb-h1, iterations overlap": replace(
        BASE, schedule="zb-h1", microbatches=8, iterations=3, transfer_ns=40 * US, jitter=0.1
    ),
    "zb-v": replace(BASE, schedule="zb-v", transfer_ns=40 * US, autograd="named"),
    "interleaved": replace(BASE, schedule="interleaved-1f1b", transfer_ns=10 * US),
    "no communication seen": replace(BASE, communication=False, transfer_ns=60 * US),
    "two servers": replace(BASE, servers=2, transfer_ns=60 * US, jitter=0.05),
    "evaluation": replace(BASE, evaluation_at=1, iterations=3),
    "cut": replace(BASE, iterations=3, cut_ns=70_000 * US),
    "dualpipe-v": replace(BASE, schedule="dualpipev", microbatches=8, iterations=1),
}


@cache
def planted(name: str) -> tuple[Path, Report]:
    """Return the first file of a planted run, and the report on the run."""
    folder = Path(tempfile.mkdtemp())
    truth = plant(RUNS[name], folder)
    return folder / truth.files[0].path, bubbleviz.analyze(folder)


def idle_of(report: Report, cause: Cause, ratio: str = "schedule") -> int:
    """Return the total time of a cause over all ranks and iterations, in ns."""
    return int(report.explanation.causes.idle_ns[ratio][:, :, cause].sum())


def test_a_profile_without_gaps_has_no_causes(tmp_path: Path) -> None:
    path = write_profile(tmp_path, [K(10, 20, 1)], [C(1, 2, 1)], [R(0, 5, "B0.0.0")])
    report = bubbleviz.analyze(path)

    assert len(report.bubbles) == 0
    # There is no training iteration to give advice on.
    assert describe_first_steps(report) is None
    assert find_longest_bubbles(report) == ()
    assert render_bubbles(report, View()).splitlines() == [",".join(list_bubble_columns(report))]


def test_overlapping_iterations_without_idle_time_leave_nothing_to_gain() -> None:
    report = bubbleviz.analyze(FIXTURES / "zb-h2")

    assert report.summary.bubble_ratio["schedule"].mean == pytest.approx(0.1273, abs=1e-4)
    assert report.headline == "period"
    assert describe_first_steps(report) == "There is almost no bubble to remove"


@pytest.mark.parametrize("name", RUNS)
def test_causes_add_up_to_the_bubble_of_every_window(
    name: str,
) -> None:
    _, report = planted(name)
    bubbles: Counter[tuple[int, int, str]] = Counter()
    for row in csv.DictReader(io.StringIO(render_bubbles(report, View()))):
        assert int(row["end_ns"]) - int(row["start_ns"]) == int(row["idle_ns"]) > 0
        bubbles[int(row["iteration"]), int(row["rank"]), row["cause"]] += int(row["idle_ns"])
    headline: Counter[tuple[int, int, str]] = Counter()
    for iteration in report.iterations:
        for rank in iteration.ranks:
            assert rank.accounts
            for ratio, account in rank.accounts.items():
                times = report.explanation.causes.idle_ns[ratio][iteration.index, rank.rank]
                causes = {cause.label: ns for cause, ns in zip(Cause, times.tolist(), strict=True)}
                assert sum(causes.values()) == account.bubble_ns
                assert min(causes.values()) >= 0
                if ratio == report.bubbles.ratio:
                    headline.update(
                        {(iteration.index, rank.rank, c): ns for c, ns in causes.items() if ns}
                    )

    assert bubbles == headline


@pytest.mark.parametrize("name", ["slow link", "slow link, receive inside F"])
def test_time_lost_to_a_slow_link_is_communication(name: str) -> None:
    _, report = planted(name)

    assert idle_of(report, Cause.COMMUNICATION) % (300 * US) == 0
    assert idle_of(report, Cause.COMMUNICATION) > 10 * 300 * US
    assert idle_of(report, Cause.HOST) == idle_of(report, Cause.OTHER) == 0
    assert (describe_first_steps(report) or "").startswith("Make transfers between stages faster")
    assert report.explanation.phase_times.transfer_ns == 300 * US
    changes = {change.name: change for change in report.explanation.changes}
    # Without transfer times, the ratio is the (p - 1) / (m + p - 1) of textbooks.
    assert changes["no-delay"].bubble_ratio == pytest.approx(3 / 11, abs=5e-3)


def test_waits_for_a_slow_stage_are_dependencies_and_its_times_reveal_it() -> None:
    _, report = planted("slow stage")

    assert idle_of(report, Cause.HOST) == idle_of(report, Cause.COMMUNICATION) == 0
    assert dict(report.explanation.phase_times.imbalance)["F"] == pytest.approx(1 / 3)
    assert (describe_first_steps(report) or "").startswith("Move layers off stage 1, or ")
    waits = report.bubbles.take(report.bubbles.cause == Cause.DEPENDENCY)
    givers = set(report.operations.rank[waits.peer_operation[waits.rank == 0]].tolist())
    assert givers == {1}


def test_a_profiler_flush_is_attributed_to_the_profiler() -> None:
    path, report = planted("profiler")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        overhead_ns = database.execute(
            'SELECT SUM("end" - start) FROM PROFILER_OVERHEAD'
        ).fetchone()[0]

    assert idle_of(report, Cause.PROFILER, "step") == overhead_ns > 0


def test_an_exposed_all_reduce_is_collective_once_all_have_entered() -> None:
    _, report = planted("gradient norm")

    assert idle_of(report, Cause.COLLECTIVE, "step") == 2 * 4 * 20 * US
    assert idle_of(report, Cause.COLLECTIVE) == 0
    assert idle_of(report, Cause.DRAIN) > 1_000 * US


def test_a_wait_in_a_collective_names_the_awaited_rank() -> None:
    _, report = planted("a replica reduces late")
    stages = [rank.stage for rank in report.ranks]
    late_rank = next(r.index for r in report.ranks if r.pid == 2001 + 64 * 5)
    partner = next(r for r in range(8) if stages[r] == stages[late_rank] and r != late_rank)
    bubbles = report.bubbles.take(report.bubbles.waits_in_collective)
    waits = bubbles.take(bubbles.rank == partner)

    assert len(waits) > 0
    assert set(report.operations.rank[waits.peer_operation].tolist()) == {late_rank}
    assert {bubbles.kinds[kind] for kind in waits.collective.tolist()} == {"ReduceScatter"}
    assert set(waits.cause.tolist()) == {Cause.DRAIN}


def test_receives_split_into_wait_and_transfer() -> None:
    _, report = planted("slow link")
    receives = report.explanation.receives

    assert len(receives)
    length = receives.end_ns - receives.start_ns
    assert (receives.wait_ns + receives.transfer_ns == length).all()
    waited = receives.wait_ns > 0
    assert set(receives.transfer_ns[waited].tolist()) == {300 * US}
    assert (receives.exposed_ns <= receives.transfer_ns).all()
    exposed = dict(zip(receives.operation.tolist(), receives.exposed_ns.tolist(), strict=True))
    moving = report.bubbles.take(report.bubbles.cause == Cause.COMMUNICATION)
    assert {exposed[after] for after in moving.after.tolist()} == {300 * US}


def test_a_replay_reproduces_the_measured_run() -> None:
    for name in ("plain", "all of it", "slow stage", "interleaved"):
        _, report = planted(name)
        measured = report.explanation.changes[0]
        assert report.explanation.path is not None
        iteration = report.iteration(report.explanation.path.iteration)

        assert measured.makespan_ns == iteration.ratios["schedule"].window_ns
        assert measured.bubble_ratio == pytest.approx(iteration.ratios["schedule"].value)
        assert all(c.makespan_ns > 0 for c in report.explanation.changes)


def test_the_json_has_causes_of_ranks_of_iterations_and_of_the_run() -> None:
    _, report = planted("all of it")
    document = json_document.make_document(report)
    averaged = [i for i in document["iterations"] if i["averaged"]]

    for iteration in document["iterations"]:
        for ratio, causes in iteration["cause_ns"].items():
            for cause, total in causes.items():
                assert total == sum(iteration["ranks"]["cause_ns"][ratio][cause])
    for cause, total in document["summary"]["cause_ns"]["schedule"].items():
        assert total == sum(i["cause_ns"]["schedule"][cause] for i in averaged)
    assert document["what_to_do_first"] == describe_first_steps(report)
    assert len(document["longest_bubbles"]) == 5
    assert np.isclose(document["changes"]["bubble_ratio"], 0.3, atol=0.2)


def test_causes_are_colored_and_named_in_the_picture_on_request() -> None:
    _, report = planted("all of it")
    plain, colored = (render(report, View(causes=wanted)) for wanted in (False, True))

    for cause in Cause:
        is_shown = cause in set(
            report.bubbles.cause[report.bubbles.iteration == drawn(report)].tolist()
        )
        assert (f"idle: {cause.label}" in colored) == is_shown
        assert (CAUSES[cause.label] in colored) == is_shown
        assert f"idle: {cause.label}" not in plain


def heat_cells(svg: str, shade: str) -> int:
    """Return the number of heat map cells that have a given shade."""
    paths: list[str] = re.findall(rf'<path d="([^"]*)"[^>]*fill="{shade}"', svg)
    return sum(path.count("M") for path in paths)


def test_heat_maps_have_a_row_per_stage_and_mark_the_slow_microbatch() -> None:
    _, report = planted("plain")
    even = render(report, View(heat_map=True))
    operations = report.operations
    slow = operations.busy_ns.copy()
    is_forward = (operations.phase == Phase.F) & (operations.microbatch == 3)
    slow[is_forward & (operations.virtual_stage == 1)] *= 2
    marked = render(
        replace(report, operations=replace(operations, busy_ns=slow)), View(heat_map=True)
    )

    assert "F by microbatch, median" in even
    assert even.count("stage 3") == 3  # the name is next to its row and in both maps
    assert (heat_cells(even, get_heat_color(1.0)), heat_cells(marked, get_heat_color(1.0))) == (
        0,
        1,
    )


def drawn(report: Report) -> int:
    """Return the iteration that is drawn if none is selected."""
    typical = report.typical_iteration()
    assert typical is not None
    return typical.index


def test_the_critical_path_is_drawn_on_request_if_all_of_it_is_shown() -> None:
    _, report = planted("plain")
    line = f'stroke="{CRITICAL}"'

    assert line not in render(report, View())
    assert line in render(report, View(critical=True))
    assert line not in render(report, View(critical=True, ranks=(0, 1)))


def test_without_stages_nothing_is_said_to_bound_the_iteration() -> None:
    """Microbatches of DualPipe run in both directions, so they show no order of stages."""
    report = analyze_planting(
        Planting(schedule="dualpipe", microbatches=8, iterations=1, iteration_ranges=True),
        what_if=True,
    )
    reasons = {note.what: note.reason for note in report.limitations}
    document = json.loads(json_document.render(report, View()))

    assert [rank.stage for rank in report.ranks] == [None] * 4
    assert "stages are unknown" in reasons["critical path, slack and effects of changes"]
    assert (report.explanation.path, report.explanation.changes) == (None, ())
    assert (document["critical_path"], document["changes"]) == (None, None)
    assert str(describe_first_steps(report)).startswith("Set the order of the stages with --order")
    assert f'stroke="{CRITICAL}"' not in render(report, View(critical=True))
    assert report.other_schedules is not None
    assert report.other_schedules.reason == reasons["critical path, slack and effects of changes"]


def test_without_a_common_clock_gaps_are_those_of_the_headline() -> None:
    for align, ratio in (("none", "stage"), ("causal", "schedule")):
        report = analyze_planting(
            Planting(servers=2, iterations=2, iteration_ranges=True), align=align
        )

        assert (report.headline, report.bubbles.ratio) == (ratio, ratio)
        assert "idle intervals and their causes" not in list_limitation_subjects(report)


@pytest.mark.parametrize(
    "hints", [{"parallel": Parallel(tp=2, pp=2)}, {"order": [0, 2, 1, 3]}], ids=str
)
def test_contradicted_stages_give_no_advice(hints: dict[str, Any], tmp_path: Path) -> None:
    plant(Planting(iterations=3), tmp_path)
    report = bubbleviz.analyze(tmp_path, **hints)
    reasons = {note.what: note.reason for note in report.limitations}

    assert report.stages_contradicted
    assert "contradicts the data" in reasons["stages of ranks"]
    assert "contradicts the data" in reasons["critical path, slack and effects of changes"]
    assert (report.explanation.path, report.explanation.changes) == (None, ())
    assert str(describe_first_steps(report)).startswith(
        "It is unknown what would shorten iterations, because "
    )
    assert "the given order of stages contradicts the data dependencies" in write_methods(report)
    assert report.summary.bubble_ratio["schedule"].mean == pytest.approx(3 / 11)


def test_the_longest_bubbles_are_noticeable(tmp_path: Path) -> None:
    """Transfers of 1 us delay each stage, but the bubbles of the schedule are far longer."""
    tiny, long = tmp_path / "tiny", tmp_path / "long"
    plant(Planting(iterations=3, transfer_ns=1_000), tiny)
    plant(Planting(iterations=3, transfer_ns=400_000), long)

    tiny_report, long_report = bubbleviz.analyze(tiny), bubbleviz.analyze(long)
    assert idle_of(tiny_report, Cause.COMMUNICATION) > 0
    for report, is_transfer in ((tiny_report, False), (long_report, True)):
        rows = [row for row, _ in find_longest_bubbles(report)]
        assert len(rows) == 5
        causes = report.bubbles.cause[rows]
        assert ((causes == Cause.COMMUNICATION) == is_transfer).all()


@pytest.mark.parametrize("communication", [True, False])
def test_contradicted_stages_explain_no_idle_time(communication: bool, tmp_path: Path) -> None:
    plant(Planting(iterations=3, communication=communication), tmp_path)
    report = bubbleviz.analyze(tmp_path, order=[3, 2, 1, 0])

    # Only a receive shows the arrival of the input, whichever rank sent it.
    expected_causes = {
        Cause.WARMUP,
        Cause.DRAIN,
        Cause.DEPENDENCY if communication else Cause.UNKNOWN,
    }
    assert {cause for cause in Cause if idle_of(report, cause)} == expected_causes
    assert (report.bubbles.peer_operation == -1).all()
    for _, sentence in find_longest_bubbles(report):
        assert "of stage" not in sentence
        assert "the input is ready" not in sentence


def test_without_stages_it_is_unknown_what_operations_wait_for(tmp_path: Path) -> None:
    names = ("F0.0.0", "B0.0.0", "Optimizer")
    for pid, starts in enumerate(((0, 1000, 1300), (500, 700, 1300)), 1):
        rows = ExportRows(pid)
        for start, name in zip(starts, names, strict=True):
            rows.launch(start - 9, start, start + 100)
            rows.add_range(start - 10, start - 5, name)
        rows.add_range(-20, 1400, f"iter_{pid}_0")
        rows.write(tmp_path, name=f"{pid}.sqlite", hostname="one")

    report = bubbleviz.analyze(tmp_path)

    assert [rank.stage for rank in report.ranks] == [None, None]
    assert idle_of(report, Cause.UNKNOWN, "stage") == 900 + 100
    assert idle_of(report, Cause.HOST, "stage") == 0
    # An optimizer needs no input from adjacent stages.
    assert idle_of(report, Cause.HOST, "step") == 191 + 491


def test_concurrent_operations_are_replayed_without_negative_ratios(
    tmp_path: Path,
) -> None:
    ms = 1_000 * US
    spans = [(0, 4, "F0.0.0"), (4, 8, "F1.0.0"), (4, 8, "B0.0.0"), (8, 12, "B1.0.0")]
    rows = ExportRows()
    for n, (start, end, name) in enumerate(spans):
        rows.add_range(n * 100, n * 100 + 50, name)
        rows.launch(n * 100 + 10, start * ms + 10_000, end * ms + 10_000, took=10, stream=7 + n)
    report = bubbleviz.analyze(rows.write(tmp_path))
    changes = report.explanation.changes

    assert changes[0].makespan_ns == 12 * ms
    assert changes[0].bubble_ratio == 0.0
    assert all((change.bubble_ratio or 0.0) >= 0.0 for change in changes)
    assert report.explanation.path is not None
    assert all(part.time_ns > 0 for part in report.explanation.path.parts)


def test_replicas_of_a_stage_wait_for_the_last_input_to_be_ready() -> None:
    report = analyze_planting(replace(BASE, replicas=2, tensor=2, jitter=0.05))
    waits, moves = (
        idle_of(report, cause, "stage") for cause in (Cause.DEPENDENCY, Cause.COMMUNICATION)
    )

    assert moves < waits / 50


def _kernels_of(path: str) -> list[tuple[int, ...]]:
    """Return each kernel as (start, end, pid, device, whether it communicates)."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return database.execute(
            "SELECT start, \"end\", globalPid >> 24 & 0xFFFFFF, deviceId, value LIKE '%nccl%' "
            "FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName"
        ).fetchall()


def _communication_window(
    report: Report, index: int, rank_iteration: RankIteration
) -> tuple[int, int]:
    """Return the start and end of the window of communication in a rank's iteration."""
    receives, account = (
        report.explanation.receives,
        rank_iteration.accounts.get(report.bubbles.ratio),
    )
    of = report.operations.take(receives.operation)
    first = receives.start_ns[(of.iteration == index) & (of.rank == rank_iteration.rank)]
    start_ns = rank_iteration.first_ns if account is None else account.start_ns
    end_ns = rank_iteration.last_ns if account is None else account.end_ns
    return min([start_ns, *first.tolist()]), end_ns


@pytest.mark.parametrize("source", ["slow link", "1f1b", "zb-h2", "zb-v"])
def test_overlap_is_computed_from_kernels(source: str) -> None:
    report = planted(source)[1] if source in RUNS else bubbleviz.analyze(FIXTURES / source)
    kernels = [
        (start_ns + summary.clock_offset_ns, end_ns + summary.clock_offset_ns, number, *row)
        for number, summary in enumerate(report.profiles)
        for start_ns, end_ns, *row in _kernels_of(summary.path)
    ]
    for iteration in report.iterations:
        for rank_iteration in iteration.ranks:
            rank = report.ranks[rank_iteration.rank]
            mine = [k for k in kernels if k[2:5] == (rank.profile, rank.pid, rank.device_id)]
            low_ns, high_ns = _communication_window(report, iteration.index, rank_iteration)
            edges = sorted(
                {low_ns, high_ns} | {t for k in mine for t in k[:2] if low_ns < t < high_ns}
            )
            expected_ns = [0, 0]
            for low, high in pairwise(edges):
                open_now = [k for k in mine if k[0] <= low < k[1]]
                if any(k[5] for k in open_now):
                    expected_ns[0] += high - low
                    expected_ns[1] += (high - low) * any(not k[5] for k in open_now)
            communication = report.explanation.communication

            assert expected_ns == [
                communication.communication_ns[iteration.index, rank_iteration.rank],
                communication.overlapped_ns[iteration.index, rank_iteration.rank],
            ]
            assert communication.exposed_ns[iteration.index, rank_iteration.rank] <= expected_ns[0]


def test_times_and_stragglers_follow_from_the_kernels(tmp_path: Path) -> None:
    lengths_us = [90, 100, 100, 110, 300]
    names = [*(f"F{n}.0.0" for n in range(5)), *(f"B{n}.0.0" for n in range(5))]
    rows = ExportRows()
    for number, (name, length) in enumerate(zip(names, [*lengths_us, *[50] * 5], strict=True)):
        called = 1_000 + 400 * US * number
        rows.add_range(called - 5, called + 20, name)
        rows.launch(called, called + 100, called + 100 + length * US, took=10)
    times = bubbleviz.analyze(rows.write(tmp_path)).explanation.phase_times
    kind = next(kind for kind in times.kinds if kind.phase is Phase.F)

    assert (kind.n, kind.median_ns, kind.min_ns, kind.max_ns) == (5, 100 * US, 90 * US, 300 * US)
    assert (kind.first_ns, kind.last_ns) == (90 * US, 300 * US)
    assert kind.std_ns == pytest.approx(np.std(lengths_us, ddof=1) * US)
    assert times.stragglers == ((4, 3.0),)


def test_inputs_of_a_bottleneck_take_as_long_as_elsewhere() -> None:
    """The slow stage never waits in a receive, so its receives do not show transfer times."""
    memory = Memory(8.0, 1.0, 32 / 74)
    work = build_device_workload((0, 1, 2, 3), 8, [(1_000 * US,) * 4] * 3, 100 * US, memory)
    report = analyze_planting(
        Planting(
            schedule=torch_csv.write(search_plan("zb-2p", work)),
            microbatches=8,
            iterations=1,
            transfer_ns=100 * US,
            slow_stage=1,
            slow_factor=1.5,
            kernels=1,
            optimizer_ns=-1,
        )
    )
    table, path = report.operations, report.explanation.path
    assert path is not None
    of_stage = np.array([rank.stage for rank in report.ranks])[table.rank]
    first = (of_stage == 2) & (table.phase == Phase.F) & (table.microbatch == 0)

    assert path.slack_ns[first[path.replayed]].tolist() == [2_300 * US]
    assert report.explanation.changes[0].makespan_ns == path.length_ns
