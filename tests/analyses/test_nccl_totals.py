"""Totals of NCCL: each is explained by the rows above it, in one unit and of one population."""

from __future__ import annotations

import json
import os
import random
from collections import defaultdict
from pathlib import Path

import pytest

from bubbleviz.analyses.nccl import measure_communication
from bubbleviz.analyses.nccl.analysis import Communication
from bubbleviz.analyses.nccl.outputs import as_json, sections, summary, sums_of, totals_of
from bubbleviz.model.window import parse_window
from bubbleviz.render.document import Table
from bubbleviz.sources.nccl.events import UNKNOWN
from tests.support.nccl_event_files import Op, Plugin
from tests.support.nccl_runs import ALLREDUCE, EXACT, SENDRECV, columns, put
from tests.support.nsys_exports import C, K, R, profile

#: Columns that hold sums over the operations.
SUMS = ("count", "MB", "ms", "waiting", "moving")


def rows_of(found: Communication) -> list[dict[str, str]]:
    """Return the rows of the printed table, the one of all operations last."""
    table = next(
        section
        for section in sections(found)
        if isinstance(section, Table) and section.columns[0] == "communicator"
    )
    return [{name: row.get(name, "") for name in table.columns} for row in table.rows if row]


def number(cell: str) -> float:
    return 0.0 if cell == "-" else float(cell.split(" ", maxsplit=1)[0].replace(",", ""))


def covered(found: Communication) -> int:
    """Return the time in which each GPU runs anything, instant by instant."""
    instants: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    whole = 0
    for gpu, clock, start, length in columns(found, "gpu", "clock", "start_ns", "duration_ns"):
        if length >= 0 and start == UNKNOWN:
            whole += length
        elif length >= 0:
            instants[gpu, clock].update(range(start, start + length))
    return whole + sum(len(of_gpu) for of_gpu in instants.values())


def check(found: Communication) -> None:
    """Check that the totals of a report follow from its rows and from its operations."""
    rows = rows_of(found)
    told = json.loads(as_json(found))
    sums = sums_of(found.operations)
    listed = rows[:-1] if len(totals_of(found)) > 1 else rows
    for name in SUMS:
        total = sum(number(row[name]) for row in listed)
        assert total == pytest.approx(number(rows[-1][name]), abs=0.0006 * len(rows)), name
    assert rows[-1]["count"] == f"{len(found.operations):,}"
    assert f"{len(found.operations):,} operation" in summary(found)
    assert sum(file.operations for file in found.files) == len(found.operations)
    for key in ("operations", "bytes", "duration_ns", "waiting_ns", "moving_ns"):
        assert (told[key] or 0) == sum(total[key] or 0 for total in told["totals"])
    for key in ("sized", "timed", "waiting", "moving"):
        assert told[f"{key}_operations"] == sum(t[f"{key}_operations"] for t in told["totals"])
    assert (told["busy_ns"] or 0) == (sums.busy_ns or 0) == covered(found)
    assert (told["busy_ns"] or 0) <= sum(total["busy_ns"] or 0 for total in told["totals"])
    assert len(told["communicators"]) == len({t["communicator"] for t in told["totals"]} - {None})


def shared(folder: Path) -> Communication:
    """Return two sends and a receive of one kernel of 1 ms, twice, and an all-reduce of 3 ms."""
    ranges, kernels, calls = [], [], []
    for group in range(2):
        at = 10_000_000 * group
        names = ("ncclGroupStart", "ncclSend", "ncclSend", "ncclRecv", "ncclGroupEnd")
        ranges += [R(at + 10 * n, at + 10 * n + 5, name) for n, name in enumerate(names)]
        calls.append(C(at + 41, at + 44, group))
        kernels.append(K(at + 1000, at + 1_001_000, group, SENDRECV))
    ranges.append(R(30_000_000, 30_000_010, "ncclAllReduce"))
    calls.append(C(30_000_001, 30_000_002, 9))
    kernels.append(K(31_000_000, 34_000_000, 9, ALLREDUCE))
    return measure_communication(profile(folder, kernels, calls, ranges))


def test_operations_that_share_kernels_are_summed_and_counted_once(tmp_path: Path) -> None:
    found = shared(tmp_path)
    send, receive, reduce, whole = (
        next(row for row in rows_of(found) if name in {row["operation"], row["communicator"]})
        for name in ("Send", "Recv", "AllReduce", "all")
    )

    assert [(row["count"], row["ms"], row["busy"]) for row in (send, receive, reduce, whole)] == [
        ("4", "4.000", "2.000"),
        ("2", "2.000", "2.000"),
        ("1", "3.000", "3.000"),
        ("7", "9.000", "5.000"),
    ]
    assert (
        "7 operations in unknown communicators, unknown bytes; 9.000 ms, summed over operations; "
        "5.000 ms in which GPUs run any of them"
    ) in summary(found)
    told = json.loads(as_json(found))
    assert (told["duration_ns"], told["busy_ns"]) == (9_000_000, 5_000_000)
    assert told["communicators"] == []


@pytest.mark.parametrize("same", [False, True])
def test_instants_of_a_gpu_count_once_and_gpus_add_up(tmp_path: Path, same: bool) -> None:
    """Two all-reduces that run at one time: on two streams of a GPU, or on two GPUs.

    A third one has no timestamps, and is left out.
    """
    kernels = [
        K(100, 400, 1, ALLREDUCE, stream=7),
        K(200, 500, 2, ALLREDUCE, stream=8, device=0 if same else 1),
        K(0, 0, 3, ALLREDUCE),
    ]
    calls = [C(1, 2, 1), C(3, 4, 2), C(5, 6, 3)]
    found = measure_communication(profile(tmp_path, kernels, calls))

    check(found)
    assert {note.what: note.count for note in found.limitations}["kernels without timestamps"] == 1
    assert sums_of(found.operations).duration_ns == 600
    assert sums_of(found.operations).busy_ns == (400 if same else 600)


def test_ends_that_are_unknown_are_counted_beside_the_sum(tmp_path: Path) -> None:
    file = Plugin(pid=1, lag=EXACT)
    file.add(Op("AllReduce", 2_000_000, None, sequence=1))
    found = measure_communication(put(tmp_path, "t-0.txt", file.text()))
    check(found)
    assert "; unknown times\n" in summary(found)

    file.add(Op("AllReduce", 1_000_000, 1_500_000))
    found = measure_communication(put(tmp_path, "t-1.txt", file.text()))
    check(found)
    (row,) = rows_of(found)
    assert (row["count"], row["ms"], row["busy"]) == ("2", "0.500 (1)", "0.500 (1)")
    assert "0.500 ms, summed over the 1 operation whose time is known" in summary(found)
    assert any("(k) over k of them" in line for line in json.loads(as_json(found))["definitions"])


def test_bytes_of_some_operations_stand_with_their_number(tmp_path: Path) -> None:
    """Those of an event file are known; those of a second GPU's kernels are not."""
    file = Plugin(pid=100, lag=EXACT)
    file.add(Op("AllReduce", 1_000_000, 1_500_000))
    kernels = profile(tmp_path, [K(5_000, 9_000, 1, ALLREDUCE)], [C(1, 2, 1)])
    found = measure_communication([put(tmp_path, "t-1.txt", file.text()), kernels])

    check(found)
    assert "4.194 MB in the 1 operation whose bytes are known; " in summary(found)


def test_rows_that_are_not_listed_are_summed_in_one(tmp_path: Path) -> None:
    file = Plugin(pid=1, lag=EXACT)
    for own in range(50):
        start = 1_000_000 * (own + 1)
        file.add(Op("AllReduce", start, start + 1_000 * (own + 1), communicator=1 + own))
    found = measure_communication(put(tmp_path, "t-1.txt", file.text()))

    check(found)
    rows = rows_of(found)
    assert len(rows) == 42
    assert [row["communicator"] for row in rows[-2:]] == ["10 more rows, summed", "all"]
    assert (rows[-2]["count"], rows[-2]["ms"]) == ("10", "0.055")


def test_a_window_holds_its_own_operations_alone(tmp_path: Path) -> None:
    """The communicator that is used after the window is none of it; files count what is in it."""
    file = Plugin(pid=1, begin=0, lag=EXACT)
    for sequence in range(6):
        start = 1_000_000 * (sequence + 1)
        own = 7 if sequence < 3 else 8
        file.add(Op("AllReduce", start, start + 1_000, sequence=sequence, communicator=own))
    path = put(tmp_path, "t-1.txt", file.text())
    found = measure_communication(path, window=parse_window("time:0s-3.5ms"))

    check(found)
    assert "time:0s-3.5ms alone: 3 operations in 1 communicator" in summary(found)
    assert "3 operations of" in summary(found).splitlines()[0]


@pytest.mark.parametrize("seed", range(12))
def test_totals_of_drawn_runs_follow_from_their_operations(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    kernels, calls, ranges = [], [], []
    for group in range(rng.randint(1, 8)):
        at, pid = 2_000 * group, rng.randint(1, 2)
        inside = [rng.choice(("ncclSend", "ncclRecv")) for _ in range(rng.randint(1, 3))]
        names = ("ncclGroupStart", *inside, "ncclGroupEnd")
        ranges += [R(at + 10 * n, at + 10 * n + 5, name, pid=pid) for n, name in enumerate(names)]
        last = at + 10 * (len(names) - 1)
        for piece in range(rng.randint(1, 2)):
            start = at + 100 + rng.randint(0, 3_000)
            calls.append(C(last + 1, last + 2, 10 * group + piece, pid=pid))
            stream = 7 + rng.randint(0, 1)
            length = rng.choice((0, 1, 500, 2_500))
            kernels.append(
                K(start, start + length, 10 * group + piece, SENDRECV, pid=pid, stream=stream)
            )
    check(measure_communication(profile(tmp_path, kernels, calls, ranges)))


@pytest.mark.skipif("BUBBLEVIZ_DATA" not in os.environ, reason="BUBBLEVIZ_DATA is not set")
def test_totals_of_real_files_follow_from_their_rows() -> None:
    data = Path(os.environ.get("BUBBLEVIZ_DATA", ""))
    found = measure_communication(data / "nsys" / "nsys-ai_mfu_2gpu_before.sqlite")

    rows = {row["operation"] or row["communicator"]: row for row in rows_of(found)}
    assert {name: (row["count"], row["ms"], row["busy"]) for name, row in rows.items()} == {
        "Recv": ("128", "50.359", "25.180"),
        "Send": ("128", "50.359", "25.180"),
        "SendRecv": ("2", "0.222", "0.222"),
        "all": ("258", "100.940", "25.402"),
    }
    for path in (*(data / "nccl").iterdir(), data / "kineto" / "hta_nccl_data.json.gz"):
        reported = measure_communication(path)
        told = json.loads(as_json(reported))
        assert told["operations"] == sum(total["operations"] for total in told["totals"])
        for key in ("bytes", "duration_ns", "waiting_ns", "moving_ns"):
            assert (told[key] or 0) == sum(total[key] or 0 for total in told["totals"])
        for name in SUMS:
            cells = [number(row[name]) for row in rows_of(reported)]
            if len(cells) > 1:
                assert sum(cells[:-1]) == pytest.approx(cells[-1], abs=0.002)


# Kernels whose times cannot be
