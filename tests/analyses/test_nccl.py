"""NCCL communication: missing records, waiting and transfer time, bandwidth, windows."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from collections import defaultdict
from pathlib import Path
from shutil import copy

import pytest

from bubbleviz.analyses.nccl import measure_communication
from bubbleviz.analyses.nccl.analysis import Communication
from bubbleviz.analyses.nccl.communications import Split
from bubbleviz.analyses.nccl.inputs import find_inputs
from bubbleviz.analyses.nccl.outputs import COLUMNS, as_json
from bubbleviz.analyses.nccl.text import sections, summary
from bubbleviz.analyses.nccl.totals import find_totals, sum_operations
from bubbleviz.errors import InputError, MismatchError, NothingToAnalyzeError
from bubbleviz.model.window import parse_window
from bubbleviz.render.document import Table
from bubbleviz.sources.nccl.events import UNKNOWN
from tests.support.command_line import CommandLine
from tests.support.nccl_event_files import Op, Plugin, Step, format_line
from tests.support.nccl_runs import ALLREDUCE, EXACT, SENDRECV, list_columns, write_file, write_ring
from tests.support.needs import get_real_file
from tests.support.notes import count_limitations, list_limitation_subjects
from tests.support.nsys_exports import C, K, R, write_profile
from tests.support.xla_profiles import make_gpu as gpu_planes
from tests.support.xla_profiles import write_planes

IDLE = format_line("Idle", "PROXY", "b", 0, 1, 5_000) + format_line(
    "Idle", "PROXY", "e", 0, 1, 6_000
)


def test_inputs_without_communication_or_with_duplicates_are_refused(tmp_path: Path) -> None:
    path = write_profile(tmp_path, [K(10, 20, 1)], [C(1, 2, 1)], [R(0, 5, "F0")])
    ranks = [write_file(tmp_path, name, IDLE) for name in ("a.txt", "b.txt")]
    with pytest.raises(InputError, match="no files were given"):
        measure_communication([])
    for duplicate in (path, ranks[0]):
        with pytest.raises(NothingToAnalyzeError, match="no NCCL operation"):
            measure_communication(duplicate)
    with pytest.raises(MismatchError, match="are the same profile"):
        find_inputs([str(path), str(copy(path, tmp_path / "copy.sqlite"))])
    with pytest.raises(MismatchError, match="are the same file"):
        find_inputs([ranks[0], ranks[0]])
    # Event files may have equal contents.
    assert [file.path for file in find_inputs(ranks)] == ranks


def test_kernels_of_xla_have_no_ranges_to_record(tmp_path: Path) -> None:
    communication = measure_communication(str(write_planes(tmp_path, gpu_planes())))

    (limitation,) = (
        note for note in communication.limitations if "outside of NCCL ranges" in note.what
    )
    assert limitation.reason.endswith("add NCCL event files, or record a profile with nsys")
    assert {"operations whose members are unknown"} < list_limitation_subjects(communication)
    assert "operations whose waiting is unknown" not in list_limitation_subjects(communication)


def test_a_directory_stands_for_its_contents(tmp_path: Path) -> None:
    """An XLA trace next to its planes is read once, and so is a report next to its export."""
    for name in ("host0.xplane.pb", "host0.trace.json.gz", "a.sqlite", "a.nsys-rep", "b.nsys-rep"):
        write_file(tmp_path, name, f"the content of {name} is not read")
    # Event files are recognized under any name, and are not exports of a report.
    events = write_ring(tmp_path, 2, 2)
    Path(events[0]).rename(tmp_path / "b.pt.trace.json")
    Path(events[1]).rename(tmp_path / "host0.trace.json")
    write_file(tmp_path, "notes.txt", "not a profile")

    inputs = find_inputs([str(tmp_path)])
    assert [
        (Path(profile_file.path).name, events != "") for profile_file, events in inputs.items()
    ] == [
        ("a.sqlite", False),
        ("b.nsys-rep", False),
        ("b.pt.trace.json", True),
        ("host0.trace.json", True),
        ("host0.xplane.pb", False),
    ]
    logs = tmp_path / "logs"
    (logs / "plugins" / "profile" / "run").mkdir(parents=True)
    with pytest.raises(InputError, match="neither an NCCL event file"):
        find_inputs([str(logs)])
    planes = write_file(logs / "plugins" / "profile" / "run", "host1.xplane.pb", "planes")
    assert [profile_file.path for profile_file in find_inputs([str(logs)])] == [planes]


# Tests of waiting and transfer time, bytes and bandwidth.


def test_ranks_that_begin_early_wait_for_ranks_that_begin_late(tmp_path: Path) -> None:
    communication = measure_communication(write_ring(tmp_path, 12, 2, delay_ns=40_000))

    assert set(
        list_columns(communication, "rank", "duration_ns", "waiting_ns", "moving_ns", "split")
    ) == {
        (0, 500_000, 40_000, 460_000, Split.MEMBERS),
        (1, 460_000, 0, 460_000, Split.MEMBERS),
    }
    assert {clock.aligned_by.value for clock in communication.clocks} == {"reference", "operations"}
    assert communication.clocks[1].matched == 12
    # The last channel ends 100 ns before the first.
    assert communication.clocks[1].largest_ns == 0
    (total,) = find_totals(communication)
    assert (total.ranks, total.operations, total.bytes) == (2, 24, 24 * (4 << 20))
    # The factor 2 (n - 1) / n is 1 for two ranks.
    assert total.bus_gbps == total.algorithm_gbps == pytest.approx((4 << 20) / 480_000)
    assert total.moving_gbps == pytest.approx((4 << 20) / 460_000)
    # A missing rank of the communicator is reported.
    communication = measure_communication(write_ring(tmp_path, 6, 3)[::2])
    assert communication.ranks == (3,)
    assert "operations with missing members" in list_limitation_subjects(communication)


# Tests of windows.


def test_sends_pair_with_the_receives_of_their_peers(tmp_path: Path) -> None:
    """Rank 0 sends to rank 1 twice. The k-th send matches the k-th receive."""
    sender, receiver = Plugin(pid=1, lag=EXACT), Plugin(pid=1, gpu=3 * 10**17, lag=EXACT)
    for number, delay_ns in enumerate((5_000, 9_000)):
        start = 1_000_000 * (number + 1)
        sender.add(Op("Send", start, start + 90_000, rank=0, peer=1))
        receiver.add(Op("Recv", start + delay_ns, start + 90_000, rank=1, peer=0))
        receiver.add(Op("Recv", start + 200_000, start + 300_000, rank=1, peer=7))
    paths = [
        write_file(tmp_path, "t-1.txt", sender.text()),
        write_file(tmp_path, "t-2.txt", receiver.text()),
    ]
    communication = measure_communication(paths)

    # The threads of one process share its clock, so no alignment is needed.
    assert [clock.aligned_by.value for clock in communication.clocks] == ["reference"]
    assert list_columns(communication, "rank", "peer", "waiting_ns") == [
        (0, 1, 5_000),
        (0, 1, 9_000),
        (1, 0, 0),
        (1, 7, -1),
        (1, 0, 0),
        (1, 7, -1),
    ]


def test_a_single_rank_is_measured_by_its_proxy(tmp_path: Path) -> None:
    file = Plugin(pid=1, lag=EXACT)
    step = Step(("RecvWait", "RecvFlushWait", "RecvGpuWait"), (10_000, 40_000, 45_000, 60_000))
    file.add(Op("AllReduce", 10_000, 70_000, steps=(step,)))
    communication = measure_communication(write_file(tmp_path, "t-1.txt", file.text()))

    assert list_columns(communication, "waiting_ns", "moving_ns", "split") == [
        (30_000, 30_000, Split.PROXY)
    ]
    # The file of a single rank does not show the number of ranks.
    assert communication.ranks == (None,)
    assert find_totals(communication)[0].bus_gbps is None


def test_each_gpu_of_a_process_has_a_separate_clock(tmp_path: Path) -> None:
    """The clocks of two GPUs differ by seconds, as in a real trace; the host recorded both."""
    file = Plugin(pid=1, gpu=10**18, lag=EXACT)
    for number in range(3):
        for rank, gpu in enumerate((10**18, 10**18 + 4_000_000_000)):
            file.gpu = gpu
            start = 1_000_000 * (number + 1) + 20_000 * rank
            file.add(
                Op("AllReduce", start, 1_000_000 * (number + 1) + 90_000, rank, sequence=number)
            )
    communication = measure_communication(write_file(tmp_path, "t-1.txt", file.text()))

    assert set(list_columns(communication, "rank", "waiting_ns", "duration_ns")) == {
        (0, 20_000, 90_000),
        (1, 0, 70_000),
    }


#: Columns that contain sums over the operations.
SUMS = ("count", "MB", "ms", "waiting", "moving")


def rows_of(communication: Communication) -> list[dict[str, str]]:
    """Return the rows of the printed table. The last row is the total."""
    table = next(
        section
        for section in sections(communication)
        if isinstance(section, Table) and section.columns[0] == "communicator"
    )
    return [{name: row.get(name, "") for name in table.columns} for row in table.rows if row]


def number(cell: str) -> float:
    return 0.0 if cell == "-" else float(cell.split(" ", maxsplit=1)[0].replace(",", ""))


def covered(communication: Communication) -> int:
    """Return the total busy time of all GPUs in ns, counted instant by instant."""
    instants: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    covered_ns = 0
    for gpu, clock, start, length in list_columns(
        communication, "gpu", "clock", "start_ns", "duration_ns"
    ):
        if length >= 0 and start == UNKNOWN:
            covered_ns += length
        elif length >= 0:
            instants[gpu, clock].update(range(start, start + length))
    return covered_ns + sum(len(of_gpu) for of_gpu in instants.values())


def check(communication: Communication) -> None:
    """Check the totals of a report against its rows and against its operations."""
    rows = rows_of(communication)
    document = json.loads(as_json(communication))
    sums = sum_operations(communication.operations)
    operation_rows = rows[:-1] if len(find_totals(communication)) > 1 else rows
    for name in SUMS:
        total = sum(number(row[name]) for row in operation_rows)
        assert total == pytest.approx(number(rows[-1][name]), abs=0.0006 * len(rows)), name
    assert rows[-1]["count"] == f"{len(communication.operations):,}"
    assert f"{len(communication.operations):,} operation" in summary(communication)
    assert sum(communication.counts) == len(communication.operations)
    for key in ("operations", "bytes", "duration_ns", "waiting_ns", "moving_ns"):
        assert (document[key] or 0) == sum(total[key] or 0 for total in document["totals"])
    for key in ("sized", "timed", "waiting", "moving"):
        assert document[f"{key}_operations"] == sum(
            t[f"{key}_operations"] for t in document["totals"]
        )
    assert (document["busy_ns"] or 0) == (sums.busy_ns or 0) == covered(communication)
    assert (document["busy_ns"] or 0) <= sum(total["busy_ns"] or 0 for total in document["totals"])
    assert len(document["communicators"]) == len(
        {t["communicator"] for t in document["totals"]} - {None}
    )


def test_operations_that_share_kernels_are_summed_and_counted_once(tmp_path: Path) -> None:
    """Two sends and a receive share a kernel of 1 ms, twice. A separate all-reduce takes 3 ms."""
    ranges, kernels, calls = [], [], []
    for group in range(2):
        start_ns = 10_000_000 * group
        names = ("ncclGroupStart", "ncclSend", "ncclSend", "ncclRecv", "ncclGroupEnd")
        ranges += [
            R(start_ns + 10 * n, start_ns + 10 * n + 5, name) for n, name in enumerate(names)
        ]
        calls.append(C(start_ns + 41, start_ns + 44, group))
        kernels.append(K(start_ns + 1000, start_ns + 1_001_000, group, SENDRECV))
    ranges.append(R(30_000_000, 30_000_010, "ncclAllReduce"))
    calls.append(C(30_000_001, 30_000_002, 9))
    kernels.append(K(31_000_000, 34_000_000, 9, ALLREDUCE))
    communication = measure_communication(write_profile(tmp_path, kernels, calls, ranges))
    send, receive, reduce, total = (
        next(
            row for row in rows_of(communication) if name in {row["operation"], row["communicator"]}
        )
        for name in ("Send", "Recv", "AllReduce", "all")
    )

    assert [(row["count"], row["ms"], row["busy"]) for row in (send, receive, reduce, total)] == [
        ("4", "4.000", "2.000"),
        ("2", "2.000", "2.000"),
        ("1", "3.000", "3.000"),
        ("7", "9.000", "5.000"),
    ]
    assert (
        "7 operations in unknown communicators, size unknown; 9.000 ms in total, "
        "keeping GPUs busy for 5.000 ms"
    ) in summary(communication)
    document = json.loads(as_json(communication))
    assert (document["duration_ns"], document["busy_ns"]) == (9_000_000, 5_000_000)
    assert document["communicators"] == []


def test_a_window_contains_only_its_own_operations(tmp_path: Path) -> None:
    """A communicator that is used after the window is left out.

    File counts cover only the window.
    """
    file = Plugin(pid=1, begin=0, lag=EXACT)
    for sequence in range(6):
        start = 1_000_000 * (sequence + 1)
        communicator = 7 if sequence < 3 else 8
        file.add(
            Op("AllReduce", start, start + 1_000, sequence=sequence, communicator=communicator)
        )
    path = write_file(tmp_path, "t-1.txt", file.text())
    communication = measure_communication(path, window=parse_window("time:0s-3.5ms"))

    check(communication)
    assert "time:0s-3.5ms only: 3 operations in 1 communicator" in summary(communication)
    assert "3 operations of" in summary(communication).splitlines()[0]


@pytest.mark.parametrize("seed", range(12))
def test_totals_of_random_runs_follow_from_their_operations(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    kernels, calls, ranges = [], [], []
    for group in range(rng.randint(1, 8)):
        start_ns, pid = 2_000 * group, rng.randint(1, 2)
        functions = [rng.choice(("ncclSend", "ncclRecv")) for _ in range(rng.randint(1, 3))]
        names = ("ncclGroupStart", *functions, "ncclGroupEnd")
        ranges += [
            R(start_ns + 10 * n, start_ns + 10 * n + 5, name, pid=pid)
            for n, name in enumerate(names)
        ]
        last = start_ns + 10 * (len(names) - 1)
        for piece in range(rng.randint(1, 2)):
            start = start_ns + 100 + rng.randint(0, 3_000)
            calls.append(C(last + 1, last + 2, 10 * group + piece, pid=pid))
            stream = 7 + rng.randint(0, 1)
            length = rng.choice((0, 1, 500, 2_500))
            kernels.append(
                K(start, start + length, 10 * group + piece, SENDRECV, pid=pid, stream=stream)
            )
    # Kernels without timestamps are ignored.
    kernels.append(K(0, 0, 999, ALLREDUCE))
    communication = measure_communication(
        write_profile(tmp_path, kernels, [*calls, C(1, 2, 999)], ranges)
    )

    check(communication)
    assert count_limitations(communication)["kernels without timestamps"] == 1


def test_every_output_has_the_same_numbers(tmp_path: Path, cli: CommandLine) -> None:
    paths = write_ring(tmp_path)
    code, out, err = cli("nccl", *paths, "-v")
    assert code == 0
    for words in ("0xfeedfacecafebeef", "RING/SIMPLE", "ends of shared operations"):
        assert words in out
    assert "bubbleviz: warning: clocks aligned by the ends of operations: " in err

    rows = list(csv.DictReader(io.StringIO(cli("nccl", *paths, "--csv", "-")[1])))
    assert (len(rows), set(COLUMNS) - set(rows[0])) == (24, set())
    expected = {"communicator": "0xfeedfacecafebeef", "waiting_ns": "40000", "moving_ns": "460000"}
    expected |= {"split": "members", "timing": "gpu", "peer": "", "clock": ""}
    assert {name: rows[0][name] for name in expected} == expected

    first, second = (cli("nccl", *paths, "--json", "-")[1] for _ in range(2))
    document = json.loads(first)

    assert first == second
    assert document["schema"] == "bubbleviz.nccl/1"
    assert document["operations"] == 24
    assert document["totals"][0]["waiting_ns"] == 12 * 40_000
    assert document["communicators"] == [{"id": "0xfeedfacecafebeef", "ranks": 2}]
    assert document["clocks"][1]["aligned_by"] == "operations"


@pytest.mark.parametrize("damage", ["none", "cut", "lines", "gzip"])
def test_a_damaged_event_file_is_marked(damage: str, tmp_path: Path, cli: CommandLine) -> None:
    """A killed job truncates only its last event, which does not change the sums."""
    paths = [Path(path) for path in write_ring(tmp_path, count=40)]
    text = paths[0].read_text()
    if damage == "cut":
        paths[0].write_text(text[: int(0.9 * len(text))])
    elif damage == "lines":
        head, *events = text.split('"ph": ')
        assert len(events) > 40
        joints = ['"ph" ' if i % 20 == 0 else '"ph": ' for i in range(len(events))]
        pieces = [joint + event for joint, event in zip(joints, events, strict=True)]
        paths[0].write_text(head + "".join(pieces))
    elif damage == "gzip":
        packed = gzip.compress(text.encode())
        paths[0].write_bytes(packed[: int(0.9 * len(packed))])
    is_marked = damage in {"lines", "gzip"}
    mark = "incomplete: events are missing because a file is cut short or damaged"

    file = tmp_path / "out.json"
    printed = " ".join(cli("nccl", *map(str, paths), "-o", str(file))[1].split())
    restrictions = [{"code": "file-damaged", "text": mark}] if is_marked else []
    assert json.loads(file.read_text())["restrictions"] == restrictions
    assert printed.count(mark) == (1 if is_marked else 0)


def test_hostile_names_are_inert(tmp_path: Path, cli: CommandLine) -> None:
    for number, name in enumerate(("=cmd|x", "<script>", "a\\u001b[31m\\nb", "x" * 10_000)):
        arguments = '"Count": 5, "Datatype": "@a", "Algorithm": "\\r\\u0000", "CommHash": 1'
        text = format_line(name, "COLL", "b", 0, 1, 5_000, arguments) + format_line(
            name, "COLL", "e", 0, 1, 6_000
        )
        path = write_file(tmp_path, f"{number}.txt", text)
        for option in ((), ("--csv", "-"), ("--json", "-")):
            code, out, _ = cli("nccl", path, *option)
            assert code == 0
            assert "\x1b" not in out
            assert "\0" not in out
        assert all(
            not cell.startswith(("=", "@", "+"))
            for row in csv.reader(io.StringIO(cli("nccl", path, "--csv", "-")[1]))
            for cell in row
        )


def test_files_of_different_runs_and_clocks_are_reported(tmp_path: Path, cli: CommandLine) -> None:
    paths = []
    for communicator, name in enumerate(("Broadcast", "AllReduce"), 1):
        file = Plugin(pid=communicator)
        file.add(Op(name, 60_000, 90_000, communicator=communicator))
        paths.append(write_file(tmp_path, f"{communicator}.txt", file.text()))
    code, out, err = cli("nccl", *paths, "--csv", "-")
    assert code == 0
    assert "clocks that could not be aligned" in err
    assert [row["clock"] for row in csv.DictReader(io.StringIO(out))] == ["", "2.txt process 2"]

    kernels = [K(0, 10_000, 1, ALLREDUCE), K(20_000, 30_000, 2, ALLREDUCE)]
    code, _, err = cli("nccl", paths[0], write_profile(tmp_path, kernels))
    assert code == 0
    assert "event files that may belong to another run" in err


# Tests with real files.


@pytest.mark.real_files
def test_ranks_of_a_real_ring_waited_for_the_last_rank() -> None:
    communication = measure_communication(get_real_file("nccl/pha-z_sendrecv_v5.jsonlines"))

    # Rank 0 began last, 13.3 ms after rank 3.
    # The end of the kernel was not recorded.
    assert list_columns(communication, "rank", "peer", "bytes", "waiting_ns") == [
        (0, 1, 1 << 30, 0),
        (0, 3, 1 << 30, 0),
        (1, 2, 1 << 30, 0),
        (1, 0, 1 << 30, 4_285_741),
        (2, 3, 1 << 30, 0),
        (2, 1, 1 << 30, 5_006_468),
        (3, 0, 1 << 30, 13_290_702),
        (3, 2, 1 << 30, 3_998_493),
    ]
    assert set(list_columns(communication, "end_ns", "moving_ns")) == {(UNKNOWN, -1)}
