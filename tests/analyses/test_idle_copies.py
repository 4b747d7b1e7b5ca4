"""Copies on devices: their size, direction, speed and memory kinds, and advice based on them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bubbleviz
from bubbleviz.analyses.idle.advice import advice
from bubbleviz.analyses.idle.copies import CopyTotal, describe_longest, format_size, merge_totals
from bubbleviz.analyses.idle.outputs import as_json
from bubbleviz.analyses.idle.report import IdleMeasurement
from bubbleviz.analyses.idle.text import first_screen, list_tables, sections
from bubbleviz.conventions.copy_names import read_copy_details, read_copy_name
from bubbleviz.model.copies import Direction, Memory
from bubbleviz.render.text.terminal import render_plain_text
from bubbleviz.report.idle_summary import IdleRank
from tests.support.columnar_exports import ARROW, PARQUET, Form, write_columnar
from tests.support.edited_databases import edit_database
from tests.support.needs import get_real_file
from tests.support.nsys_exports import C, K, M, write_profile
from tests.support.processes import Process
from tests.support.rocm_profiles import write_rocpd, write_rpd
from tests.support.xla_files import E, L, P, make_space, make_trace_json

#: Ids of memory kinds in nsys exports.
PAGEABLE, PINNED, DEVICE, MANAGED = 0, 1, 2, 4
MB = 1_000_000
KERNELS = [K(0, 1_000, 1), K(90_000, 100_000, 2)]
CALLS = [C(0, 1, 1), C(2, 3, 2)]


def copied(folder: Path, *copies: M, name: str = "profile.sqlite") -> Path:
    return write_profile(folder, KERNELS, CALLS, copies=list(copies), name=name)


def totals(measurement: IdleMeasurement) -> list[tuple[str, str, str, int, int | None, int]]:
    return [
        (t.direction.label, t.source.label, t.target.label, t.count, t.size, t.time_ns)
        for t in measurement.copies()
    ]


def test_a_profile_without_copies_has_none(tmp_path: Path) -> None:
    report = bubbleviz.idle([copied(tmp_path)])

    assert report.copies() == ()
    assert json.loads(as_json(report, 1))["copies"] == []
    assert "Copies by direction" not in render_plain_text(sections(report, 12))


def test_copies_are_summed_by_direction_and_memory(tmp_path: Path) -> None:
    path = copied(
        tmp_path,
        M(2_000, 32_000, 3, kind=1, size=2 * MB, memory=(PINNED, DEVICE)),
        M(32_000, 62_000, 4, kind=1, size=MB, memory=(PINNED, DEVICE)),
        M(62_000, 64_000, 5, kind=1, size=500, memory=(PAGEABLE, DEVICE)),
        M(64_000, 65_000, 6, kind=2, size=100, memory=(DEVICE, PINNED)),
        M(65_000, 68_000, 7, kind=8, size=MB, memory=(DEVICE, DEVICE)),
        M(68_000, 68_500, 8, kind=11, size=4095, memory=(MANAGED, MANAGED)),
        M(68_500, 69_000, 8, kind=11, size=1, memory=(7, None)),
        M(69_000, 69_500, 9, kind=99, size=10, memory=(7, 99)),
    )
    report = bubbleviz.idle([path])

    assert totals(report) == [
        ("host to device", "pinned", "device", 2, 3 * MB, 60_000),
        ("device to device", "device", "device", 1, MB, 3_000),
        ("host to device", "pageable", "device", 1, 500, 2_000),
        ("device to host", "device", "pinned", 1, 100, 1_000),
        ("host to device", "managed", "managed", 2, 4096, 1_000),
        ("unknown", "unknown", "unknown", 1, 10, 500),
    ]
    first = json.loads(as_json(report, 1))["copies"][0]
    assert first == {
        "direction": "host to device",
        "source": "pinned",
        "target": "device",
        "count": 2,
        "bytes": 3 * MB,
        "time_ns": 60_000,
        "gb_per_s": 50.0,
        "exposed_ns": 60_000,
    }
    screen = render_plain_text(first_screen(report))
    assert "Copies by direction and memory (2 of 6; -v)" in screen
    assert "50.00" in screen


def test_a_copy_is_exposed_while_no_kernel_runs(tmp_path: Path) -> None:
    kernels = [K(0, 10_000, 1), K(20_000, 30_000, 2), K(25_000, 50_000, 3, stream=2)]
    copies = [
        M(8_000, 22_000, 4, size=100, memory=(PINNED, DEVICE), stream=3),
        M(5_000, 12_000, 5, size=100, memory=(PINNED, DEVICE), stream=4),
        M(30_000, 40_000, 6, kind=2, size=100, memory=(DEVICE, PAGEABLE), stream=4),
        M(49_000, 60_000, 7, kind=8, size=100, memory=(DEVICE, DEVICE), stream=3),
    ]
    calls = [C(0, 1, number) for number in range(1, 8)]
    report = bubbleviz.idle([write_profile(tmp_path, kernels, calls, copies=copies)])

    times = [(total.direction, total.time_ns, total.exposed_ns) for total in report.copies()]
    assert times == [
        (Direction.HOST_TO_DEVICE, 21_000, 10_000 + 2_000),
        (Direction.DEVICE_TO_DEVICE, 11_000, 10_000),
        (Direction.DEVICE_TO_HOST, 10_000, 0),
    ]


def write_two_devices(folder: Path, copied_bytes: int) -> Path:
    kernels = [K(0, 1_000, 1), K(0, 1_000, 2, device=1)]
    kernels += [K(90_000, 100_000, 3), K(90_000, 100_000, 4, device=1)]
    copies = [
        M(2_000, 3_000, 5, size=copied_bytes, memory=(PINNED, DEVICE)),
        M(2_000, 62_000, 6, size=copied_bytes, memory=(PAGEABLE, DEVICE), device=1),
        M(70_000, 70_500, 7, kind=2, size=MB, memory=(DEVICE, PINNED), device=1),
    ]
    calls = [C(0, 1, number) for number in range(1, 8)]
    return write_profile(folder, kernels, calls, copies=copies)


def test_the_text_and_the_page_list_the_copies_of_each_device(tmp_path: Path) -> None:
    report = bubbleviz.idle([write_two_devices(tmp_path, 3 * MB)])

    text = render_plain_text(sections(report, 12))
    table = text[text.index("Copies by device") :].splitlines()
    assert table[1].split() == [
        "device",
        "direction",
        "from",
        "to",
        "ms",
        "exposed",
        "ms",
        "moved",
        "GB/s",
    ]
    rows = [line.split()[2:] for line in table[3:6]]
    assert [" ".join(row) for row in rows] == [
        "1 host to device pageable device 0.060 0.060 3.00 MB 50.00",
        "0 host to device pinned device 0.001 0.001 3.00 MB 3,000.00",
        "1 device to host device pinned 0.001 0.001 1.00 MB 2,000.00",
    ]
    assert {"Copies", "Copies by device"} <= set(list_tables(report))
    ranks = json.loads(as_json(report, 1))["ranks"]
    assert [[copy["exposed_ns"] for copy in rank["copies"]] for rank in ranks] == [
        [1_000],
        [60_000, 500],
    ]


def test_reports_without_exposed_times_and_held_back_communication_load(tmp_path: Path) -> None:
    document = json.loads(as_json(bubbleviz.idle([write_two_devices(tmp_path, 3 * MB)]), 1))
    for rank in document["ranks"]:
        for name in ("held_back", "held_back_ns", "are_events_recorded"):
            del rank[name]
        for copy in rank["copies"]:
            del copy["exposed_ns"]
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(document))

    ranks = [rank for rank in bubbleviz.load(path).ranks if isinstance(rank, IdleRank)]
    assert [rank.held_back for rank in ranks] == [(), ()]
    assert ranks[0].copies[0].exposed_ns is None


def test_the_table_by_device_is_left_out_for_one_device(tmp_path: Path) -> None:
    copy = M(2_000, 62_000, 3, size=3 * MB, memory=(PINNED, DEVICE))
    report = bubbleviz.idle([copied(tmp_path, copy)])

    assert "Copies by device" not in render_plain_text(sections(report, 12))
    assert "Copies by device" not in list_tables(report)


@pytest.mark.parametrize(("end_ns", "is_shown"), [(3_000, True), (2_999, False)])
def test_the_first_screen_lists_copies_exposed_for_one_percent(
    end_ns: int, is_shown: bool, tmp_path: Path
) -> None:
    copy = M(2_000, end_ns, 3, size=MB, memory=(PINNED, DEVICE))
    report = bubbleviz.idle([copied(tmp_path, copy)])

    assert ("Copies by direction" in render_plain_text(first_screen(report))) == is_shown


def test_the_markdown_summary_lists_copies(tmp_path: Path) -> None:
    copy = M(2_000, 62_000, 3, size=3 * MB, memory=(PINNED, DEVICE))

    bubbleviz.idle([copied(tmp_path, copy)]).save(tmp_path / "idle.md")
    bubbleviz.idle([copied(tmp_path, name="none.sqlite")]).save(tmp_path / "none.md")

    assert (
        "| host to device | pinned | device | 0.060 | 0.060 |" in (tmp_path / "idle.md").read_text()
    )
    assert "Copies by direction" not in (tmp_path / "none.md").read_text()


@pytest.mark.parametrize(
    ("copy", "words"),
    [
        (M(2_000, 62_000, 3, size=3 * MB, memory=(PINNED, DEVICE)), "is already pinned"),
        (M(2_000, 62_000, 3, size=3 * MB, memory=(PAGEABLE, DEVICE)), "copy from or to pinned"),
        (M(2_000, 62_000, 3, kind=2, size=3 * MB, memory=(DEVICE, PAGEABLE)), "to pinned memory"),
        (M(2_000, 62_000, 3, size=3 * MB), "the kind of this memory is unknown"),
        (M(2_000, 62_000, 3, kind=8, size=3 * MB, memory=(DEVICE, DEVICE)), "within the device"),
        (M(2_000, 62_000, 3, kind=10, size=3 * MB, memory=(DEVICE, DEVICE)), "while kernels run"),
        (M(2_000, 62_000, 3, kind=11, size=3 * MB, memory=(MANAGED, DEVICE)), "prefetch managed"),
        (
            M(2_000, 62_000, 3, size=100, memory=(PINNED, DEVICE)),
            "combine the small copies (count: 1, mean size: 100 B)",
        ),
    ],
)
def test_advice_follows_from_the_copies(copy: M, words: str, tmp_path: Path) -> None:
    first = advice(bubbleviz.idle([copied(tmp_path, copy)]))[0]

    assert first.startswith(
        "60.00 % of the time is spent on exposed copies, while no kernel runs: 100.00 %"
    )
    assert words in first
    assert " GB/s; " in first


def test_there_is_no_advice_to_pin_pinned_memory(tmp_path: Path) -> None:
    copy = M(2_000, 62_000, 3, size=3 * MB, memory=(PINNED, DEVICE))
    report = bubbleviz.idle([copied(tmp_path, copy)])

    assert "from pinned memory" not in " ".join(advice(report))
    assert "host to device (pinned), 3.00 MB at 50 GB/s" in advice(report)[0]


def test_advice_on_exposed_copies_ignores_copies_that_kernels_hide(tmp_path: Path) -> None:
    kernels = [K(0, 50_000, 1), K(90_000, 100_000, 2)]
    copies = [
        M(1_000, 50_000, 3, size=3 * MB, memory=(PINNED, DEVICE), stream=2),
        M(60_000, 85_000, 4, kind=8, size=3 * MB, memory=(DEVICE, DEVICE)),
    ]
    calls = [C(0, 1, number) for number in range(1, 5)]
    path = write_profile(tmp_path, kernels, calls, copies=copies)

    sentences = " ".join(advice(bubbleviz.idle([path])))
    assert "while no kernel runs: 100.00 % of the exposed copy time is device" in sentences


def test_advice_on_idle_time_during_copy_calls_ignores_hidden_copies(tmp_path: Path) -> None:
    kernels = [K(0, 500_000, 1), K(760_000, 900_000, 2)]
    copies = [
        M(1_000, 400_000, 3, kind=2, size=9 * MB, memory=(DEVICE, PINNED), stream=2),
        M(540_000, 700_000, 4, size=3 * MB, memory=(PAGEABLE, DEVICE)),
    ]
    calls = [
        C(0, 1, 1),
        C(2, 3, 3),
        C(490_000, 750_000, 4, name="cudaMemcpyAsync_v3020"),
        C(755_000, 756_000, 2),
    ]
    path = write_profile(tmp_path, kernels, calls, copies=copies)

    (sentence,) = (text for text in advice(bubbleviz.idle([path])) if '"transfer"' in text)
    assert "100.00 % of the exposed copy time is host to device (pageable)" in sentence
    assert "copy from or to pinned memory" in sentence


@pytest.mark.parametrize("column", ["srcKind", "dstKind"])
def test_an_older_export_has_only_bytes_and_directions(column: str, tmp_path: Path) -> None:
    copy = M(2_000, 62_000, 3, size=3 * MB, memory=(PINNED, DEVICE))
    old = tmp_path / "old.sqlite"
    statement = f"ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY DROP COLUMN {column}"
    edit_database(old, statement, source=copied(tmp_path, copy))

    expected = [("host to device", "unknown", "unknown", 1, 3 * MB, 60_000)]
    assert totals(bubbleviz.idle([old])) == expected


@pytest.mark.parametrize("form", [PARQUET, ARROW])
def test_columnar_exports_give_the_same_copies(form: Form, tmp_path: Path) -> None:
    copies = [
        M(2_000, 62_000, 3, size=3 * MB, memory=(PINNED, DEVICE)),
        M(62_000, 64_000, 4, kind=2, size=500, memory=(DEVICE, PAGEABLE)),
    ]
    path = copied(tmp_path, *copies)

    assert totals(bubbleviz.idle(write_columnar(path, tmp_path / "columns", form))) == [
        ("host to device", "pinned", "device", 1, 3 * MB, 60_000),
        ("device to host", "device", "pageable", 1, 500, 2_000),
    ]


def test_copies_belong_to_their_device_and_are_within_its_span(tmp_path: Path) -> None:
    kernels = [K(0, 10, 1), K(0, 10, 2, device=1), K(50, 60, 3), K(90, 100, 4, device=1)]
    calls = [C(0, 1, n) for n in range(1, 8)]
    copies = [
        M(20, 30, 5, device=1, size=7, memory=(PINNED, DEVICE)),
        M(0, 0, 6, size=5, memory=(PAGEABLE, DEVICE)),
        M(30, 40, 7, size=3, kind=2, memory=(DEVICE, PAGEABLE)),
    ]
    report = bubbleviz.idle([write_profile(tmp_path, kernels, calls, copies=copies)])

    of_ranks = [[(c.direction, c.size) for c in rank.copies] for rank in report.ranks]
    assert of_ranks == [[(Direction.DEVICE_TO_HOST, 3)], [(Direction.HOST_TO_DEVICE, 7)]]


def torch_trace(path: Path, copies: list[dict[str, Any]]) -> Path:
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7}
    events = [
        {**kernel, "ts": 0, "dur": 10, "args": {"device": 0, "correlation": 1}},
        {**kernel, "ts": 90, "dur": 10, "args": {"device": 0, "correlation": 2}},
        *({**kernel, "cat": "gpu_memcpy", **copy} for copy in copies),
        {**kernel, "cat": "gpu_memset", "name": "Memset (Device)", "ts": 80, "dur": 5,
         "args": {"device": 0, "bytes": 4}},
    ]  # fmt: skip
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    return path


@pytest.mark.parametrize("size", [3 * MB, str(3 * MB), None])
def test_pytorch_traces_describe_copies_by_name_and_arguments(size: object, tmp_path: Path) -> None:
    args = {"device": 0, "correlation": 3} | ({} if size is None else {"bytes": size})
    copy = {"name": "Memcpy HtoD (Pinned -> Device)", "ts": 20, "dur": 60, "args": args}
    report = bubbleviz.idle([torch_trace(tmp_path / "trace.json.gz", [copy])])

    expected = None if size is None else 3 * MB
    assert totals(report) == [("host to device", "pinned", "device", 1, expected, 60_000)]
    assert "host to device (pinned)" in advice(report)[0]
    assert ("GB/s" in advice(report)[0]) == (size is not None)


@pytest.mark.parametrize("write", [write_rocpd, write_rpd])
def test_rocm_databases_give_bytes_or_directions(
    write: Callable[[Path, list[Process]], Path], tmp_path: Path
) -> None:
    process = Process(
        "node",
        1,
        calls=[(1_000, 1_001, 1, number, "hipLaunchKernel") for number in range(1, 6)],
        kernels=[(1_002, 1_010, 0, 1, 1, "gemm"), (1_090, 1_100, 0, 2, 1, "gemm")],
        copies=[(1_060, 1_070, 0, 4, 1), (1_020, 1_050, 0, 3, 1)],
        fills=[(1_070, 1_080, 0, 5, 1)],
    )
    report = bubbleviz.idle([write(tmp_path / "profile.db", [process])])

    size = 128 if write is write_rocpd else None
    assert totals(report) == [("host to device", "unknown", "unknown", 2, size, 40)]


def test_calls_in_rocm_profile_data_give_bytes(tmp_path: Path) -> None:
    process = Process(
        "node",
        1,
        calls=[(1_000, 1_001, 1, number, "hipLaunchKernel") for number in range(1, 4)],
        kernels=[(1_002, 1_010, 0, 1, 1, "gemm"), (1_090, 1_100, 0, 2, 1, "gemm")],
        copies=[(1_020, 1_050, 0, 3, 1)],
    )
    path = write_rpd(tmp_path / "profile.rpd", [process])
    edit_database(
        path,
        "CREATE TABLE rocpd_copyapi (api_ptr_id INTEGER PRIMARY KEY, size INTEGER NOT NULL)",
        "INSERT INTO rocpd_copyapi SELECT id, 100 * id FROM rocpd_api",
    )

    ((*_, count, size, _),) = totals(bubbleviz.idle(path))
    assert (count, size) == (1, 300)


@pytest.mark.parametrize("suffix", [".xplane.pb", ".trace.json"])
def test_xla_names_give_directions(suffix: str, tmp_path: Path) -> None:
    details = {"memcpy_details": "kind_src:pinned kind_dst:device size:3000 dest:0 async:1"}
    events = [
        E("gemm", 0, 10),
        E("MemcpyH2D", 20, 50, stats=details),
        E("Memset", 50, 60),
        E("MemcpyD2H", 60, 61),
        E("gemm", 90, 100),
    ]
    planes = [P("/device:GPU:0", [L("Stream #3(MemcpyH2D,Kernel)", events, 3)])]
    path = tmp_path / f"profile{suffix}"
    path.write_bytes(make_space(planes) if suffix == ".xplane.pb" else make_trace_json(planes))

    first, second = totals(bubbleviz.idle(path))
    assert first[:5] == ("host to device", "pinned", "device", 1, 3000)
    assert second[:5] == ("device to host", "unknown", "unknown", 1, None)


def test_copies_without_any_details_are_not_listed(tmp_path: Path) -> None:
    lines = [
        L("XLA Ops", [E("dot.2", 1, 9), E("dot.3", 9, 12)], 1),
        L("Async XLA Ops", [E("copy-start.4", 2, 5)], 2),
    ]
    path = tmp_path / "profile.xplane.pb"
    path.write_bytes(make_space([P("/device:TPU:0", lines)]))

    assert bubbleviz.idle(path).copies() == ()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("", (Direction.UNKNOWN, Memory.UNKNOWN, Memory.UNKNOWN)),
        ("Memset (Device)", None),
        ("FillBuffer", None),
        (
            "Memcpy DtoH (Device -> Pageable)",
            (Direction.DEVICE_TO_HOST, Memory.DEVICE, Memory.PAGEABLE),
        ),
        ("Memcpy PtoP (Device -> Device)", (Direction.PEER_TO_PEER, Memory.DEVICE, Memory.DEVICE)),
        ("MemcpyD2D", (Direction.DEVICE_TO_DEVICE, Memory.UNKNOWN, Memory.UNKNOWN)),
        ("CopyHostToDevice", (Direction.HOST_TO_DEVICE, Memory.UNKNOWN, Memory.UNKNOWN)),
        (
            "MEMORY_COPY_DEVICE_TO_HOST",
            (Direction.DEVICE_TO_HOST, Memory.UNKNOWN, Memory.UNKNOWN),
        ),
        ("x" * 1_000_000, (Direction.UNKNOWN, Memory.UNKNOWN, Memory.UNKNOWN)),
    ],
)
def test_names_give_direction_and_memory(name: str, expected: object) -> None:
    assert read_copy_name(name) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", (-1, Memory.UNKNOWN, Memory.UNKNOWN)),
        ("kind:Unknown size:0 dest:512 async:1", (0, Memory.UNKNOWN, Memory.UNKNOWN)),
        ("kind_src:pageable kind_dst:managed size:12", (12, Memory.PAGEABLE, Memory.MANAGED)),
        ("size:99999999999999999999999", (-1, Memory.UNKNOWN, Memory.UNKNOWN)),
        ("size:abc kind_src:7", (-1, Memory.UNKNOWN, Memory.UNKNOWN)),
    ],
)
def test_xla_details_give_bytes_and_memory(text: str, expected: object) -> None:
    assert read_copy_details(text) == expected


def total(ns: int, size: int | None = 0, direction: Direction = Direction.UNKNOWN) -> CopyTotal:
    return CopyTotal(direction, Memory.UNKNOWN, Memory.UNKNOWN, 1, size, ns, ns // 2)


def test_totals_add_up_and_one_unknown_size_makes_the_sum_unknown() -> None:
    assert merge_totals([]) == ()
    (merged,) = merge_totals([total(5, 1), total(6, 2)])
    assert (merged.count, merged.size, merged.time_ns, merged.exposed_ns) == (2, 3, 11, 5)
    (merged,) = merge_totals([total(5, 1), total(6, None)])
    assert merged.size is None
    shorter, longer = total(5, direction=Direction.PEER_TO_PEER), total(6)
    assert merge_totals([shorter, longer]) == (longer, shorter)


def test_no_advice_is_given_if_no_kind_of_copy_dominates() -> None:
    three = [total(10, direction=direction) for direction in list(Direction)[1:4]]
    assert describe_longest([]) is None
    assert describe_longest([total(10)]) is None
    assert describe_longest(three) is None


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1e3, "1.00 kB"), (2.5e6, "2.50 MB"), (5.1e10, "51.00 GB")],
)
def test_sizes_have_decimal_units(size: float, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.real_files
def test_real_copies_from_pinned_memory_are_not_advised_to_be_pinned() -> None:
    report = bubbleviz.idle(get_real_file("nsys/nsys-ai_h100_2gpu_1s.sqlite"))
    first = report.copies()[0]

    assert (first.label, first.count, first.size) == ("host to device (pinned)", 446, 50950504448)
    assert "from pinned memory" not in advice(report)[0]
