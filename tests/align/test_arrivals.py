"""Arrival times of the inputs of operations, and collectives that synchronize replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from bubbleviz.align.arrivals import NEVER, find_arrivals
from bubbleviz.align.waits import measure_median_waits
from bubbleviz.interpret.record import ReadOptions, record
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import Phase
from tests.support.nsys_exports import C, K, R, write_profile

#: (name, span) of operations, including receives.
Rows = list[tuple[str, tuple[int, int] | None]]
#: (exact_ns, latest_ns, receives) of an operation.
Arrival = tuple[int, int, bool]


def record_operations(rows: Rows, folder: Path) -> Operations:
    """Return the operations of one rank."""
    kernels: list[K] = []
    calls: list[C] = []
    ranges, host = [], 0
    for name, span in rows:
        range_start, number = host + 1, len(calls)
        if span is not None:
            host += 2
            calls.append(C(host, host + 1, number))
            kernel = "ncclDevKernel_SendRecv" if name.startswith("RECV") else "gemm"
            kernels.append(K(*span, number, kernel))
        host += 3
        ranges.append(R(range_start, host - 1, name))
    path = write_profile(folder, kernels, calls, ranges)
    return record(str(path), ReadOptions())[0].operations


def find_arrivals_by_name(rows: Rows, folder: Path) -> dict[str, Arrival]:
    """Return the arrival of each F and B of one rank, keyed by its name and iteration."""
    operations = record_operations(rows, folder)
    found_arrivals = find_arrivals(operations)
    return {
        f"{operations.names[operations.name_id[n]]} {operations.iteration[n]}": (
            int(found_arrivals.exact_ns[n]),
            int(found_arrivals.latest_ns[n]),
            bool(found_arrivals.receives[n]),
        )
        for n, phase in enumerate(operations.phase.tolist())
        if phase in (Phase.F, Phase.BW)
    }


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (  # the receive with the same name determines the arrival
            [
                ("RECV_FORWARD.0.0.0", (100, 150)),
                ("F0.0.0", (120, 200)),
                ("B0.0.0", (300, 400)),
                ("Optimizer", (400, 450)),
            ],
            {"F0.0.0 0": (150, 150, True), "B0.0.0 0": (NEVER, NEVER, False)},
        ),
        (  # the receive was not recorded
            [
                ("RECV_FORWARD.0.0.0", (100, 150)),
                ("F0.0.0", (150, 200)),
                ("RECV_FORWARD.1.0.0", None),
                ("F1.0.0", (200, 210)),
                ("B0.0.0", (300, 400)),
            ],
            {"F1.0.0 0": (NEVER, NEVER, True)},
        ),
        # the receive is launched before an Optimizer or before any F, and belongs to the iteration
        (
            [
                ("RECV_FORWARD.0.0.0", (90, 100)),
                ("F0.0.0", (100, 200)),
                ("B0.0.0", (300, 400)),
                ("RECV_FORWARD.0.0.0", (400, 600)),
                ("Optimizer", (450, 500)),
                ("F0.0.0", (510, 700)),
                ("B0.0.0", (800, 900)),
            ],
            {"F0.0.0 0": (100, 100, True), "F0.0.0 1": (600, 600, True)},
        ),
        (  # receives without names give an upper bound
            [
                ("RECV_FORWARD", (0, 100)),
                ("RECV_FORWARD", (100, 260)),
                ("F0.0.0", (100, 200)),
                ("F1.0.0", (270, 300)),
                ("B0.0.0", (300, 400)),
                ("B1.0.0", (400, 450)),
            ],
            {"F0.0.0 0": (NEVER, 260, True), "F1.0.0 0": (NEVER, 260, True)},
        ),
    ],
)
def test_receives_show_when_inputs_arrived(
    rows: Rows, expected: dict[str, Arrival], tmp_path: Path
) -> None:
    by_name = find_arrivals_by_name(rows, tmp_path)

    assert {name: by_name[name] for name in expected} == expected


@pytest.mark.parametrize("n_single_rows", [0, 1])
def test_the_shorter_wait_of_two_iterations_is_the_usual_wait(
    n_single_rows: int, tmp_path: Path
) -> None:
    # Medians are computed differently if microbatches do not occur in all iterations.
    single_rows: Rows = [("F1.0.0", (10, 20)), ("B1.0.0", (40, 50))]
    rows: Rows = [
        ("F0.0.0", (0, 10)),
        *single_rows[: 2 * n_single_rows],
        ("B0.0.0", (70, 80)),
        ("Optimizer", (80, 90)),
        ("F0.0.0", (100, 110)),
        ("B0.0.0", (140, 150)),
    ]
    operations = record_operations(rows, tmp_path)
    waits = measure_median_waits(operations, find_arrivals(operations))

    assert waits.waited_ns.tolist() == [30, 20][: 1 + n_single_rows]
