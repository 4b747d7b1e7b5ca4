"""CUDA graphs, copies and communication: all GPU work is assigned to an operation."""

from __future__ import annotations

import csv
import io
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.cli.app import main
from bubbleviz.report.report import Report
from tests.support.command_line import CommandLine
from tests.support.edited_databases import edit_database
from tests.support.notes import join_limitations
from tests.support.nsys_exports import C, K, M, R, pack_global_id, write_profile

GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
LAUNCH = "cudaGraphLaunch_v10000"
LOST_COLUMN = f"ALTER TABLE {GRAPH} DROP COLUMN correlationId"

#: Ranges and calls of two microbatches, in which each F and B is one graph launch.
NAMES = ("F0.0.0", "F1.0.0", "B0.0.0", "B1.0.0")
RANGES = [R(1_000 * i, 1_000 * i + 500, name) for i, name in enumerate(NAMES)]
CALLS = [C(1_000 * i + 100, 1_000 * i + 200, 10 + i, name=LAUNCH) for i in range(4)]
NODES = [
    K(1_000 * i + 300 + 200 * n, 1_000 * i + 450 + 200 * n, 10 + i, graph_node=n + 1)
    for i in range(4)
    for n in range(3)
]


def graphs(
    path: Path, rows: Sequence[tuple[int, int, int]], *, device: int = 0, pid: int | None = 1
) -> Path:
    """Add graphs that were traced as a whole, given as (start, end, correlation id)."""
    with closing(sqlite3.connect(path)) as db:
        db.execute(
            f"CREATE TABLE {GRAPH} (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER "
            "NOT NULL, graphId INTEGER NOT NULL, contextId INTEGER NOT NULL, greenContextId "
            "INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
            "graphExecId INTEGER)"
        )
        process = None if pid is None else pack_global_id(pid)
        db.executemany(
            f"INSERT INTO {GRAPH} VALUES (?, ?, ?, 5, 1, 0, 7, ?, ?, 9)",
            [(start, end, device, correlation, process) for start, end, correlation in rows],
        )
        db.commit()
    return path


def work(report: Report) -> list[tuple[str, int, int, int, int, int]]:
    """Return (phase, microbatch, start, end, kernels, active) of all operations with a span."""
    return [
        (op.phase, op.microbatch, op.start_ns, op.end_ns, op.kernels, op.active_ns)
        for op in report.operations
        if op.start_ns is not None
    ]


def test_every_node_of_a_graph_belongs_to_the_operation_that_launched_it(tmp_path: Path) -> None:
    report = bubbleviz.analyze([write_profile(tmp_path, NODES, CALLS, RANGES)])

    assert work(report) == [
        ("F", 0, 300, 850, 3, 450),
        ("F", 1, 1_300, 1_850, 3, 450),
        ("BW", 0, 2_300, 2_850, 3, 450),
        ("BW", 1, 3_300, 3_850, 3, 450),
    ]
    assert report.profiles[0].attributed_kernels == 12
    assert "--cuda-graph-trace" not in join_limitations(report)


def test_nodes_on_several_devices_are_work_of_each_device(tmp_path: Path) -> None:
    kernels = [
        K(k.start, k.end, k.correlation, device=int(k.graph_node == 3), graph_node=k.graph_node)
        for k in NODES
    ]
    report = bubbleviz.analyze([write_profile(tmp_path, kernels, CALLS, RANGES)])

    assert len(report.ranks) == 2
    assert sorted(row[4] for row in work(report)) == [1] * 4 + [2] * 4


TRACED = [(1_000 * i + 300, 1_000 * i + 900, 10 + i) for i in range(4)]


@pytest.mark.parametrize("without", [(), ("CUPTI_ACTIVITY_KIND_KERNEL",)])
def test_graphs_traced_as_a_whole_count_as_work(
    without: tuple[str, ...], tmp_path: Path, cli: CommandLine
) -> None:
    path = graphs(write_profile(tmp_path, [], CALLS, RANGES, without=without), TRACED)
    report = bubbleviz.analyze([path])
    printed = cli.printed("inspect", str(path))

    assert [row[:4] for row in work(report)] == [
        ("F", 0, 300, 900),
        ("F", 1, 1_300, 1_900),
        ("BW", 0, 2_300, 2_900),
        ("BW", 1, 3_300, 3_900),
    ]
    assert report.summary.bubble_ratio["schedule"].mean is not None
    assert "--cuda-graph-trace" not in join_limitations(report) + printed
    assert report.coverage[0].gpu_ns == report.coverage[0].attributed_gpu_ns == 2_400
    assert "analyze can compute bubble ratios" in printed
    assert "no CUDA kernels" not in printed
    assert "processes    1\n" in printed


@pytest.mark.parametrize("without", [(), ("CUPTI_ACTIVITY_KIND_KERNEL",)])
def test_graphs_that_cannot_be_read_are_refused(
    without: tuple[str, ...], tmp_path: Path, cli: CommandLine
) -> None:
    path = graphs(write_profile(tmp_path, [], CALLS, RANGES, without=without), TRACED)
    edit_database(path, LOST_COLUMN)

    assert main(["analyze", str(path)]) == 1
    printed = cli.printed("inspect", str(path))
    assert "analyze cannot compute bubble ratios" in printed
    assert "--cuda-graph-trace=node" in printed
    assert f"the export lacks {GRAPH}.correlationId" in printed


def test_a_graph_outside_every_operation_is_listed(tmp_path: Path) -> None:
    calls = [*CALLS, C(3_600, 3_700, 99, name=LAUNCH)]
    path = graphs(write_profile(tmp_path, [], calls, RANGES), [*TRACED, (4_000, 4_100, 99)])
    report = bubbleviz.analyze([path])

    assert [(k.count, k.gpu_ns) for k in report.unattributed_kernels] == [(1, 100)]
    assert "graph" in report.unattributed_kernels[0].name.lower()


def test_a_table_of_graphs_that_lacks_a_column_is_reported(tmp_path: Path) -> None:
    kernels = [K(300, 400, 10), K(2_300, 2_400, 12)]
    path = graphs(write_profile(tmp_path, kernels, CALLS, RANGES), TRACED)
    edit_database(path, LOST_COLUMN)
    report = bubbleviz.analyze([path])

    assert "correlationId" in join_limitations(report)
    assert GRAPH in join_limitations(report)


@pytest.mark.parametrize("empty", [True, False])
@pytest.mark.parametrize(
    "name", ["cudaGraphLaunch_v10000", "cuGraphLaunch", "cudaGraphLaunch_ptsz"]
)
def test_graphs_without_any_recorded_work_are_reported(
    name: str, empty: bool, tmp_path: Path
) -> None:
    calls = [C(c.start, c.end, c.correlation, name=name) for c in CALLS[2:]]
    calls += [C(c.start, c.end, c.correlation) for c in CALLS[:2]]
    path = write_profile(tmp_path, [K(300, 400, 10), K(1_300, 1_400, 11)], calls, RANGES)
    if empty:
        graphs(path, [])
    report = bubbleviz.analyze([path])
    notes = [n for n in report.limitations if "--cuda-graph-trace=node" in n.reason]

    assert [note.count for note in notes] == [2]
    assert all(i.ratios["schedule"].value is None for i in report.iterations)


def test_a_profile_with_only_unrecorded_graphs_is_refused_with_the_missing_option(
    tmp_path: Path, cli: CommandLine
) -> None:
    path = write_profile(tmp_path, [], CALLS, RANGES, without=("CUPTI_ACTIVITY_KIND_KERNEL",))

    assert "--cuda-graph-trace=node" in cli.refused("analyze", str(path), code=1)


def test_copies_and_fills_do_not_extend_the_span_of_kernels(tmp_path: Path) -> None:
    calls = [
        *CALLS,
        C(220, 230, 50, name="cudaMemcpyAsync"),
        C(240, 250, 51, name="cudaMemsetAsync"),
    ]
    path = write_profile(
        tmp_path, NODES, calls, RANGES, copies=[M(250, 299, 50)], fills=[M(5_000, 5_010, 51)]
    )
    report = bubbleviz.analyze([path])

    assert work(report)[0] == ("F", 0, 300, 850, 3, 450)
    assert report.profiles[0].copy_ns == 59
    assert report.coverage[0].copy_ns == 59


def test_an_operation_with_only_copies_spans_them(tmp_path: Path, cli: CommandLine) -> None:
    """An operation that only copies, such as an offload, spans its copies and has no kernels."""
    path = write_profile(
        tmp_path, NODES[3:], CALLS, RANGES, copies=[M(300, 340, 10)], fills=[M(400, 450, 10)]
    )

    rows = list(csv.DictReader(io.StringIO(cli.printed("analyze", str(path), "--csv", "-"))))
    first = next(row for row in rows if row["name"] == "F0.0.0")
    assert (first["start_ns"], first["end_ns"], first["kernels"]) == ("300", "450", "0")


def with_kernel(folder: Path, name: str) -> Path:
    """Write F and B with one kernel each. F has a second kernel, which ends later."""
    calls = [*CALLS, C(250, 260, 77)]
    kernels = [K(1_000 * i + 300, 1_000 * i + 400, 10 + i) for i in range(4)]
    return write_profile(folder, [*kernels, K(450, 700, 77, name)], calls, RANGES)


def test_kernels_are_recognized_as_communication_by_name(tmp_path: Path) -> None:
    sends = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm *, unsigned long, ncclWork *)"
    report = bubbleviz.analyze([with_kernel(tmp_path, sends)])
    assert work(report)[0] == ("F", 0, 300, 400, 1, 100)
    assert (report.profiles[0].comm_ns, report.profiles[0].gpu_ns) == (250, 400)
    report = bubbleviz.analyze([with_kernel(tmp_path, "send_to_expert_permute_kernel")])
    assert work(report)[0] == ("F", 0, 300, 700, 2, 350)
    assert report.profiles[0].comm_ns == 0


def test_unattributed_kernels_are_named_with_their_place(tmp_path: Path) -> None:
    calls = [*CALLS, C(600, 610, 90, tid=1), C(4_000, 4_010, 91, tid=8), C(1_600, 1_610, 92)]
    kernels = [
        *NODES,
        K(900, 950, 90, "stray_kernel"),
        K(4_100, 4_400, 91, "other_kernel"),
        K(1_900, 1_920, 92, "stray_kernel"),
        K(4_500, 4_700, 555, "orphan_kernel"),
    ]
    report = bubbleviz.analyze([write_profile(tmp_path, kernels, calls, RANGES)])
    unattributed = {k.name: (k.count, k.gpu_ns) for k in report.unattributed_kernels}

    assert unattributed == {
        "other_kernel": (1, 300), "orphan_kernel": (1, 200), "stray_kernel": (2, 70),
    }  # fmt: skip
    assert [k.gpu_ns for k in report.unattributed_kernels] == [300, 200, 70]
    where = {k.name: k.where for k in report.unattributed_kernels}
    assert "thread 8" in where["other_kernel"]
    assert "thread 1" in where["stray_kernel"]
    assert "not in the profile" in where["orphan_kernel"]
