"""Files of NCCL Inspector: versions, durations without times, drops, and damaged files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from bubbleviz.analyses.nccl import hangs, measure_communication
from bubbleviz.analyses.nccl.analysis import Communication
from bubbleviz.analyses.nccl.communications import Split
from bubbleviz.analyses.nccl.outputs import as_json
from bubbleviz.analyses.nccl.summary import LateRank
from bubbleviz.analyses.nccl.totals import find_totals, sum_operations
from bubbleviz.errors import ProfileError
from bubbleviz.sources.nccl.events import UNKNOWN
from bubbleviz.sources.nccl.formats import read_events
from tests.support.command_line import CommandLine
from tests.support.inspector_files import BEGIN_US, Call, Inspector
from tests.support.nccl_runs import list_columns
from tests.support.notes import (
    count_limitations,
    list_limitation_subjects,
    list_restriction_codes,
)

MS = 1_000_000
#: Versions of the format whose objects have different fields.
VERSIONS = ("v4.0", "v4.1", "v4.2", "v4.3")


def write_run(
    folder: Path, delays_ms: tuple[int, ...], name: str = "AllReduce", **fields: object
) -> str:
    """Write ten collectives of one communicator, one file per rank, two ranks per host.

    Rank r starts each collective ``delays_ms[r]`` late. All ranks end together after 5 ms.
    """
    for rank, delay_ms in enumerate(delays_ms):
        host = f"node{rank // 2}"
        file = Inspector(host, 100 + rank, rank, len(delays_ms), **fields)  # type: ignore[arg-type]
        calls = [
            Call(name, n, (10 * n + delay_ms) * MS, (10 * n + 5) * MS, size=1000) for n in range(10)
        ]
        file.add_dump(calls).write(folder)
    return str(folder)


def list_waiting(communication: Communication) -> dict[int, int]:
    """Return the total waiting time of each rank in ms, or -1 if it is unknown."""
    waiting: dict[int, int] = {}
    for rank, waiting_ns in list_columns(communication, "rank", "waiting_ns"):
        waiting[rank] = waiting.get(rank, 0) + (waiting_ns // MS if waiting_ns >= 0 else -1)
    return waiting


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("is_verbose", [False, True])
def test_all_versions_give_the_same_durations_and_waits(
    version: str, is_verbose: bool, tmp_path: Path
) -> None:
    folder = write_run(tmp_path, (0, 1, 3, 0), version=version, is_verbose=is_verbose)
    communication = measure_communication(folder)

    assert list_waiting(communication) == {0: 30, 1: 20, 2: 0, 3: 30}
    assert {split for (split,) in list_columns(communication, "split")} == {Split.DURATION}
    (total,) = find_totals(communication)
    assert (total.ranks, total.operations, total.bytes) == (4, 40, 40_000)
    assert (total.duration_ns, total.waiting_ns) == (160 * MS, 80 * MS)
    assert total.algorithm == ("RING" if version >= "v4.2" else "")
    # The bandwidth is that of nccl-tests: 2 (n - 1) / n times the algorithm bandwidth.
    assert total.bus_gbps == pytest.approx(1.5 * 40_000 / (160 * MS))
    assert hangs.list_late_ranks(communication.operations) == [LateRank(2, 10, 80 * MS)]
    assert communication.restrictions == ()
    start_ns = {start for (start,) in list_columns(communication, "start_ns")}
    assert (UNKNOWN in start_ns) != is_verbose


def test_clocks_of_hosts_are_aligned_by_the_ends_of_operations(tmp_path: Path) -> None:
    """Hosts record UTC. In the same process group, operations end together."""
    for rank in range(3):
        clock_ns = 7 * MS if rank == 2 else 0
        file = Inspector(f"node{rank // 2}", 100 + rank, rank, 3, clock_ns=clock_ns)
        file.is_verbose = True
        calls = [Call("AllReduce", n, 10 * n * MS, (10 * n + 5) * MS) for n in range(4)]
        file.add_dump(calls).write(tmp_path)
    communication = measure_communication(str(tmp_path))

    assert [clock.aligned_by.value for clock in communication.clocks] == [
        "reference",
        "reference",
        "operations",
    ]
    starts = list_columns(communication, "sequence", "start_ns")
    assert {(start_ns - 1000 * BEGIN_US) // MS for n, start_ns in starts if n == 1} == {10}


def test_durations_do_not_show_who_was_late_at_a_broadcast(tmp_path: Path) -> None:
    """The root may finish a broadcast long before the others."""
    folder = write_run(tmp_path, (4, 0), name="Broadcast")
    communication = measure_communication(folder)
    assert list_waiting(communication) == {0: -10, 1: -10}
    subjects = list_limitation_subjects(communication)
    assert "operations with a root whose waiting is unknown" in subjects
    assert "operations whose waiting is unknown" not in subjects
    # Times on a common clock show it.
    folder = write_run(tmp_path / "verbose", (4, 0), name="Broadcast", is_verbose=True)
    assert list_waiting(measure_communication(folder)) == {0: 0, 1: 40}


def write_pair(folder: Path, lost: tuple[int, ...] = ()) -> Communication:
    """Write ten sends from rank 0 to rank 1, of which the receiver lost some."""
    send = [Call("Send", n + 1, 10 * n * MS, (10 * n + 2) * MS, 1) for n in range(10)]
    receive = [Call("Recv", n + 1, (10 * n - n) * MS, (10 * n + 2) * MS, 0) for n in range(10)]
    # Operations are written in the order in which they were completed.
    Inspector(rank=0).add_dump(send[5:]).add_dump(send[:5]).write(folder)
    receiver = Inspector(pid=101, rank=1)
    kept = [call for call in receive if call.sequence not in lost]
    receiver.add_dump(kept, dropped_p2p=len(lost)).write(folder)
    return measure_communication(str(folder))


def test_sends_are_paired_by_their_numbers_unless_some_are_lost(tmp_path: Path) -> None:
    communication = write_pair(tmp_path)
    assert list_waiting(communication) == {0: 0, 1: 45}
    communication = write_pair(tmp_path, lost=(3, 4))
    assert list_waiting(communication) == {0: -10, 1: -8}
    assert count_limitations(communication)["sends and receives that cannot be paired"] == 18
    assert count_limitations(communication)["operations that NCCL Inspector dropped"] == 2
    assert list_restriction_codes(communication) == ["operations-dropped"]


@pytest.mark.parametrize(("version", "is_marked"), [("v4.0", True), ("v4.2", False)])
def test_missing_numbers_of_collectives_are_counted(
    version: str, is_marked: bool, tmp_path: Path
) -> None:
    """Later versions count drops, and leave out small collectives on purpose."""
    calls = [Call("AllReduce", n, 0, MS) for n in (5, 6, 9)]
    calls += [Call("AllGather", n, 0, MS) for n in (1, 2)]
    Inspector(version=version).add_dump(calls).write(tmp_path)
    communication = measure_communication(str(tmp_path))
    subject = (
        "collectives that NCCL Inspector did not write"
        if is_marked
        else "collectives too small for NCCL Inspector"
    )
    assert count_limitations(communication)[subject] == 2
    assert bool(communication.restrictions) == is_marked


def test_ranks_without_a_common_communicator_are_named_by_their_files(
    tmp_path: Path, cli: CommandLine
) -> None:
    for pid, communicator in ((100, 1), (101, 1), (102, 2), (103, 2)):
        file = Inspector(pid=pid, rank=pid % 2, communicator=communicator, name="dp/0")
        file.add_dump([Call("AllReduce", 0, (pid - 100) * MS, 5 * MS)]).write(tmp_path)
    communication = measure_communication(str(tmp_path))
    late = hangs.list_late_ranks(communication.operations, communication.paths_of_processes)
    assert [(entry.rank, Path(entry.file or "").name, entry.awaited_ns) for entry in late] == [
        (None, "node0-pid101.log", MS),
        (None, "node0-pid103.log", MS),
    ]
    assert '"rank": null' in as_json(communication)
    status, output, _ = cli(str(tmp_path))
    assert status == 0
    assert "dp/0 0x1" in output
    assert "node0-pid103.log" in output


def test_ranks_without_a_file_are_named(tmp_path: Path) -> None:
    folder = Path(write_run(tmp_path, (0, 1, 0, 2, 0)))
    for pid in (101, 103):
        next(folder.glob(f"*-pid{pid}.log")).unlink()
    notes = measure_communication(str(folder)).limitations
    (reason,) = (note.reason for note in notes if note.what == "operations with missing members")
    assert reason.startswith("no operation of ranks 1,3 of 5 was found in communicator 0x007f8c")


def test_damaged_files_are_read_as_far_as_possible(tmp_path: Path) -> None:
    calls = [Call("AllReduce", n, 0, 2 * MS) for n in range(4)]
    path = Path(Inspector().add_dump(calls).write(tmp_path))
    lines = path.read_bytes().splitlines(keepends=True)

    path.write_bytes(b"".join(lines)[:-30])
    file = read_events(str(path))
    assert (len(file.events), file.unreadable, file.is_damaged) == (3, 1, False)
    # Text of the job between the lines, and a last dump that is incomplete.
    path.write_bytes(b"".join([lines[0], b"step 1\n", *lines[1:3]]))
    file = read_events(str(path))
    assert (len(file.events), file.unreadable, file.n_dropped) == (2, 1, 2)
    # Without the start of a dump, the communicator is unknown.
    path.write_bytes(b"".join(lines[1:]))
    file = read_events(str(path))
    assert (len(file.events), file.unreadable, file.is_damaged) == (0, 4, True)
    packed = tmp_path / "node0-pid100.log.gz"
    packed.write_bytes(gzip.compress(b"".join(lines))[:-20])
    assert read_events(str(packed)).is_damaged


def test_objects_that_a_tool_indented_are_read(tmp_path: Path) -> None:
    """``jq`` writes one key per line."""
    calls = [Call("AllReduce", n, 0, 2 * MS) for n in range(4)]
    path = Path(Inspector(version="v4.0", is_verbose=True).add_dump(calls).write(tmp_path))
    objects = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    texts = [json.dumps(entry, indent=2) + "\n" for entry in objects]
    path.write_text("".join(texts), encoding="utf-8")
    file = read_events(str(path))
    assert (len(file.events), file.unreadable) == (4, 0)
    # The second object and the last object are cut off.
    path.write_text(texts[0] + texts[1][:200] + "\n" + texts[2] + texts[3][:-30], encoding="utf-8")
    file = read_events(str(path))
    assert (len(file.events), file.unreadable) == (2, 2)


def test_implausible_numbers_are_unknown(tmp_path: Path) -> None:
    """An unknown data type has size -1. Durations of the host are listed."""
    calls = [
        Call("All2All", 0, 0, MS, size=(1 << 64) - 4),
        Call("Invalid", 1, 0, MS, source="kernel_cpu"),
    ]
    path = Inspector().add_dump(calls).write(tmp_path)
    file = read_events(path)
    assert file.events.payload.tolist() == [-1, 1 << 22]
    communication = measure_communication(path)
    assert {total.name for total in find_totals(communication)} == {"AlltoAll", ""}
    assert sum_operations(communication.operations).sized_operations == 1
    assert count_limitations(communication)["durations measured on the host"] == 1


def test_metrics_for_prometheus_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "nccl_inspector_metrics.prom"
    path.write_text('nccl_bus_bandwidth_gbs{version="v5.1",comm_name="dp",n_nodes="1"} 678.2\n')
    with pytest.raises(ProfileError, match="record single operations with NCCL_INSPECTOR_PROM"):
        measure_communication(str(path))
