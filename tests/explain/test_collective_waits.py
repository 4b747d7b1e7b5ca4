"""Waits in collectives: when a wait ends, and for which rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from bubbleviz.align.stages.pipelines import Parallel
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.collective_waits import CollectiveWaits, measure_collective_waits
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import Phase
from bubbleviz.report.long_bubbles import describe_longest_implied, find_longest_bubbles
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import write_all_advice
from tests.planting import Planting, plant
from tests.support.drawn_reports import Op, make_operations
from tests.support.nccl_payloads import add_payloads
from tests.support.notes import find_limitation, list_limitation_subjects
from tests.support.nsys_exports import ExportRows
from tests.support.planted_runs import analyze_planting

US = 1_000
MS = 1_000_000
SCATTER = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def table(*rows: tuple[int, int, int, int]) -> CollectiveIntervals:
    """Return collectives given as (rank, start_us, end_us, meeting)."""
    none = np.full(len(rows), -1, np.int64)
    rank, start, end, meeting = np.array(rows, np.int64).reshape(-1, 4).T.copy()
    columns = dict.fromkeys(CollectiveIntervals.column_names(), none) | {
        "rank": rank,
        "kind": np.zeros(len(rows), np.int64),
        "start_ns": start * US,
        "end_ns": end * US,
        "meeting": meeting,
    }
    return replace(CollectiveIntervals.make_empty(), **columns, kinds=("AllReduce",))


def make_work(*spans: tuple[int, int, int]) -> Operations:
    """Return operations given as (rank, start_us, end_us)."""
    ops = [Op(rank, Phase.F, 0, start * US, end * US) for rank, start, end in sorted(spans)]
    return make_operations(ops)[0]


def list_transfers(waits: CollectiveWaits) -> list[tuple[int, int, int]]:
    """Return the start of each transfer, the last rank to enter, and the row that it ran before."""
    columns = waits.moving_ns // US, waits.last_rank, waits.last_operation
    return list(zip(*(values.tolist() for values in columns), strict=True))


@pytest.mark.parametrize(
    ("rows", "worked_before", "expected"),
    [
        # The shortest kernel shows the length of the transfer.
        (
            [(0, 100, 1_000, 7), (1, 700, 1_000, 7), (2, 500, 1_000, 7)],
            [(1, 0, 600)],
            [(700, 1, 0), (700, -1, -1), (700, 1, 0)],
        ),
        # A kernel that is split into pieces is entered once.
        # In the reverse case, its first pieces wait.
        (
            [(0, 100, 1_000, 7), (1, 600, 700, 7), (1, 700, 800, 7), (1, 810, 1_000, 7)],
            [],
            [(600, 1, -1), (600, -1, -1), (700, -1, -1), (810, -1, -1)],
        ),
        (
            [(0, 800, 1_000, 7), (1, 600, 700, 7), (1, 700, 900, 7), (1, 900, 1_000, 7)],
            [],
            [(800, -1, -1), (700, 0, -1), (800, 0, -1), (900, 0, -1)],
        ),
        # When it enters the collective, the awaited rank still runs an earlier operation.
        (
            [(0, 500, 1_000, 7), (1, 800, 1_000, 7)],
            [(1, 0, 400), (1, 400, 900), (1, 900, 950)],
            [(800, 1, 1), (800, -1, -1)],
        ),
        # If several ranks enter together, the other ranks waited for the one that worked.
        (
            [(0, 500, 1_000, 7), (1, 500, 1_000, 7), (2, 300, 1_000, 7)],
            [(0, 0, 100), (1, 0, 499), (2, 0, 300)],
            [(500, 1, 1), (500, -1, -1), (500, 1, 1)],
        ),
        # No transfer is shorter than a launch.
        ([(0, 100, 1_000, 7), (1, 996, 1_000, 7)], [], [(1_000, 1, -1), (996, -1, -1)]),
    ],
)
def test_the_transfer_starts_when_the_last_rank_enters(
    rows: list[tuple[int, int, int, int]],
    worked_before: list[tuple[int, int, int]],
    expected: list[tuple[int, int, int]],
) -> None:
    assert (
        list_transfers(measure_collective_waits(table(*rows), make_work(*worked_before)))
        == expected
    )


# Tests of whole runs.


def rank_of_run(folder: Path, rank: int, *, communicator: int | None) -> Path:
    """Write two iterations (10 ms each) of a rank on a separate host whose clock is unknown.

    Rank 1 works until 6 ms, rank 0 until 3 ms; the reduce-scatter ends at 6.5 ms.
    """
    done = 6 if rank else 3
    rows = ExportRows(pid=rank + 1)
    payloads: list[tuple[int, str, str, tuple[int, ...]]] = []
    for n in range(3):
        start_ns = 10 * MS * n + rank * 777 * MS
        host = start_ns - 500 * US
        spans = (
            ("F0.0.0", "gemm", 0, MS),
            ("B0.0.0", "gemm", MS, done * MS),
            ("ncclReduceScatter", SCATTER, done * MS, 6 * MS + 500 * US),
            ("Optimizer", "adam", 6 * MS + 500 * US, 7 * MS),
        )
        rows.add_range(host, host + 200, f"iter_{rank}_{n}")
        for index, (name, kernel, start, end) in enumerate(spans):
            launch_ns = host + 10 + 40 * index
            rows.add_range(launch_ns, launch_ns + 30, name)
            rows.launch(launch_ns + 5, start_ns + start, start_ns + end, kernel)
            if kernel == SCATTER and communicator is not None:
                payloads.append((launch_ns, name, "reduce", (communicator, 4096, 0)))
    path = rows.write(folder, name=f"rank{rank}.sqlite", hostname=f"node{rank}", utc_epoch_ns=None)
    return Path(add_payloads(path, payloads, pid=rank + 1))


def test_recorded_communicators_need_no_common_clock(tmp_path: Path) -> None:
    report = bubbleviz.analyze([rank_of_run(tmp_path, rank, communicator=0xAB) for rank in (0, 1)])
    idle_ns = report.explanation.causes.idle_ns["period"]

    # The rank waits in each of two periods.
    assert idle_ns[:2, 0, Cause.DEPENDENCY].tolist() == [3 * MS, 3 * MS]
    assert idle_ns[:2, :, Cause.COLLECTIVE].tolist() == [[500 * US] * 2] * 2
    assert list_limitation_subjects(report).isdisjoint({UNKNOWN, LACKING})


UNKNOWN = "collectives with unknown members"
LACKING = "collectives with members that were not recorded"


def test_without_communicators_and_clock_all_of_the_wait_is_collective(tmp_path: Path) -> None:
    paths = [rank_of_run(tmp_path, rank, communicator=None) for rank in (0, 1)]
    report = bubbleviz.analyze(paths, align="none")
    idle_ns = report.explanation.causes.idle_ns["period"]

    assert idle_ns[:2, :, Cause.COLLECTIVE].tolist() == [[3_500 * US, 500 * US]] * 2
    note = find_limitation(report, UNKNOWN)
    assert note.count == 6


def test_the_longest_wait_in_a_collective_is_reported_with_its_last_rank() -> None:
    planting = Planting(
        iterations=2,
        replicas=2,
        stages=2,
        microbatches=4,
        reduce_ns=300 * US,
        slow_pipeline=1,
        slow_factor=2.0,
        iteration_ranges=True,
    )
    report = analyze_planting(planting, parallel=Parallel(pp=2, dp=2))
    slow = next(r for r in report.ranks if (r.stage, r.pipeline) == (0, 1))
    bubbles = report.bubbles.take(report.bubbles.waits_in_collective)
    waits = bubbles.take(bubbles.end_ns - bubbles.start_ns > MS)

    assert len(waits) > 0
    assert set(report.operations.rank[waits.peer_operation].tolist()) <= {
        r.index for r in report.ranks if r.pipeline == 1
    }
    sentences = [
        *(sentence for _, sentence in find_longest_bubbles(report)),
        describe_longest_implied(report) or "",
    ]
    assert any(f"waits in ReduceScatter for rank {slow.number} (" in bubble for bubble in sentences)


@pytest.mark.parametrize("pieces", [1, 3])
def test_transfers_are_the_planted_ones_despite_clock_errors(pieces: int) -> None:
    planting = Planting(
        iterations=3,
        replicas=2,
        servers=4,
        reduce_ns=700 * US,
        reduce_pieces=pieces,
        jitter=0.1,
        iteration_ranges=True,
        clock_error_ns=(0, 3 * MS, -2 * MS, MS),
        drift_ppb=(0, 20_000, -10_000, 5_000),
        barrier=True,
        norm_ns=30 * US,
    )
    report = analyze_planting(planting, parallel=Parallel(pp=4, dp=2))
    collective_ns = report.explanation.causes.idle_ns["period"][:2, :, Cause.COLLECTIVE]

    # Drifting clocks stretch these times by less than a millionth.
    assert collective_ns == pytest.approx(np.full((2, 8), 730 * US), rel=1e-3)
    assert list_limitation_subjects(report).isdisjoint({UNKNOWN, LACKING})


def gathered_run(folder: Path) -> Report:
    """Return a run of two stages on one host that gather parameters after their first forward.

    ::

        rank 0   F0 ├──── waits ─────┤▓ moves ▓├ F1      BW0           BW1
        rank 1     F0 ██████████████ ├▓ moves ▓├ BW0 █████    F1   BW1
    """
    gather = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    stages = (
        (
            ("F0.0.0", "gemm", 0, 1),
            ("gather", gather, 1, 5),
            ("F1.0.0", "gemm", 5, 6),
            ("B0.0.0", "gemm", 8, 9),
            ("B1.0.0", "gemm", 12, 13),
            ("Optimizer", "adam", 13, 14),
        ),
        (
            ("F0.0.0", "gemm", 1, 4),
            ("gather", gather, 4, 5),
            ("B0.0.0", "gemm", 5, 8),
            ("F1.0.0", "gemm", 8, 10),
            ("B1.0.0", "gemm", 10, 12),
            ("Optimizer", "adam", 13, 14),
        ),
    )
    rows = ExportRows()
    for rank, spans in enumerate(stages):
        rows.pid = rank + 1
        for index, (name, kernel, start, end) in enumerate(spans):
            host = 100 * index
            rows.add_range(host, host + 30, name)
            rows.launch(host + 5, 10_000 + start * MS, 10_000 + end * MS, kernel, device=rank)
    return bubbleviz.analyze(rows.write(folder))


def test_a_collective_between_operations_is_a_dependency_until_all_have_entered(
    tmp_path: Path,
) -> None:
    report = gathered_run(tmp_path)
    explanation = report.explanation
    idle_ns, times = explanation.causes.idle_ns["schedule"][0], explanation.communication

    # Rank 0 waits in the collective, and for its gradients from 6 to 8 and from 9 to 12.
    assert idle_ns[:, Cause.DEPENDENCY].tolist() == [(3 + 2 + 3) * MS, 0]
    assert idle_ns[:, Cause.COLLECTIVE].tolist() == [MS, MS]
    (waits,) = np.flatnonzero(report.bubbles.waits_in_collective).tolist()
    assert int(report.operations.rank[report.bubbles.peer_operation[waits]]) == 1
    assert (times.wait_ns.tolist(), times.transfer_ns.tolist()) == ([[3 * MS, 0]], [[MS, MS]])
    assert times.exposed_ns.tolist() == [[MS, MS]]
    assert times.communication_ns.tolist() == [[4 * MS, MS]]
    # The wait of the rank remains without the transfer.
    replays = {change.name: change.makespan_ns // MS for change in explanation.changes}
    names = ("measured", "no-collective", "no-delay")
    assert [replays[name] for name in names] == [13, 12, 12]
    assert explanation.path is not None
    assert ("AllGather", MS) in {(part.what, part.time_ns) for part in explanation.path.parts}


def test_a_bucket_reduced_during_compute_ends_the_wait_of_other_ranks(tmp_path: Path) -> None:
    """Rank 1 starts the reduction while it still computes. Rank 0 has been waiting for it."""
    rows = ExportRows()
    for rows.pid, done, entered in ((1, 3, 3), (2, 7, 6)):
        spans = (
            (0, "gemm", 0, 1_000),
            (100, "gemm", 1_000, 1_000 * done),
            (100, SCATTER, 1_000 * entered, 6_500),
            (200, "adam", 7_000, 8_000),
        )
        for number, (host, kernel, start, end) in enumerate(spans):
            called = host + 5 + 2 * number
            rows.launch(called, MS + start * US, MS + end * US, kernel, stream=number)
        for name, host in (("F0.0.0", 0), ("B0.0.0", 100), ("Optimizer", 200)):
            rows.add_range(host, host + 50, name)
    report = bubbleviz.analyze(rows.write(tmp_path), parallel=Parallel(dp=2))
    idle_ns = report.explanation.causes.idle_ns["schedule"][0]

    assert idle_ns[0, Cause.COLLECTIVE] == 500 * US
    assert idle_ns[0, Cause.DRAIN] == 3_500 * US
    assert idle_ns[1].sum() == 0


def test_advice_on_an_exposed_collective_names_the_search_for_queued_communication(
    tmp_path: Path,
) -> None:
    plant(Planting(replicas=2, reduce_ns=20_000_000), tmp_path)
    first, *_ = write_all_advice(bubbleviz.analyze(tmp_path))

    assert first.kind == "collective"
    assert first.text.startswith("Overlap ReduceScatter with compute")
    assert first.text.endswith("queued behind a kernel of another stream, run bubbleviz idle")
