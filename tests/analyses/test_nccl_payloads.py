"""NCCL ranges of a profile: payloads, groups of calls, and kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from bubbleviz.analyses.nccl import measure_communication
from bubbleviz.analyses.nccl.communications import Split
from bubbleviz.analyses.nccl.totals import find_totals
from tests.support.edited_databases import edit_database
from tests.support.nccl_payloads import add_payloads
from tests.support.nccl_runs import ALLREDUCE, SENDRECV, list_columns
from tests.support.notes import list_limitation_subjects
from tests.support.nsys_exports import C, ExportRows, K, R, write_profile

HASH = 0xFEEDFACECAFEBEEF


# Tests of payloads.


def passing(folder: Path, last: str = "offset", declared: str = "BLOB") -> str:
    """Write a rank that runs an all-reduce, then a send to 3 and a receive from 2 in one kernel."""
    ranges = [
        R(10, 20, "ncclCommInitRank", registered=True),
        R(100, 200, "ncclAllReduce", registered=True),
        R(300, 310, "ncclGroupStart", registered=True),
        R(320, 330, "ncclSend", registered=True),
        R(340, 350, "ncclRecv", registered=True),
        R(360, 450, "ncclGroupEnd", registered=True),
        R(500, 510, "ncclReduce", registered=True),
    ]
    path = write_profile(
        folder,
        [K(1_000, 3_000, 1, ALLREDUCE), K(4_000, 4_500, 2, SENDRECV), K(9_000, 9_100, 3, SENDRECV)],
        [C(150, 160, 1), C(400, 410, 2), C(700, 710, 3)],
        ranges,
    )
    return add_payloads(
        path,
        [
            (10, "ncclCommInitRank", "init", (HASH, 4, 1, 0)),
            (100, "ncclAllReduce", "reduce", (HASH, 4096, 0)),
            (320, "ncclSend", "pass", (HASH, 1000, 3)),
            (340, "ncclRecv", "pass", (HASH, 2000, 2)),
        ],
        last=last,
        declared=declared,
    )


@pytest.mark.parametrize("last", ["offset", "total", "text"])
@pytest.mark.parametrize("declared", ["BLOB", "TEXT"])
def test_ranges_contain_communicator_bytes_peer_and_rank(
    tmp_path: Path, last: str, declared: str
) -> None:
    path = passing(tmp_path, last=last, declared=declared)
    communication = measure_communication(path)
    names = communication.operations.names

    assert communication.operations.communicators == (HASH,)
    assert communication.ranks == (4,)
    columns = ("name", "communicator", "rank", "peer", "bytes", "start_ns", "end_ns", "shared")
    assert [(names[n], *rest) for n, *rest in list_columns(communication, *columns)] == [
        ("AllReduce", 0, 1, -1, 4096, 1_000, 3_000, 1),
        ("Send", 0, 1, 3, 1000, 4_000, 4_500, 2),
        ("Recv", 0, 1, 2, 2000, 4_000, 4_500, 2),
        ("SendRecv", -1, -1, -1, -1, 9_000, 9_100, 1),
    ]
    assert list_limitation_subjects(communication) >= {
        "NCCL kernels outside of NCCL ranges",
        "NCCL calls without kernels",
        "operations whose waiting is unknown",  # from the ranges
        "operations whose members are unknown",  # from the kernel outside the ranges
    }
    assert {names[n] for (n,) in list_columns(communication, "algorithm") if n >= 0} == {"RING"}
    # For an all-reduce of four ranks, the factor is 2 (4 - 1) / 4.
    total = next(entry for entry in find_totals(communication) if entry.name == "AllReduce")
    assert total.bus_gbps == pytest.approx(4096 / 2_000 * 1.5)
    # If a layout has no offsets, fields are aligned to their size.
    edit_database(Path(path), "UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET offset = NULL")
    assert list_columns(measure_communication(path), "bytes", "peer")[1] == (1000, 3)


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE NVTX_EVENTS SET binaryData = substr(binaryData, 1, 20)",
        "UPDATE NVTX_EVENTS SET binaryData = 'no hex'",
        "UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET schemaId = schemaId + 100",
        "DELETE FROM NVTX_PAYLOAD_SCHEMA_ENTRIES",
        "DROP TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES",
        "DROP TABLE NVTX_PAYLOAD_SCHEMAS",
        "UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET type = 'x', offset = 1000",
        "INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES SELECT domainId, schemaId, idx, flags, 5, name, "
        "description, arrayOrUnionDetail, 4 FROM NVTX_PAYLOAD_SCHEMA_ENTRIES",
        "UPDATE NVTX_EVENTS SET binaryData = NULL",
        "ALTER TABLE NVTX_EVENTS DROP COLUMN binaryData",
    ],
)
def test_unreadable_payloads_are_reported(tmp_path: Path, edit: str) -> None:
    path = passing(tmp_path)
    edit_database(Path(path), edit)
    communication = measure_communication(path)

    assert len(communication.operations) == 4
    if "SCHEMAS" not in edit:
        assert {
            communicator for (communicator,) in list_columns(communication, "communicator")
        } == {-1}
        assert list_limitation_subjects(communication) & {
            "payloads of NCCL ranges",
            "payloads of ranges",
        }


def test_payloads_of_advanced_tracing_are_named_with_the_command_that_records_others(
    tmp_path: Path,
) -> None:
    path = passing(tmp_path)
    edit_database(Path(path), "UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET name = 'commHash'")

    (note,) = [
        note
        for note in measure_communication(path).limitations
        if note.what == "payloads of ranges"
    ]
    assert "bytes, peers and communicators are unknown" in note.reason
    assert note.reason.endswith("-t nccl, profile again with: nsys profile -t cuda,nvtx")


def test_a_group_assigns_its_kernels_by_what_they_do(tmp_path: Path) -> None:
    """A group of two all-reduces and a send runs two kernels of one family and one of another."""
    ranges = [
        R(0, 1, "ncclGroupStart"),
        R(2, 3, "ncclGroupStart"),
        R(10, 20, "ncclAllReduce"),
        R(30, 40, "ncclSend"),
        R(50, 60, "ncclAllReduce"),
        R(61, 62, "ncclGroupEnd"),
        R(70, 100, "ncclGroupEnd"),
    ]
    kernels = [K(200, 300, 1, ALLREDUCE), K(300, 400, 2, SENDRECV), K(400, 500, 3, ALLREDUCE)]
    calls = [C(71 + 2 * n, 72 + 2 * n, n) for n in (1, 2, 3)]
    called = measure_communication(write_profile(tmp_path, kernels, calls, ranges)).operations

    assert [called.names[n] for n in called.name.tolist()] == ["AllReduce", "Send", "AllReduce"]
    assert called.kernel.tolist() == [0, 1, 2]


def test_kernels_pair_by_order_if_nothing_else_identifies_them(tmp_path: Path) -> None:
    rows = ExportRows()
    for rows.pid, delay_ns in ((1, 0), (2, 300)):
        for start in range(10_000, 60_000, 10_000):
            rows.launch(start - 400, start + delay_ns, start + 5_000, ALLREDUCE, took=100)
            rows.add_range(start - 500, start - 200, "ncclAllReduce")
    communication = measure_communication(rows.write(tmp_path))

    assert set(list_columns(communication, "pid", "waiting_ns", "moving_ns", "split")) == {
        (1, 300, 4_700, Split.ORDER),
        (2, 0, 4_700, Split.ORDER),
    }
    assert "operations paired by their order only" in list_limitation_subjects(communication)
