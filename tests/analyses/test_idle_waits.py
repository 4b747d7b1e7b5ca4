"""Causes of waits of streams and hosts, in planted exports with known waits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bubbleviz
from bubbleviz.analyses.idle.report import RankIdle
from bubbleviz.model.window import parse_window
from bubbleviz.render.palette import ACTIVITIES
from tests.support.command_line import CommandLine
from tests.support.edited_databases import edit_database, read_columns, rebuild_table
from tests.support.idle_runs import US, c, check_sums, get_only_rank, k, list_times
from tests.support.nsys_exports import M, write_profile
from tests.support.synchronized_exports import RECORDS, WAITS, Rec, Wait, add_synchronization
from tests.support.torch_traces import write_traces

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
RECORD, WAIT = "cudaEventRecord", "cudaStreamWaitEvent"


def waits_of(rank: RankIdle) -> list[tuple[str, str, str, str, float, float, float]]:
    """Return who waited, the awaited work with its kind, and three times in us, for each wait."""
    return [
        (
            w.waiting,
            w.stream,
            w.work.split("(")[0],
            w.kind,
            w.blocked_ns / US,
            w.without_compute_ns / US,
            w.idle_ns / US,
        )
        for w in rank.waits
    ]


def two_devices(
    folder: Path,
    *,
    name: str = NCCL,
    device: int = 1,
    launch: tuple[int, int] = (50, 55),
    on_second_device: bool = False,
) -> Path:
    """Return an export in which a kernel waits for a kernel or copy of another stream.

    ::

        device 0, stream 7    P 0-100            W 600-700
        device 0, stream 8               300-400, if ``on_second_device``
        device 1, stream 20   K 50-500
        host                  record at 30, wait at 40, launch W at 50
    """
    work = k(50, 500, 2, name, device=device, stream=20)
    copies = [M(50 * US, 500 * US, 2, device=device, stream=20)] if name == COPY else []
    kernels = [k(0, 100, 1), k(600, 700, 5, "gemm_after"), *([] if copies else [work])]
    calls = [c(-10, -5, 1), c(10, 15, 2), RECORDING, c(40, 42, 4, name=WAIT), c(*launch, 5)]
    if on_second_device:
        kernels.append(k(300, 400, 6, "other", stream=8))
        calls.append(c(20, 21, 6))
    return write_profile(folder, kernels, calls, copies=copies)


COPY = "copy or memset"
RECORDING, LONG = c(30, 32, 3, name=RECORD), k(50, 500, 2, "long", device=1, stream=20)
RECORDED, WAITED = Rec(20, 42, 3, pairing=9, device=1), Wait(41, 7, 42, 4, pairing=9)


@pytest.mark.parametrize(
    ("name", "kind", "activity"),
    [
        (NCCL, "communication", "blocked by communication"),
        ("gemm", "compute", "blocked by compute"),
        (COPY, "copy", "blocked by copies"),
    ],
)
def test_idle_time_is_blocked_until_the_work_of_the_event_ends(
    tmp_path: Path, name: str, kind: str, activity: str
) -> None:
    file = add_synchronization(two_devices(tmp_path, name=name), [RECORDED], [WAITED])

    rank, other = bubbleviz.idle(file).ranks

    assert list_times(rank) == {activity: 400, "stream or rank dependency": 100}
    assert waits_of(rank) == [
        ("stream 7", "GPU 1 stream 20", name.partition("(")[0], kind, 400, 400, 400)
    ]
    assert (rank.waits[0].waits, other.waits) == (1, ())
    check_sums(rank)

    # The host is late until 300 and launches until 340.
    # The wait for the event starts then.
    late_launch = two_devices(tmp_path, name=name, launch=(300, 340))
    assert list_times(
        bubbleviz.idle(add_synchronization(late_launch, [RECORDED], [WAITED])).ranks[0]
    ) == {
        "no host trace": 200,
        "launch": 40,
        activity: 160,
        "stream or rank dependency": 100,
    }


LONGER = k(300, 500, 6, "same time", device=1, stream=20)
#: Additional activities, calls, event records and waits, and the awaited work with times in us.
#: Stream 7 ends one kernel at 100 and begins the next one at 600.
#: Each case lists the work for which the second kernel provably waited.
PROOFS: dict[str, tuple[dict[str, Any], list[tuple[str, float]]]] = {
    "a record at the time of the wait is not before it": (
        {"waits": [Wait(30, 7, 42, 4, pairing=9)]},
        [],
    ),
    "work launched at the time of the wait may be before it": (
        {"waits": [Wait(50, 7, 42, 4, pairing=9)]},
        [],
    ),
    "work launched at the time of the record does not count": (
        {
            "kernels": [k(50, 300, 2, "before", device=1, stream=20), LONGER],
            "calls": [c(10, 11, 2), c(30, 31, 6, tid=2)],
        },
        [("before", 200)],
    ),
    "work that began before its event did not wait for it": (
        {"kernels": [k(50, 900, 2, device=1, stream=20)]},
        [],
    ),
    "whether work of unknown launch was before the record is unknown": (
        {"kernels": [k(50, 300, 2, device=1, stream=20), replace(LONGER, correlation=66)]},
        [],
    ),
    "a recorded completion that is later": (
        {"records": [replace(RECORDED, completed=550)]},
        [("long", 450)],
    ),
    "an event after only a wait completes with the awaited work": (
        {
            "kernels": [LONG, k(500, 550, 8, stream=8)],
            "calls": [
                c(10, 15, 2),
                c(33, 34, 6, name=WAIT),
                c(38, 39, 7, name=RECORD),
                c(44, 45, 8),
            ],
            "records": [RECORDED, Rec(8, 43, 7, pairing=10)],
            "waits": [Wait(33, 8, 42, 6, pairing=9), Wait(41, 7, 43, 4, pairing=10)],
        },
        # The recording stream also waits, from the time at which its work could begin.
        [("long", 436), ("long", 400)],
    ),
    "a graph ends with its last kernel": (
        {
            "kernels": [
                k(50, 200, 2, "on its stream", device=1, stream=20, graph_node=1),
                k(60, 500, 2, "on another", device=1, stream=21, graph_node=2),
            ],
            "calls": [c(10, 15, 2, name="cudaGraphLaunch")],
        },
        [("on another", 400)],
    ),
}


@pytest.mark.parametrize("case", PROOFS)
def test_proven_waits_of_streams_are_attributed(tmp_path: Path, case: str) -> None:
    events, expected = PROOFS[case]
    kernels = [k(0, 100, 1), *events.get("kernels", [LONG]), k(600, 700, 5)]
    calls = [c(-10, -5, 1), *events.get("calls", [c(10, 15, 2)]), RECORDING, c(50, 55, 5)]
    file = write_profile(tmp_path, kernels, calls)
    file = add_synchronization(
        file, events.get("records", [RECORDED]), events.get("waits", [WAITED])
    )

    rank = bubbleviz.idle(file).ranks[0]

    assert [(wait.work, wait.blocked_ns / US) for wait in rank.waits] == expected


@pytest.mark.parametrize(
    "records",
    [
        [],
        [Rec(20, 43, 3, device=1)],
        # The awaited record is lost, and an earlier record of the same event is not the cause.
        [Rec(20, 42, 3, pairing=8, device=1)],
        # The call of the record is not recorded, so the work before it is unknown.
        [Rec(20, 42, 77, pairing=9, device=1)],
        [Rec(20, 42, None, pairing=9, device=1)],
        # The record names a stream and a device that have no work.
        [Rec(33, 42, 3, pairing=9, device=1)],
        [Rec(20, 42, 3, pairing=9, device=5)],
    ],
)
def test_unproven_waits_keep_their_cause(tmp_path: Path, records: list[Rec]) -> None:
    report = bubbleviz.idle(add_synchronization(two_devices(tmp_path), records, [WAITED]))

    assert report.ranks[0].waits == ()
    assert list_times(report.ranks[0]) == {"stream or rank dependency": 500}
    is_recorded = any(record.stream == 33 or record.device == 5 for record in records)
    counts = [note.count for note in report.limitations if note.what == "what streams waited for"]
    assert counts == ([] if is_recorded else [1])


def test_graphs_and_windows_contain_their_part_of_waits(tmp_path: Path) -> None:
    kernels = [k(0, 100, 1), LONG]
    kernels += [k(600, 650, 5, "first node", graph_node=1), k(660, 700, 5, graph_node=2)]
    calls = [c(-10, -5, 1), c(10, 15, 2), RECORDING, c(50, 55, 5, name="cudaGraphLaunch")]
    file = add_synchronization(write_profile(tmp_path, kernels, calls), [RECORDED], [WAITED])
    rank = bubbleviz.idle(file).ranks[0]
    assert list_times(rank) == {"blocked by compute": 400, "stream or rank dependency": 100 + 10}

    file = add_synchronization(two_devices(tmp_path), [RECORDED], [WAITED])
    rank = bubbleviz.idle(file, window=parse_window("time:300us-550us")).ranks[0]
    assert list_times(rank) == {"blocked by communication": 200, "stream or rank dependency": 50}
    assert waits_of(rank)[0][4:] == (200, 200, 200)


@pytest.mark.parametrize(
    ("removed", "expected"),
    [
        ("CUPTI_ACTIVITY_KIND_KERNEL.streamId", None),
        *((table, None) for table in (WAITS, RECORDS)),
        # Without these columns, no wait is proved, and a limitation reports their absence.
        *((f"{WAITS}.{own}", True) for own in ("start", "deviceId", "streamId", "eventId")),
        *((f"{RECORDS}.{own}", True) for own in ("deviceId", "streamId", "correlationId")),
        (f"{RECORDS}.eventId", True),
        # Some versions lack these columns.
        # If the process of a wait is not recorded, the wait belongs to the only process.
        *((f"{WAITS}.{own}", False) for own in ("correlationId", "syncType")),
        *(
            (f"{{}}.{own}", False)
            for own in ("eventSyncId", "globalPid", "contextId", "greenContextId")
        ),
    ],
)
def test_waits_are_proven_only_if_required_columns_exist(
    tmp_path: Path, removed: str, expected: bool | None
) -> None:
    without = dict.fromkeys(removed.format(table) for table in (WAITS, RECORDS))
    file = add_synchronization(two_devices(tmp_path), [RECORDED], [WAITED], without=list(without))

    report = bubbleviz.idle(file)

    if expected is False:
        assert list_times(report.ranks[0])["blocked by communication"] == 400
    else:
        assert list_times(report.ranks[0]) == {"stream or rank dependency": 500}
        assert [rank.waits for rank in report.ranks] == [(), ()]
    subjects = {"stream waits", "what streams waited for"}
    reasons = [note.reason for note in report.limitations if note.what in subjects]
    missing = f"{file} lacks {removed}, so it is unknown what streams waited for"
    assert (missing in reasons) == bool(expected)
    assert reasons == [] or expected is not False


@pytest.mark.parametrize("records", [True, False])
@pytest.mark.parametrize("device", [0, 1])
def test_pytorch_traces_prove_the_same_waits(tmp_path: Path, device: int, *, records: bool) -> None:
    record = Rec(20, 42, 3, pairing=9, device=device)
    file = add_synchronization(two_devices(tmp_path, device=device), [record], [WAITED])
    (trace,) = write_traces(file, tmp_path, records=records)

    rank, expected = (bubbleviz.idle(path).ranks[0] for path in (trace, file))

    if device and not records:
        # The event of a wait identifies a record only on the same device.
        assert list_times(rank) == {"stream or rank dependency": 500}
    else:
        assert rank.waits == expected.waits != ()
        assert list_times(rank) == list_times(expected)
        awaited = expected.awaited_communication_ns, expected.awaited_copy_ns
        assert (rank.awaited_communication_ns, rank.awaited_copy_ns) == awaited
    check_sums(rank)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    ("name", "wait", "expected"),
    [
        ("cudaStreamSynchronize", Wait(91, 7, correlation=4), ("first", "stream 7")),
        ("cudaStreamSynchronize", Wait(91, 20, correlation=4), ("second", "stream 20")),
        ("cudaDeviceSynchronize", Wait(91, correlation=4), ("second", "stream 20")),
        ("cudaEventSynchronize", Wait(91, event=42, correlation=4), ("second", "stream 20")),
        ("cudaEventSynchronize", Wait(91, event=43, correlation=4), None),
    ],
)
def test_the_cause_of_a_host_wait_is_named(
    tmp_path: Path, name: str, wait: Wait, expected: tuple[str, str] | None, *, traced: bool
) -> None:
    """The host waits from 90 to 400 us. The device is idle from 300 us on."""
    kernels = [k(0, 100, 1, "first"), k(100, 300, 2, "second", stream=20), k(500, 600, 5)]
    calls = [c(-10, -5, 1), c(10, 15, 2), RECORDING, c(90, 400, 4, name=name), c(480, 485, 5)]
    file = add_synchronization(write_profile(tmp_path, kernels, calls), [Rec(20, 42, 3)], [wait])

    rank = get_only_rank(bubbleviz.idle(*write_traces(file, tmp_path) if traced else [file]))

    assert list_times(rank) == {"waiting": 100, "no host trace": 80, "launch": 20}
    check_sums(rank)
    waits = [(w.waiting, w.work, w.stream, w.waits, w.idle_ns, w.blocked_ns) for w in rank.waits]
    assert waits == ([(f"host, {name}", *expected, 1, 100 * US, 100 * US)] if expected else [])


def test_waits_for_a_kernel_whose_name_has_two_ids_are_one_row(tmp_path: Path) -> None:
    starts = (0, 300, 600)
    kernels = [k(at, at + 200, 1 + at, "gemm") for at in starts]
    calls = [c(at - 20, at - 15, 1 + at) for at in starts]
    calls += [c(at, at + 250, 2 + at, name="cudaDeviceSynchronize") for at in starts]
    waits = [Wait(at, correlation=2 + at) for at in starts]
    file = add_synchronization(write_profile(tmp_path, kernels, calls), [], waits)
    expected = bubbleviz.idle(file).ranks[0].waits
    edit_database(
        file,
        "INSERT INTO StringIds SELECT 1000, value FROM StringIds WHERE value = 'gemm'",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = 1000 WHERE start > 0",
    )

    assert [wait.waits for wait in expected] == [2]
    assert bubbleviz.idle(file).ranks[0].waits == expected


def test_the_outputs_say_who_waited_for_what(tmp_path: Path, cli: CommandLine) -> None:
    file = str(add_synchronization(two_devices(tmp_path), [RECORDED], [WAITED]))

    rank, other = cli.json("idle", file, "--json", "-")["ranks"]
    screen = cli.printed("idle", file)
    picture = cli.printed("idle", file, "-v", "--svg", "-")

    assert other["waits"] == []
    assert rank["waits"] == [
        {
            "waiting": "stream 7",
            "stream": "GPU 1 stream 20",
            "work": NCCL,
            "kind": "communication",
            "waits": 1,
            "blocked_ns": 400 * US,
            "without_compute_ns": 400 * US,
            "idle_ns": 400 * US,
        }
    ]
    assert (rank["awaited_communication_ns"], rank["awaited_copy_ns"]) == (0, 0)
    assert "What they waited for (proved waits only)" in screen
    assert "proved: waits account for 80.00 % of the idle time" in screen
    assert "blocked by communication  57.1" in picture
    assert ACTIVITIES["blocked by communication"] in picture
    report = bubbleviz.idle(file)
    assert isinstance(report, bubbleviz.IdleReport)
    assert "GPU 1 stream 20" in report._repr_html_()


@pytest.mark.parametrize("value", [None, -(1 << 62), -1, 0, 1 << 31, 1 << 40, (1 << 63) - 1])
@pytest.mark.parametrize("table", [WAITS, RECORDS])
def test_odd_values_never_prove_a_wrong_wait(tmp_path: Path, table: str, value: int | None) -> None:
    file = add_synchronization(two_devices(tmp_path), [RECORDED], [WAITED, WAITED])
    # Older versions create the tables without constraints on column values.
    edit_database(file, *rebuild_table(table), f"INSERT INTO {table} SELECT * FROM {table} LIMIT 1")
    odd = "NULL" if value is None else value
    for row, column in enumerate(read_columns(file)[table], 2):
        edit_database(
            file,
            f"INSERT INTO {table} SELECT * FROM {table} WHERE _rowid_ = 1",
            f'UPDATE {table} SET "{column}" = {odd} WHERE _rowid_ = {row}',
        )

    for rank in bubbleviz.idle(file).ranks:
        check_sums(rank)
        assert all(wait.blocked_ns <= 450 * US for wait in rank.waits)
