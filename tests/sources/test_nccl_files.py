"""NCCL event files: planted files with known truth, damaged files, and two real files."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.errors import InputError, ProfileError
from bubbleviz.sources.nccl.event_objects import BLOCK, EventObject, EventObjects
from bubbleviz.sources.nccl.events import STATES, UNKNOWN, EventFile, OperationKind
from bubbleviz.sources.nccl.formats import detect_format, read_events
from bubbleviz.sources.readers import find_reader
from tests.support.nccl_event_files import Op, Plugin, Step, format_line, make_proxy_file
from tests.support.needs import get_real_file

HASH = 0xFEEDFACECAFEBEEF
SEND = Step(("SendGpuWait", "SendPeerWait", "SendWait"), (60_000, 61_000, 64_000, 69_000))
RECEIVE = Step(("RecvWait", "RecvFlushWait", "RecvGpuWait"), (60_500, 66_000, 66_500, 70_000))


def parse_events(text: bytes) -> tuple[list[EventObject], int]:
    """Return the events in some bytes, and the number of unreadable objects."""
    objects = EventObjects(text[at : at + BLOCK] for at in range(0, len(text), BLOCK))
    return [*objects], objects.unreadable


def write_events_file(folder: Path, text: str | bytes, name: str = "trace-host-7.txt") -> str:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def read(folder: Path, text: str | bytes) -> EventFile:
    return read_events(write_events_file(folder, text))


def plugin(*ops: Op, valid: bool = True, gpu_clock: bool = True) -> Plugin:
    file = Plugin(begin=10_000, valid=valid, gpu_clock=gpu_clock)
    for op in ops:
        file.add(op)
    return file


TWO = (
    Op("AllReduce", 60_000, 90_000, steps=(SEND, RECEIVE)),
    Op("Send", 100_000, 130_000, rank=0, peer=3, count=10),
)


# Tests of empty files.


@pytest.mark.parametrize("text", ["", "[\n{}]\n", "[", "{}", "[]", "\0" * 100, "{" * 100])
def test_a_file_without_events_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="not an NCCL event file"):
        read(tmp_path, text)


# Tests of fields.


@pytest.mark.parametrize("valid", [True, False])
def test_all_fields_of_an_operation_are_read(tmp_path: Path, valid: bool) -> None:
    file = read(tmp_path, plugin(*TWO, valid=valid).text())
    events = file.events

    assert file.format == "profiler plugin"
    assert (file.unreadable, file.n_without_end, file.n_without_begin, file.n_duplicates) == (
        0,
        0,
        0,
        0,
    )
    assert events.communicators == (HASH,)
    assert [events.names[n] for n in events.name.tolist()] == ["AllReduce", "Send"]
    assert events.kind.tolist() == [OperationKind.COLLECTIVE, OperationKind.POINT_TO_POINT]
    assert events.peer.tolist() == [-1, 3]
    # An all-reduce has no meaningful root.
    assert events.root.tolist() == [-1, -1]
    assert events.sequence.tolist() == [0, -1]
    assert events.count.tolist() == [1 << 20, 10]
    assert events.names[events.algorithm[0]] == "RING"
    assert events.names[events.protocol[0]] == "SIMPLE"
    assert (events.host_start_ns - 10_000 + 20_000).tolist() == [56_000, 96_000]
    # GPU times are the first start and the last end over the channels.
    ahead = Plugin().gpu
    assert (events.gpu_start_ns - ahead).tolist() == [60_000, 100_000]
    assert (events.gpu_end_ns - ahead).tolist() == [90_000, 130_000]
    # The kernel on the second channel is seen first.
    assert (events.kernel_start_ns + 10_000).tolist() == [60_300, 100_300]
    # The states of steps are summed and merged.
    times = dict(zip(STATES, events.state_ns[0].tolist(), strict=True))
    assert times == {
        "SendBufferWait": 0,
        "SendGpuWait": 1_000,
        "SendPeerWait": 3_000,
        "SendWait": 5_000,
        "RecvBufferWait": 0,
        "RecvWait": 5_500,
        "RecvFlushWait": 500,
        "RecvGpuWait": 3_500,
    }
    # Data moves from 64,000 to 69,000 ns.
    # The rank waits for its peers from 60,500 to 66,000 ns.
    assert events.transfer_ns.tolist() == [5_000, 0]
    assert events.peer_wait_ns.tolist() == [3_500, 0]
    assert events.steps.tolist() == [2, 0]
    assert (events.proxy_start_ns[0] + 10_000, events.proxy_end_ns[0] + 10_000) == (60_000, 70_000)


def test_a_time_of_0_is_unknown(tmp_path: Path) -> None:
    text = plugin(Op("AllReduce", 60_000, None)).text()
    events = read(
        tmp_path, re.sub(r'("name": "AllReduce", .*"ts": )[\d.]+', r"\g<1>0.000000", text)
    )

    assert events.events.host_start_ns.tolist() == [UNKNOWN]
    assert events.events.gpu_end_ns.tolist() == [UNKNOWN]
    assert events.events.kernel_end_ns.tolist() == [UNKNOWN]


def test_a_call_without_an_operation_is_reported(tmp_path: Path) -> None:
    call = '"count": 7, "datatype": "ncclInt8", "root": 2, "GraphCaptured": 1, "Stream": "(nil)"'
    text = format_line("Broadcast", "COLL_API", "b", 0, 1, None, call)
    events = read(tmp_path, text + format_line("Broadcast", "COLL_API", "e", 0, 1, 5_000)).events

    assert events.kind.tolist() == [OperationKind.CALL]
    assert (events.count.tolist(), events.root.tolist()) == ([7], [2])


def test_a_collective_of_copy_engines_has_the_time_of_the_gpu(tmp_path: Path) -> None:
    args = '"eventId": 1, "count": 64, "datatype": "ncclInt8", "strategy": "MC", '
    args += '"start_ts_cpu": 5.0, "stop_ts_cpu": 9.0, "duration_cpu_us": 4.0'
    text = format_line("AllGather", "CE_COLL", "b", 0, 1, 5_000, args + ', "duration_gpu_us": 30')
    sync = '"eventId": 1, "type": "Ready", "strategy": "MC", "nRanks": 8'
    text += format_line("CeSync", "CE_SYNC", "b", 0, 1, 5_000, sync) + format_line(
        "CeSync", "CE_SYNC", "e", 0, 1, 6_000
    )
    events = read(tmp_path, text + format_line("AllGather", "CE_COLL", "e", 0, 1, 9_000)).events

    assert events.kind.tolist() == [OperationKind.COPY_ENGINE]
    assert (events.kernel_end_ns - events.kernel_start_ns).tolist() == [30_000]


def test_every_category_that_is_documented_is_known(tmp_path: Path) -> None:
    categories = (
        "GROUP_API",
        "GROUP",
        "KERNEL_LAUNCH",
        "COLL_API",
        "P2P_API",
        "COLL",
        "P2P",
        "GPU",
        "PROXY",
        "NET",
        "NET_IB",
        "NET_SOCK",
        "CE_COLL",
        "CE_SYNC",
        "CE_BATCH",
    )
    text = "".join(
        format_line("x", item, "b", 0, 1, 5, "") + format_line("x", item, "e", 0, 1, 9)
        for item in categories
    )
    file = read(tmp_path, text)

    assert file.n_unknown == 0
    assert dict(file.category_counts) == dict.fromkeys(categories, 2)
    assert read(tmp_path, text + format_line("x", "NEW", "b", 0, 1, 5)).n_unknown == 1


def test_events_printed_twice_count_once(tmp_path: Path) -> None:
    body = "".join(plugin(*TWO).lines[1:])
    file = read(tmp_path, "[\n" + body + body)

    assert (len(file.events), file.n_duplicates) == (2, 2)
    assert file.bridges.row.tolist() == [0, 0, 1, 1]


def test_processes_of_one_file_are_kept_apart(tmp_path: Path) -> None:
    lines, changed_lines = plugin(TWO[0]).lines[1:], plugin(TWO[0]).lines[1:]
    mixed = [
        item
        for pair in zip(
            lines, (t.replace('"pid": 100', '"pid": 200') for t in changed_lines), strict=True
        )
        for item in pair
    ]
    events = read(tmp_path, "[\n" + "".join(mixed)).events

    assert events.pid.tolist() == [100, 200]
    assert events.transfer_ns.tolist() == [5_000, 5_000]


# Tests of the old proxy profiler.


def test_transfers_of_the_proxy_profiler_are_rows_by_operation_and_peer(tmp_path: Path) -> None:
    text = make_proxy_file(
        [
            ("Send", 1, 4, (1_000, 2_000, 4_000, 9_000)),
            ("Recv", 3, 4, (1_000, 3_000, 8_000, 8_500, 9_500)),
            ("Send", 1, 4, (3_000, 5_000, 6_000, 12_000)),
            ("Send", 1, 5, (20_000, 20_000, 20_000, 30_000)),
        ]
    )
    file = read(tmp_path, text)
    events = file.events

    assert file.format == "proxy profiler"
    assert (file.unreadable, file.n_without_end, file.n_without_begin) == (0, 0, 0)
    assert [events.names[n] for n in events.name.tolist()] == ["Send", "Recv", "Send"]
    assert events.peer.tolist() == [1, 3, 1]
    assert events.sequence.tolist() == [4, 4, 5]
    assert events.steps.tolist() == [2, 1, 1]
    assert events.proxy_start_ns.tolist() == [1_000, 1_000, 20_000]
    assert events.proxy_end_ns.tolist() == [12_000, 9_500, 30_000]
    assert events.state_ns[0, STATES.index("SendBufferWait")] == 1_000 + 2_000
    assert events.state_ns[1, STATES.index("RecvFlushWait")] == 500
    # The sends wait for the network from 4,000 to 9,000 ns and from 6,000 to 12,000 ns.
    assert events.transfer_ns.tolist() == [8_000, 500, 10_000]


def test_a_fork_writes_bytes_and_collective(tmp_path: Path) -> None:
    args = '"args": { "opCount": 1, "proxyOpIndex":3 }, "chunkSize": 5, "totalSteps": 2, '
    args += '"collectiveName": "AllReduce-3" , "totalbytes": 640 ,  "proto": 2}'
    text = "".join(
        format_line("Send-1-0", "NET", "b", number, 0, 5_000).replace("}", f", {args}")
        + format_line("Send-1-0", "NET", "e", number, 0, 9_000)
        for number in range(2)
    )
    events = read(tmp_path, text).events

    assert events.payload.tolist() == [640]
    assert events.names[events.algorithm[0]] == "AllReduce-3"


# Tests of damage.

SMALL = plugin(Op("AllReduce", 60_000, 90_000, channels=1, steps=(SEND,)), valid=False).text()


def test_a_file_cut_at_any_byte_gives_the_events_before(tmp_path: Path) -> None:
    text = SMALL.encode()
    line_ends = [at for at in range(len(text)) if text[at : at + 3] == b"},\n"]
    n_events = 0
    for cut in range(len(text)):
        events, unreadable = parse_events(text[:cut])
        assert len(events) == sum(at < cut for at in line_ends)
        assert unreadable <= 2
        n_events = max(n_events, len(events))
        if not detect_format(text[:cut]):
            assert n_events < 2
        elif cut % 16 == 0:
            assert len(read_events(write_events_file(tmp_path, text[:cut])).events) <= 1
    assert n_events == len(line_ends)


EVENTS = [
    format_line(
        "AllReduce", "COLL", "b", 0, 1, 5_000, '"Count": 5, "Datatype": "ncclInt8"'
    ).strip(),
    format_line("x y", "GPU", "e", 0, 1, 7_000).strip(),
    format_line(
        "Recv", "P2P_API", "b", 0, 1, None, '"datatype": ncclFloat32, "Stream": 0x5f'
    ).strip(),
]
#: Text without braces, which may occur anywhere between events.
GARBAGE = st.lists(
    st.one_of(
        st.binary(max_size=20).map(lambda raw: raw.replace(b"{", b"").replace(b"}", b"")),
        st.sampled_from(
            [b",", b"\n", b"]", b"[", b"\0" * 9, b"{}", b'"args": ', b"\xff\xfe", b'"']
        ),
    ),
    max_size=4,
).map(b"".join)


@given(st.lists(st.tuples(st.sampled_from(EVENTS), GARBAGE), max_size=12))
def test_events_survive_any_text_between_them(parts: list[tuple[str, bytes]]) -> None:
    events, _ = parse_events(b"".join(item.encode() + b"\n" + junk + b"\n" for item, junk in parts))

    assert [event.cat for event in events] == [parse_json(item)["cat"] for item, _ in parts]


def parse_json(text: str) -> dict[str, object]:
    quoted = re.sub(r": (ncclFloat32|0x\w+)", r': "\1"', text.rstrip(","))
    document: dict[str, object] = json.loads(quoted)
    return document


@given(st.lists(st.sampled_from(EVENTS), min_size=1, max_size=8), st.data())
def test_a_cut_line_costs_no_other_event(lines: list[str], data: st.DataObject) -> None:
    cut_line = data.draw(st.integers(0, len(lines) - 1))
    cut = data.draw(st.integers(1, len(lines[cut_line]) - 3))
    lines_with_cut = [*lines[:cut_line], lines[cut_line][:cut], *lines[cut_line + 1 :]]
    events, unreadable = parse_events("\n".join(lines_with_cut).encode())
    rest = [parse_json(item)["cat"] for number, item in enumerate(lines) if number != cut_line]

    assert [event.cat for event in events] == rest
    assert unreadable >= 1


@pytest.mark.parametrize(
    "args",
    [
        '"Stream": 0x5020000567d0',
        '"Stream": (nil)',
        '"Stream": nan, "a": -nan, "b": inf',
        '"datatype": ncclFloat32,',
        '"a": "\\"x: y,\\"", "b": ncclInt8',
        '"a": "\x01\t", "b": 3',
        "“a”: 1",
        '"a": {"b": {"step": 1}}',
    ],
)
def test_values_of_older_versions_are_repaired(args: str) -> None:
    events, unreadable = parse_events(format_line("x", "COLL", "b", 3, 1, 5_000, args).encode())

    assert (len(events), unreadable) == (1, 0)
    assert (events[0].id, events[0].ts) == (3, 5.0)


def test_the_same_events_in_any_layout_of_json(tmp_path: Path) -> None:
    text = plugin(*TWO).text()
    parsed = json.loads(text)
    expected = read(tmp_path, text).events
    for layout in (
        json.dumps(parsed),
        json.dumps(parsed, indent=4),
        json.dumps(parsed, separators=(",", ":")),
        json.dumps({"traceEvents": parsed, "displayTimeUnit": "ns"}),
        text.replace("\n", "\r\n"),
        text.replace("[\n", "").replace("},\n", "}\n"),
        gzip.compress(text.encode()),
    ):
        file = read(tmp_path, layout)
        assert (file.unreadable, file.n_without_end) == (0, 0)
        for name in expected.column_names():
            assert np.array_equal(getattr(file.events, name), getattr(expected, name)), name


@pytest.mark.parametrize("value", [-1, 1 << 63, (1 << 64) - 1, 1 << 70, -(1 << 63)])
def test_numbers_of_any_size_fit_or_are_ignored(tmp_path: Path, value: int) -> None:
    args = ", ".join(
        f'"{item}": {value}'
        for item in ("SeqNum", "CommHash", "Rank", "Count", "nChannels", "StartGpuClk")
    )
    text = format_line("AllReduce", "COLL", "b", 0, 1, 5_000, args)
    text += format_line("KernelCh", "GPU", "b", 0, 1, 6_000, args)
    events = read(tmp_path, text + format_line("AllReduce", "COLL", "e", 0, 1, 10**30)).events

    assert events.rank.tolist() == [-1]
    assert events.communicators == (value & ((1 << 64) - 1),)
    assert events.gpu_start_ns.tolist() == [UNKNOWN]
    assert events.host_end_ns.tolist() == [UNKNOWN]


# Tests of the detection of formats.

_PROXY = [("Send", 1, 4, (1, 2, 3, 4)), ("Recv", 2, 4, (1, 2, 3, 4, 5))]
_IDLE = format_line("Idle", "PROXY", "b", 0, 1, 5_000) + format_line(
    "Idle", "PROXY", "e", 0, 1, 6_000
)


@pytest.mark.parametrize("gap", ["", " "])
@pytest.mark.parametrize(
    ("text", "name"),
    [
        (plugin(*TWO).text(), "profiler plugin"),
        (_IDLE, "profiler plugin"),
        (make_proxy_file(_PROXY), "proxy profiler"),
        ("SQLite format 3\0" + plugin(*TWO).text(), ""),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "ncclKernel", "ts": 1}]}', ""),
        ('[{"ph": "b", "cat": "gpu_user_annotation", "name": "nccl:all_reduce"}]', ""),
        ('{"displayTimeUnit": "ns", "traceEvents": [{"ph": "M", "name": "process_name"}]}', ""),
    ],
)
def test_a_file_is_of_one_format_or_none(text: str, name: str, gap: str) -> None:
    head = text.replace(": ", f":{gap}").encode()

    assert detect_format(head) == name


@pytest.mark.parametrize("text", [SMALL, make_proxy_file([("Send", 1, 4, (1, 2, 3, 4))])])
def test_analyze_names_the_command_that_reads_event_files(tmp_path: Path, text: str) -> None:
    with pytest.raises(ProfileError, match="bubbleviz nccl"):
        find_reader(write_events_file(tmp_path, text))


# Tests with real files.


@pytest.mark.real_files
def test_the_trace_in_nccls_readme_is_read() -> None:
    file = read_events(str(get_real_file("nccl/nccl_readme_v5.jsonlines")))
    events = file.events

    assert (sum(count for _, count in file.category_counts), file.unreadable) == (43, 0)
    # The published file lacks its middle, so four starts have no end, and four ends have no start.
    assert (file.n_without_end, file.n_without_begin) == (4, 4)
    assert (len(events), events.count[0], events.channels[0]) == (1, 262_144, 2)
    assert events.gpu_end_ns[0] - events.gpu_start_ns[0] == 8_159_232
    assert events.state_ns[0].tolist() == [0, 98_004, 10_336, 0, 0, 687_011, 190_797, 583_791]


MANY = tuple(Op("AllReduce", at, at + 20_000, sequence=at) for at in range(60_000, 600_000, 60_000))


@pytest.mark.parametrize(
    ("key", "match_index", "change_ns", "n_conflicts"),
    [
        ("StartGpuClk", 7, -3_600 * 10**9, 1),
        ("StartGpuClk", 0, 3_600 * 10**9, 1),
        ("StopGpuClk", 4, 3_600 * 10**9, 1),
        ("StopGpuClk", 4, 1_000, 0),
    ],
)
def test_a_damaged_time_of_a_gpu_is_left_out_and_counted(
    key: str, match_index: int, change_ns: int, n_conflicts: int, tmp_path: Path
) -> None:
    text = plugin(*MANY).text()
    matches = [m for m in re.finditer(rf'"{key}": (\d+)', text) if int(m[1])][match_index]
    changed = str(int(matches[1]) + change_ns)

    file = read(tmp_path, text[: matches.start(1)] + changed + text[matches.end(1) :])

    assert (read(tmp_path, text).n_clock_conflicts, file.n_clock_conflicts) == (0, n_conflicts)
    unknown_ends = np.flatnonzero(file.events.gpu_end_ns == UNKNOWN).tolist()
    assert unknown_ends == [match_index // 2] * n_conflicts
    starts = np.flatnonzero(file.events.gpu_start_ns == UNKNOWN).tolist()
    assert starts == (unknown_ends if key == "StartGpuClk" else [])
    assert not np.isin(file.bridges.row, starts).any()


@pytest.mark.real_files
def test_a_real_ring_of_sends_and_receives() -> None:
    file = read_events(str(get_real_file("nccl/pha-z_sendrecv_v5.jsonlines")))
    events = file.events

    # Six lines were shortened by hand, and lack the phase.
    assert (sum(count for _, count in file.category_counts), file.unreadable) == (370, 6)
    assert (file.n_without_end, file.n_without_begin, file.n_duplicates) == (0, 0, 0)
    assert events.communicators == (12_715_772_615_376_301_750,)
    assert list(zip(events.rank.tolist(), events.peer.tolist(), strict=True)) == [
        (0, 1),
        (0, 3),
        (1, 2),
        (1, 0),
        (2, 3),
        (2, 1),
        (3, 0),
        (3, 2),
    ]
    assert events.gpu_end_ns.tolist() == [UNKNOWN] * 8
    assert len(file.bridges) == 128
