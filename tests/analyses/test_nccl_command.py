"""The command nccl: its tables, CSV and JSON; real files."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import pytest

from bubbleviz.analyses.nccl import measure_communication
from bubbleviz.analyses.nccl.members import Split
from bubbleviz.analyses.nccl.outputs import COLUMNS, totals_of
from bubbleviz.cli.app import main
from bubbleviz.sources.nccl.events import UNKNOWN
from tests.support.nccl_event_files import Op, Plugin, line
from tests.support.nccl_runs import columns, put, ring
from tests.support.nsys_exports import K, profile


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["nccl", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_every_output_tells_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = ring(tmp_path)
    code, out, err = run(capsys, *paths, "-v")
    assert code == 0
    for words in ("0xfeedfacecafebeef", "RING/SIMPLE", "ends of common operations"):
        assert words in out
    assert "bubbleviz: warning: clocks aligned by the ends of operations: " in err

    rows = list(csv.DictReader(io.StringIO(run(capsys, *paths, "--csv", "-")[1])))
    assert (len(rows), set(COLUMNS) - set(rows[0])) == (24, set())
    wanted = {"communicator": "0xfeedfacecafebeef", "waiting_ns": "40000", "moving_ns": "460000"}
    wanted |= {"split": "members", "timing": "gpu", "peer": "", "clock": ""}
    assert {name: rows[0][name] for name in wanted} == wanted

    first, second = (run(capsys, *paths, "--json", "-")[1] for _ in range(2))
    told = json.loads(first)

    assert first == second
    assert told["schema"] == "bubbleviz.nccl/1"
    assert told["operations"] == 24
    assert told["totals"][0]["waiting_ns"] == 12 * 40_000
    assert told["communicators"] == [{"id": "0xfeedfacecafebeef", "ranks": 2}]
    assert told["clocks"][1]["aligned_by"] == "operations"


def test_hostile_names_are_inert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(("=cmd|x", "<script>", "a\\u001b[31m\\nb", "x" * 10_000)):
        told = '"Count": 5, "Datatype": "@a", "Algorithm": "\\r\\u0000", "CommHash": 1'
        text = line(name, "COLL", "b", 0, 1, 5_000, told) + line(name, "COLL", "e", 0, 1, 6_000)
        path = put(tmp_path, f"{number}.txt", text)
        for option in ((), ("--csv", "-"), ("--json", "-")):
            code, out, _ = run(capsys, path, *option)
            assert code == 0
            assert "\x1b" not in out
            assert "\0" not in out
        assert all(
            not cell.startswith(("=", "@", "+"))
            for row in csv.reader(io.StringIO(run(capsys, path, "--csv", "-")[1]))
            for cell in row
        )


def test_files_of_different_runs_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Plugin(pid=1)
    other.add(Op("Broadcast", 60_000, 90_000))
    file = put(tmp_path, "a.txt", other.text())
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    trace = profile(tmp_path, [K(0, 10_000, 1, name=name), K(20_000, 30_000, 2, name=name)])

    code, _, err = run(capsys, file, str(trace))

    assert code == 0
    assert "event files that may be of another run than the profiles" in err


def test_operations_on_no_common_clock_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = Plugin(pid=1), Plugin(pid=2)
    one.add(Op("AllReduce", 60_000, 90_000, communicator=1))
    two.add(Op("AllReduce", 60_000, 90_000, communicator=2))
    paths = [put(tmp_path, "a.txt", one.text()), put(tmp_path, "b.txt", two.text())]
    code, out, err = run(capsys, *paths, "--csv", "-")

    assert code == 0
    assert "clocks that could not be aligned" in err
    assert [row["clock"] for row in csv.DictReader(io.StringIO(out))] == ["", "b.txt process 2"]


# Real files

DATA = Path(os.environ.get("BUBBLEVIZ_DATA", "data"))


@pytest.mark.skipif(
    not (DATA / "nccl").is_dir(), reason="BUBBLEVIZ_DATA names no folder with nccl/"
)
def test_ranks_of_a_real_ring_waited_for_the_last() -> None:
    found = measure_communication(DATA / "nccl" / "pha-z_sendrecv_v5.jsonlines")

    # Rank 0 began last, 13.3 ms after rank 3; none of the kernels was seen to end.
    assert columns(found, "rank", "peer", "bytes", "waiting_ns") == [
        (0, 1, 1 << 30, 0),
        (0, 3, 1 << 30, 0),
        (1, 2, 1 << 30, 0),
        (1, 0, 1 << 30, 4_285_741),
        (2, 3, 1 << 30, 0),
        (2, 1, 1 << 30, 5_006_468),
        (3, 0, 1 << 30, 13_290_702),
        (3, 2, 1 << 30, 3_998_493),
    ]
    assert set(columns(found, "end_ns", "moving_ns")) == {(UNKNOWN, -1)}


@pytest.mark.skipif(
    not (DATA / "nsys").is_dir(), reason="BUBBLEVIZ_DATA names no folder with nsys/"
)
def test_a_real_export_tells_sends_and_receives_of_its_kernels() -> None:
    found = measure_communication(DATA / "nsys" / "nsys-ai_mfu_2gpu_before.sqlite")

    # 66 kernels, of which 64 carry out two sends and two receives each; blobs were taken out.
    assert sorted((own.name, own.operations) for own in totals_of(found)) == [
        *(("Recv", 128), ("Send", 128), ("SendRecv", 2))
    ]
    assert set(columns(found, "split", "bytes")) == {(Split.ORDER, -1)}
