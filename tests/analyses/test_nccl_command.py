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


def test_the_table_tells_totals_and_clocks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *ring(tmp_path), "-v")

    assert code == 0
    assert "0xfeedfacecafebeef" in out
    assert "RING/SIMPLE" in out
    assert "ends of common operations" in out
    assert "bubbleviz: warning: clocks aligned by the ends of operations: " in err


def test_csv_has_one_row_an_operation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *ring(tmp_path, 3), "--csv", "-")
    rows = list(csv.DictReader(io.StringIO(out)))

    assert len(rows) == 6
    assert set(COLUMNS) <= set(rows[0])
    assert rows[0]["communicator"] == "0xfeedfacecafebeef"
    assert (rows[0]["waiting_ns"], rows[0]["moving_ns"]) == ("40000", "460000")
    assert (rows[0]["split"], rows[0]["timing"], rows[0]["peer"]) == ("members", "gpu", "")
    assert rows[0]["clock"] == ""


def test_json_is_whole_and_the_same_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = ring(tmp_path)
    first, second = (run(capsys, *paths, "--json", "-")[1] for _ in range(2))
    told = json.loads(first)

    assert first == second
    assert told["schema"] == "bubbleviz.nccl/1"
    assert told["operations"] == 24
    assert told["totals"][0]["waiting_ns"] == 12 * 40_000
    assert told["communicators"] == [{"id": "0xfeedfacecafebeef", "ranks": 2}]
    assert told["clocks"][1]["aligned_by"] == "operations"


def test_outputs_are_replaced_with_force_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = ring(tmp_path, 2)
    output = put(tmp_path, "out.csv", "mine")
    code, out, err = run(capsys, *paths, "--csv", output)

    assert (code, out) == (1, "")
    assert "replace it with --force" in err
    assert Path(output).read_text(encoding="utf-8") == "mine"
    assert run(capsys, *paths, "--csv", output, "--force")[0] == 0
    assert Path(output).read_text(encoding="utf-8").startswith("file,kind,pid")
    code, _, err = run(capsys, *paths, "--csv", paths[0], "--force")
    assert code == 1
    assert "inputs are never replaced" in err


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
