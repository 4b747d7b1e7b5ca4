"""Transfers and gaps of runs whose receives are not recorded, against known times."""

from __future__ import annotations

from pathlib import Path

import bubbleviz

MS = 1_000_000
#: (rank, phase, microbatch, start, end) of operations, in ms.
#: Activations take 30 ms to arrive, and gradients take 5 ms.
#: Operations that do not wait are 1 ms apart.
TWO_STAGES = (
    (0, "F", 0, 0, 10),
    (0, "F", 1, 11, 21),
    (1, "F", 0, 40, 50),
    (1, "F", 1, 52, 61),  # sent while F0 ran, so this input shows neither a transfer time nor a gap
    (1, "BW", 0, 62, 82),
    (1, "BW", 1, 83, 100),
    (0, "BW", 0, 87, 107),
    (0, "BW", 1, 108, 128),
)
Kind = tuple[int, str]


def analyzed(rows: tuple[tuple[int, str, int, int, int], ...], folder: Path) -> bubbleviz.Report:
    """Return the report on the operations in a table."""
    lines = ["iteration,rank,stage,phase,microbatch,start_ns,end_ns"]
    for iteration in range(2):
        start_ns = iteration * 1000
        lines += [
            f"{iteration},{rank},{rank},{phase},{mb},{(start_ns + a) * MS},{(start_ns + b) * MS}"
            for rank, phase, mb, a, b in rows
        ]
    file = folder / "operations.csv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return bubbleviz.analyze([file])


def measured(report: bubbleviz.Report) -> dict[Kind, tuple[float, float | None]]:
    """Return the medians and gaps in ms, keyed by virtual stage and phase."""
    return {
        (kind.virtual_stage, kind.phase.label): (
            kind.median_ns / MS,
            None if kind.gap_ns is None else kind.gap_ns / MS,
        )
        for kind in report.explanation.phase_times.kinds
    }


def test_transfers_and_gaps_are_measured_on_idle_ranks(tmp_path: Path) -> None:
    times = measured(analyzed(TWO_STAGES, tmp_path))

    assert times == {
        (0, "F"): (10.0, 1.0),
        (0, "BW"): (20.0, 1.0),
        (1, "F"): (9.5, None),
        (1, "BW"): (18.5, 1.0),
        (1, "RECV_F"): (30.0, None),
        (0, "RECV_B"): (5.0, None),
    }


def test_a_message_that_is_sent_late_shows_no_transfer_time(tmp_path: Path) -> None:
    """The third forward overlaps a backward of 40 ms, and its result is sent after the backward."""
    rows = (
        (0, "F", 0, 0, 10),
        (0, "F", 1, 100, 110),
        (0, "F", 2, 200, 210),
        (1, "F", 0, 12, 22),
        (1, "F", 1, 112, 122),
        (1, "F", 2, 252, 262),
        (1, "BW", 0, 270, 280),
        (1, "BW", 1, 290, 300),
        (1, "BW", 2, 310, 320),
        (0, "BW", 0, 281, 291),
        (0, "BW", 1, 301, 311),
        (0, "BW", 2, 321, 331),
    )
    times = measured(analyzed(rows, tmp_path))

    assert times[1, "RECV_F"] == (2.0, None)
    assert times[0, "RECV_B"] == (1.0, None)


def test_a_run_of_one_rank_has_no_transfers(tmp_path: Path) -> None:
    times = measured(analyzed(((0, "F", 0, 0, 10), (0, "BW", 0, 11, 21)), tmp_path))

    assert {label for _, label in times} == {"F", "BW"}
