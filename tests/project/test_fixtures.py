"""Planted profiles say what their truth says, by a reader that is slow, plain and our own."""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isclose
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.errors import UsageError
from scripts.make_fixture import RECIPES, main, write_all
from tests.planting import Planting, Truth, plant, read_truth
from tests.planting.layout import tables_of, write_export
from tests.support.places import FIXTURES

OPERATION = re.compile(r"[FBW]\d+\.\d+\.\d+|W_clear\.\d+\.\d+|Optimizer|POST_VALIDATION")
TRANSFER = re.compile(r"(?:SEND|RECV)_(?:FORWARD|BACKWARD)(?:\.\d+\.\d+\.\d+)?")
FOREVER = 1 << 62

#: Every planted feature at least once, small.
PLANTINGS = {
    "plain": Planting(),
    "gpipe": Planting(schedule="gpipe", iteration_ranges=True, first_iteration=7),
    "interleaved": Planting(schedule="interleaved-1f1b", chunks=3, names="constant"),
    "zb-h1": Planting(schedule="zb-h1", w_clear=True, kernels=5, kernel_gap_ns=3_000),
    "zb-v": Planting(schedule="zb-v", w_clear=True, autograd="unnamed", library_depth=4),
    "transfers": Planting(transfer_ns=70_000, jitter=0.2, seed=3, slow_stage=2, barrier=True),
    "late host": Planting(late_stage=1, late_ns=90_000, watchdog=True, double_calls=True),
    "nested receives": Planting(nested_receive_ns=100_000, kernels=6, transfer_ns=400_000),
    "nested, no transfer": Planting(nested_receive_ns=100_000, kernels=9, two_streams=True),
    "two streams": Planting(two_streams=True, kernels=7, copies=True, text="mixed"),
    "post-validation": Planting(schedule="zb-h2", postponed_ns=80_000, iteration_ranges=True),
    "evaluation": Planting(iterations=4, evaluation_at=2, ranges="mixed", overhead=True),
    "start-end": Planting(ranges="start_end", text="registered", autograd="named"),
    "hosts": Planting(
        servers=2,
        files="rank",
        devices="zero",
        clock_error_ns=(0, -4_000_000),
        drift_ppb=(0, 9_000),
    ),
    "disjoint": Planting(correlation="disjoint", drop_calls_every=3, kernels=8, servers=3),
    "stray, busy": Planting(stray="busy"),
    "stray, idle": Planting(stray="idle", transfer_ns=60_000),
    "stray, receive": Planting(stray="recv", transfer_ns=60_000, stray_every=2),
    "cut": Planting(cut_ns=40_300_000, iterations=3, autograd="named"),
    "no optimizer": Planting(optimizer_ns=-1, iterations=3, communication=False),
    "empty optimizer": Planting(optimizer_ns=0),
    "one device": Planting(stages=1, microbatches=2),
}


@dataclass(frozen=True)
class Seen:
    """An operation as the slow reader finds it."""

    pid: int
    name: str
    start_ns: int
    end_ns: int
    kernels: int


def rows_of(path: Path, query: str) -> list[tuple[int, ...]]:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        rows = database.execute(query).fetchall()
    database.close()
    return rows


NVTX = """SELECT start, COALESCE("end", 1 << 62), globalTid >> 24 & 0xFFFFFF, globalTid,
    COALESCE(text, value) FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId
    WHERE eventType IN (59, 60) ORDER BY start"""
CALLS = """SELECT globalTid >> 24 & 0xFFFFFF, correlationId, start, "end", globalTid
    FROM CUPTI_ACTIVITY_KIND_RUNTIME ORDER BY start DESC"""
KERNELS = """SELECT globalPid >> 24 & 0xFFFFFF, correlationId, start, "end", value
    FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName"""


def operations_in(path: Path) -> list[Seen]:
    """Return the operations of an export: call by call, range by range."""
    ranges = defaultdict(list)
    for start, end, pid, thread, name in rows_of(path, NVTX):
        if OPERATION.fullmatch(str(name)) or TRANSFER.fullmatch(str(name)):
            ranges[pid].append((start, end, thread, str(name)))
    calls = {(pid, call): times for pid, call, *times in rows_of(path, CALLS)}
    found = defaultdict(list)
    for pid, call, start, end, kernel in rows_of(path, KERNELS):
        if str(kernel).startswith("nccl") or (pid, call) not in calls:
            continue
        low, high, thread = calls[pid, call]
        around = [r for r in ranges[pid] if r[0] <= low and high <= r[1] and r[2] == thread]
        if not around:
            around = [r for r in ranges[pid] if r[0] <= low <= r[1] and r[3][0] == "B"]
            around = [
                r for r in around if r[2] != thread and not opens_forward(ranges[pid], thread)
            ]
        if around:
            found[pid, min(around, key=lambda r: r[1] - r[0])].append((start, end))
    return [
        Seen(pid, name[3], min(k[0] for k in kernels), max(k[1] for k in kernels), len(kernels))
        for (pid, name), kernels in found.items()
        if OPERATION.fullmatch(name[3])
    ]


def opens_forward(ranges: list[tuple[int, int, int, str]], thread: int) -> bool:
    return any(r[2] == thread and r[3].startswith("F") for r in ranges)


def operations_planted(truth: Truth, file: str) -> list[Seen]:
    pids = {rank.rank: rank.pid for rank in truth.ranks if rank.file == file}
    return [
        Seen(pids[op.rank], op.name, op.file_start_ns, op.file_end_ns, op.kernels)
        for op in truth.operations
        if op.rank in pids and op.file_start_ns is not None and op.file_end_ns is not None
    ]


def by_start(operations: list[Seen]) -> list[Seen]:
    return sorted(operations, key=lambda op: (op.pid, op.start_ns))


@pytest.mark.parametrize("planting", PLANTINGS.values(), ids=PLANTINGS.keys())
def test_an_export_holds_what_its_truth_says(planting: Planting, tmp_path: Path) -> None:
    truth = plant(planting, tmp_path)

    for file in truth.files:
        found = by_start(operations_in(tmp_path / file.path))
        assert found == by_start(operations_planted(truth, file.path))
        assert len(rows_of(tmp_path / file.path, KERNELS)) == file.kernels


@pytest.mark.parametrize("planting", PLANTINGS.values(), ids=PLANTINGS.keys())
def test_the_layout_is_that_of_real_exports(planting: Planting, tmp_path: Path) -> None:
    truth = plant(planting, tmp_path)

    for file in truth.files:
        path = tmp_path / file.path
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"):
            starts = rows_of(path, f"SELECT start FROM {table} ORDER BY rowid")
            assert starts == sorted(starts)
        groups = rows_of(
            path, "SELECT globalTid, eventClass, start FROM CUPTI_ACTIVITY_KIND_RUNTIME"
        )
        changes = [now[:2] for before, now in pairwise(groups) if before[:2] != now[:2]]
        assert len(changes) + 1 == len({group[:2] for group in groups})
        assert all(b[2] <= n[2] for b, n in pairwise(groups) if b[:2] == n[:2])
        late = rows_of(
            path,
            """SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel
            JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call ON call.correlationId = kernel.correlationId
            AND call.globalTid >> 24 = kernel.globalPid >> 24 WHERE call."end" > kernel.start""",
        )
        assert late == [(0,)]
        assert not crossing_ranges(path)


def crossing_ranges(path: Path) -> list[tuple[int, int]]:
    """Return the push/pop ranges that end after one they began in, on one thread."""
    query = """SELECT globalTid, start, COALESCE("end", 1 << 62) FROM NVTX_EVENTS
        WHERE eventType = 59 ORDER BY start, "end" DESC"""
    crossing = []
    stacks: dict[int, list[int]] = defaultdict(list)
    for thread, start, end in rows_of(path, query):
        stack = stacks[thread]
        while stack and stack[-1] <= start:
            stack.pop()
        if stack and end > stack[-1]:
            crossing.append((start, end))
        stack.append(end)
    return crossing


def ratios(truth: Truth, name: str) -> list[float | None]:
    return [iteration.bubble_ratio[name] for iteration in truth.iterations]


def test_1f1b_idles_3_of_11(tmp_path: Path) -> None:
    truth = plant(Planting(), tmp_path)

    assert ratios(truth, "schedule") == [3 / 11, 3 / 11]
    assert ratios(truth, "stage") == [3 / 11, 3 / 11]


def test_zb_h2_back_to_back_never_idles(tmp_path: Path) -> None:
    planting = Planting(schedule="zb-h2", stages=8, microbatches=16, iterations=3)

    for optimizer_ns in (-1, 0, 300_000):
        truth = plant(replace(planting, optimizer_ns=optimizer_ns), tmp_path)
        assert ratios(truth, "stage") == [0.0, 0.0, 0.0]
        assert ratios(truth, "period") == [0.0, 0.0, None]
        assert all(isclose(ratio or 0, 7 / 55) for ratio in ratios(truth, "schedule"))


def test_a_receive_inside_its_operation_is_bubble(tmp_path: Path) -> None:
    before = plant(Planting(transfer_ns=400_000), tmp_path)
    inside = plant(PLANTINGS["nested receives"], tmp_path)

    assert any(op.busy for op in inside.operations)
    assert not any(op.busy for op in before.operations)
    work = [
        sum(rank.compute_ns for rank in truth.iterations[0].ranks) for truth in (before, inside)
    ]
    assert work[0] == work[1]


def test_stray_kernels_count_only_where_nothing_else_runs(tmp_path: Path) -> None:
    busy = plant(PLANTINGS["stray, busy"], tmp_path)
    idle = plant(PLANTINGS["stray, idle"], tmp_path)

    assert busy.unattributed
    assert busy.iterations[0].bubble_low == busy.iterations[0].bubble_ratio
    low, ratio = idle.iterations[0].bubble_low["schedule"], idle.iterations[0].bubble_ratio
    assert low is not None
    assert ratio["schedule"] is not None
    assert low < ratio["schedule"]


def test_a_cut_iteration_has_no_ratio(tmp_path: Path) -> None:
    truth = plant(PLANTINGS["cut"], tmp_path)

    assert [iteration.complete for iteration in truth.iterations] == [True, False]
    assert truth.iterations[1].bubble_ratio["schedule"] is None
    open_ranges = rows_of(
        tmp_path / truth.files[0].path, 'SELECT COUNT(*) FROM NVTX_EVENTS WHERE "end" IS NULL'
    )
    assert open_ranges[0][0] > 0


def test_an_evaluation_goes_forward_only(tmp_path: Path) -> None:
    truth = plant(PLANTINGS["evaluation"], tmp_path)

    kinds = [iteration.kind for iteration in truth.iterations]
    assert kinds == ["training", "training", "evaluation", "training"]


def test_a_word_that_means_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="text is one of"):
        Planting(text="telepathy")


def test_a_nested_receive_without_communication_is_refused() -> None:
    """It would be in the truth, and not in the export."""
    with pytest.raises(ValueError, match="nested_receive_ns needs communication"):
        Planting(nested_receive_ns=50_000, communication=False)


def test_a_schedule_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no schedule is called '2f2b'"):
        plant(Planting(schedule="2f2b"), tmp_path)


def test_the_truth_reads_back(tmp_path: Path) -> None:
    truth = plant(PLANTINGS["nested receives"], tmp_path)

    assert read_truth(tmp_path / "truth.json").operations == truth.operations
    assert read_truth(tmp_path / "truth.json").iterations == truth.iterations


def test_the_same_planting_gives_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        plant(PLANTINGS["transfers"], tmp_path / folder)

    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_a_table_without_a_needed_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lacks"):
        write_export(tmp_path / "x.sqlite", {"StringIds": {"id": [1]}})


def test_the_layout_knows_what_is_needed() -> None:
    assert tables_of("CREATE TABLE T (\n    a INTEGER NOT NULL,\n    b TEXT\n);") == {
        "T": {"a": True, "b": False}
    }


def test_the_fixtures_can_be_written_again(tmp_path: Path) -> None:
    write_all(tmp_path)

    for name in RECIPES:
        files = sorted(path.name for path in (tmp_path / name).iterdir())
        assert files == sorted(path.name for path in (FIXTURES / name).iterdir())
        for file in files:
            assert content(tmp_path / name / file) == content(FIXTURES / name / file)


def content(path: Path) -> str:
    """Return the rows of an export, whichever library wrote it, or the text of another file."""
    if path.suffix != ".sqlite":
        return path.read_text(encoding="utf-8")
    database = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    text = "\n".join(database.iterdump())
    database.close()
    return text


@pytest.mark.parametrize("name", RECIPES)
def test_the_ratios_of_the_shipped_fixtures_are_their_truth(name: str) -> None:
    report = bubbleviz.analyze([FIXTURES / name])
    truth = read_truth(FIXTURES / name / "truth.json")

    assert len(report.iterations) == len(truth.iterations) > 1
    for own, true in zip(report.iterations, truth.iterations, strict=True):
        found = {ratio: own.ratios[ratio].value for ratio in true.bubble_ratio}
        assert found == pytest.approx(true.bubble_ratio, abs=1e-9)


def test_the_fixtures_are_small() -> None:
    total = sum(path.stat().st_size for path in FIXTURES.rglob("*") if path.is_file())

    assert total < 2_000_000


def test_the_command_line_takes_every_option(tmp_path: Path) -> None:
    arguments = ["--recipe", "zb-v", "--iterations", "1", "--no-barrier", "--text", "mixed"]

    assert main([str(tmp_path), *arguments]) == 0
    assert read_truth(tmp_path / "truth.json").planting["text"] == "mixed"
    assert read_truth(tmp_path / "truth.json").planting["barrier"] is False


def test_a_wrong_option_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main([str(tmp_path), "--servers", "9"])

    assert refused.value.code == 2
    assert "9 servers are too many for 4 ranks" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
