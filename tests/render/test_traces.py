"""Traces for viewers contain the report, to the nanosecond and properly nested."""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import bubbleviz
from bubbleviz.cli.app import main
from bubbleviz.errors import ProfileError
from bubbleviz.model.phases import COMMUNICATION, COMPUTE, Phase
from bubbleviz.render.formats import get_renderer
from bubbleviz.render.json_document import make_document
from bubbleviz.render.trace.trace import ALL_RANKS
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.planting.options import Planting
from tests.support import strategies
from tests.support.drawn_reports import MS, Op, make_report
from tests.support.hostile_profiles import CONVENTION, DIRECTING, HOSTILE, hostile_profile
from tests.support.nsys_exports import C, K, R, write_profile
from tests.support.places import CHECKOUT
from tests.support.planted_runs import analyze_planting
from tests.support.trace_files import Loaded, Slice, read_chrome

CHROME = get_renderer("chrome").render

ROOT = CHECKOUT
(SQL,) = re.findall(
    r"```sql\n(.*?)```",
    (ROOT / "bubbleviz" / "guides" / "outputs.md").read_text("utf-8"),
    re.DOTALL,
)
US = 1_000
BASE = Planting(iterations=2, kernels=2, transfer_ns=20 * US)
RUNS = {
    "1f1b": BASE,
    "zb-h1, iterations overlap": replace(BASE, schedule="zb-h1", microbatches=8, jitter=0.1),
    "zb-v": replace(BASE, schedule="zb-v", autograd="named"),
    "interleaved": replace(BASE, schedule="interleaved-1f1b"),
    "dualpipe-v": replace(BASE, schedule="dualpipev", microbatches=8, iterations=1),
    "two servers": replace(BASE, servers=2, jitter=0.05, clock_error_ns=(0, 3_000_000)),
    "all causes": replace(
        BASE, late_stage=1, late_ns=200 * US, overhead=True, barrier=True, stray="idle"
    ),
    "two streams": replace(BASE, schedule="zb-h2", microbatches=8, two_streams=True),
    "cut": replace(BASE, iterations=3, cut_ns=70_000 * US),
}


def forward(start: int, end: int, rank: int = 0) -> Op:
    return Op(rank, Phase.F, 0, start, end)


def load_checked_trace(report: Report, *, explained: bool = True) -> Loaded:
    """Check a report's trace as all traces are checked, and return its content.

    Args:
        report: Any report.
        explained: Whether the report explains its bubbles. Reports assembled by tests do not.
    """
    trace = read_chrome(CHROME(report, View()))
    base_ns = trace.facts["base_ns"]
    assert_nothing_overlaps(trace.slices)
    assert_flows_have_two_ends(trace.slices)
    assert_operations(report, trace, base_ns)
    if explained:
        assert_bubbles(report, trace, base_ns)
    assert_counters(report, trace, base_ns)
    return trace


def assert_nothing_overlaps(slices: Sequence[Slice]) -> None:
    """Check that slices on the same lane of a track do not overlap."""
    lanes: dict[tuple[int, str, int], list[Slice]] = {}
    for slice_ in slices:
        assert 0 <= slice_.start_ns <= slice_.end_ns
        lanes.setdefault((slice_.process, slice_.track, slice_.lane), []).append(slice_)
    for lane in lanes.values():
        lane.sort(key=lambda slice_: (slice_.start_ns, slice_.end_ns))
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(lane))


def assert_flows_have_two_ends(slices: Sequence[Slice]) -> None:
    """Check that each flow links two operations of the same microbatch, forward in time."""
    leaving = {flow: slice_ for slice_ in slices for flow in slice_.leaving}
    entering = {flow: endpoint for endpoint in slices for flow in endpoint.entering}
    assert len(leaving) == sum(len(endpoint.leaving) for endpoint in slices)
    assert len(entering) == sum(len(endpoint.entering) for endpoint in slices)
    assert leaving.keys() == entering.keys()
    for flow, source in leaving.items():
        target = entering[flow]
        assert source.start_ns < target.start_ns
        assert source.category == target.category == "operation"
        assert source.arguments["iteration"] == target.arguments["iteration"]
        assert list_microbatches(source) & list_microbatches(target)


def list_microbatches(operation: Slice) -> set[int]:
    """Return the one or two microbatches of an operation."""
    names = ("microbatch", "second_microbatch")
    return {operation.arguments[name] for name in names if name in operation.arguments}


def assert_operations(report: Report, trace: Loaded, base_ns: int) -> None:
    """Check that the trace contains exactly the operations of the report that have a span."""
    operations = report.operations
    for category, phases in (("operation", COMPUTE), ("communication", COMMUNICATION)):
        has_phase = (operations.has_span == 1) & np.isin(operations.phase, phases)
        selected = operations.take(has_phase)
        expected = Counter(
            zip(
                (selected.rank + 1).tolist(),
                [Phase(phase).label for phase in selected.phase.tolist()],
                selected.microbatch.tolist(),
                selected.chunk.tolist(),
                (selected.start_ns - base_ns).tolist(),
                (selected.end_ns - base_ns).tolist(),
                selected.kernels.tolist(),
                selected.host_start_ns.tolist(),
                strict=True,
            )
        )
        assert expected == Counter(
            (
                slice_.process,
                slice_.arguments["phase"],
                slice_.arguments.get("microbatch", -1),
                slice_.arguments.get("chunk", -1),
                slice_.start_ns,
                slice_.end_ns,
                slice_.arguments["kernels"],
                slice_.arguments["host_start_ns"],
            )
            for slice_ in trace.of(category)
        )


def assert_bubbles(report: Report, trace: Loaded, base_ns: int) -> None:
    """Check that bubbles add up to the values in the JSON, for each rank, iteration and cause."""
    ratio = report.bubbles.ratio
    total_ns: Counter[tuple[int, int, str]] = Counter()
    for slice_ in trace.of("bubble"):
        assert slice_.arguments["ratio"] == ratio
        assert slice_.arguments["idle_ns"] == slice_.end_ns - slice_.start_ns
        total_ns[slice_.process - 1, slice_.arguments["iteration"], slice_.name] += (
            slice_.end_ns - slice_.start_ns
        )
    windows = {(w.process - 1, w.arguments["iteration"]): w for w in trace.of("iteration")}
    reported = [
        (iteration["index"], rank, row, iteration["ranks"])
        for iteration in make_document(report)["iterations"]
        if ratio in iteration["ranks"]["bubble_ns"]
        for row, rank in enumerate(iteration["ranks"]["rank"])
    ]
    assert windows.keys() == {(rank, index) for index, rank, *_ in reported}
    for index, rank, row, columns in reported:
        window = windows[rank, index]
        account = next(
            rank_iteration.accounts[ratio]
            for rank_iteration in report.iterations[index].ranks
            if rank_iteration.rank == rank
        )
        assert (window.start_ns, window.end_ns) == (
            account.start_ns - base_ns,
            account.end_ns - base_ns,
        )
        assert window.arguments["bubble_ns"] == columns["bubble_ns"][ratio][row]
        assert window.arguments["window_ns"] == window.end_ns - window.start_ns
        assert window.arguments.get("bubble_ratio") == columns["bubble_ratio"][ratio][row]
        cause_ns = {cause: ns[row] for cause, ns in columns["cause_ns"][ratio].items()}
        causes = {cause: total_ns.pop((rank, index, cause), 0) for cause in cause_ns}
        assert causes == cause_ns
        assert sum(causes.values()) == columns["bubble_ns"][ratio][row]
    assert not total_ns


def assert_counters(report: Report, trace: Loaded, base_ns: int) -> None:
    """Check that counters contain the bubble ratios of each rank and of all ranks."""
    ratio = report.bubbles.ratio
    expected: dict[int, list[tuple[int, float]]] = {}
    everyone = len(report.ranks) + 1
    for iteration in report.iterations:
        accounted = [rank for rank in iteration.ranks if ratio in rank.accounts]
        for rank_iteration in accounted:
            value = rank_iteration.bubble_ratio[ratio]
            if value is not None:
                start_ns = rank_iteration.accounts[ratio].start_ns - base_ns
                expected.setdefault(rank_iteration.rank + 1, []).append((start_ns, value))
        value = iteration.ratios[ratio].value if ratio in iteration.ratios else None
        if value is not None and accounted:
            start_ns = (
                min(rank_iteration.accounts[ratio].start_ns for rank_iteration in accounted)
                - base_ns
            )
            expected.setdefault(everyone, []).append((start_ns, value))
    assert {n: sorted(samples) for n, samples in trace.counters.items()} == {
        n: sorted(samples) for n, samples in expected.items()
    }


def test_an_empty_report_has_a_trace() -> None:
    trace = load_checked_trace(make_report([]), explained=False)

    assert trace.processes == [(1, ALL_RANKS)]
    assert trace.slices == []
    assert trace.counters == {}
    assert trace.facts["base_ns"] == 0


def test_overlapping_operations_keep_their_times() -> None:
    ops = [forward(0, 10), forward(3, 12), forward(10, 10), forward(12, 12), forward(12, 15)]
    trace = load_checked_trace(make_report(ops), explained=False)

    times = [(operation.start_ns, operation.end_ns) for operation in trace.of("operation")]
    assert times == [(op.start, op.end) for op in ops]
    assert {slice_.lane for slice_ in trace.of("operation")} == {0, 1}


@pytest.mark.parametrize("start", [-1, -(10**15), 2**53, 2**62])
def test_negative_and_huge_times_are_relative_to_a_recorded_base(start: int) -> None:
    trace = load_checked_trace(
        make_report([forward(start, start + 1), forward(start + 1, start + 1001)]), explained=False
    )

    assert trace.facts["base_ns"] == start
    times = [(operation.start_ns, operation.end_ns) for operation in trace.of("operation")]
    assert times == [(0, 1), (1, 1001)]


def test_microseconds_are_written_exactly() -> None:
    text = CHROME(make_report([forward(2**53 - 1_000_002, 2**53 - 1)]), View())

    assert '"ts":9007199253740.990,"dur":1000.001' in text


def test_a_microbatch_flows_to_the_last_stage_and_back() -> None:
    trace = load_checked_trace(analyze_planting(RUNS["1f1b"]))
    stages = len(trace.processes) - 1
    slice_entered_by = {flow: slice_ for slice_ in trace.slices for flow in slice_.entering}
    starts = [
        operation
        for operation in trace.of("operation", process=1)
        if operation.arguments["phase"] == "F" and operation.arguments["iteration"] == 0
    ]

    assert len(starts) == BASE.microbatches
    for start in starts:
        path, current = [(start.process, start.name)], start
        while current.leaving:
            (flow,) = current.leaving
            current = slice_entered_by[flow]
            path.append((current.process, current.name))
        number = start.arguments["microbatch"]
        forwards = [(stage, f"F {number}") for stage in range(1, stages + 1)]
        backwards = [(stage, f"BW {number}") for stage in range(stages, 0, -1)]
        assert path in (
            forwards + backwards,
            forwards + [(s, n.replace("BW", "B")) for s, n in backwards],
        )


@pytest.mark.parametrize("name", ["zb-v", "interleaved"])
def test_a_microbatch_passes_all_chunks(name: str) -> None:
    trace = load_checked_trace(analyze_planting(RUNS[name]))
    operations = [
        operation
        for operation in trace.of("operation")
        if operation.arguments.get("iteration") == 0
    ]
    forwards = [slice_ for slice_ in operations if slice_.arguments["phase"] == "F"]
    first = [slice_ for slice_ in forwards if not slice_.entering]
    stages = len({(slice_.process, slice_.arguments["chunk"]) for slice_ in forwards})

    # Each forward after the first stage follows a forward on the previous stage.
    assert stages > len(trace.processes) - 1
    assert len(first) * stages == len(forwards)


def test_no_flow_goes_back_in_time() -> None:
    report = analyze_planting(RUNS["1f1b"])
    early = np.where(report.operations.rank == 1, 10**12, 0)
    operations = report.operations.replace_columns(
        start_ns=report.operations.start_ns - early, end_ns=report.operations.end_ns - early
    )
    trace = load_checked_trace(replace(report, operations=operations), explained=False)
    entered = {slice_.process for slice_ in trace.slices if slice_.entering}
    left = {source.process for source in trace.slices if source.leaving}

    # Inputs of rank 1 would flow backward in time, and its outputs flow forward.
    assert 2 not in entered
    assert left >= {2, 3}
    assert trace.facts["base_ns"] < 0


def test_bubbles_name_the_awaited_operation() -> None:
    trace = load_checked_trace(analyze_planting(RUNS["all causes"]))
    waits = [bubble for bubble in trace.of("bubble") if bubble.name == "dependency"]

    labels = {name for _, name in trace.processes}
    assert waits
    assert all(wait.arguments["peer"] in labels for wait in waits)
    assert all({"before", "after", "peer_operation"} <= own.arguments.keys() for own in waits)


def test_bubbles_say_what_the_host_did(tmp_path: Path) -> None:
    kernels = [K(1 * MS, 2 * MS, 1), K(6 * MS, 7 * MS, 2), K(9 * MS, 10 * MS, 3)]
    calls = [
        C(1, 5_000, 1),
        C(2 * MS, 5 * MS + 800_000, 77, name="cudaStreamSynchronize_v3020"),
        C(6 * MS - 8_000, 6 * MS - 3_000, 2),
        C(9 * MS - 8_000, 9 * MS - 3_000, 3),
    ]
    ranges = [
        R(0, 10_000, "F0.0.0"),
        R(6 * MS - 9_000, 6 * MS, "F1.0.0"),
        R(7 * MS, 9 * MS - 10_000, "=cmd|' /C calc'!A0 <script>"),
        R(7 * MS + 1, 7 * MS + 30_000, "short"),
        R(9 * MS - 9_000, 9 * MS, "B0.0.0"),
    ]
    report = bubbleviz.analyze(write_profile(tmp_path, kernels, calls, ranges))
    trace = load_checked_trace(report)
    hosts = [bubble.arguments for bubble in trace.of("bubble") if bubble.name == "host"]

    assert [host["after"] for host in hosts] == ["F1", "BW0"]
    assert [own.get("host_call") for own in hosts] == ["cudaStreamSynchronize", None]
    assert [own.get("host_range") for own in hosts] == [None, "=cmd|' /C calc'!A0 <script>"]


@settings(
    max_examples=int(os.environ.get("BUBBLEVIZ_EXAMPLES", "40")),
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(strategies.soups() | strategies.schedules())
def test_traces_contain_everything_of_a_random_profile(rows: strategies.Rows) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = rows.write(Path(folder))
        try:
            report = bubbleviz.analyze([path], convention="zero-bubble")
        except ProfileError:
            return
    load_checked_trace(report)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_names_are_inert(text: str, tmp_path: Path) -> None:
    convention_file = tmp_path / "own.toml"
    convention_file.write_text(CONVENTION, encoding="utf-8")
    path = hostile_profile(tmp_path, text)
    json_file = tmp_path / "x.json"
    arguments = ("analyze", str(path), "--convention", str(convention_file))
    assert main([*arguments, "--chrome", str(json_file)]) == 0
    content = json_file.read_text("ascii")
    trace = read_chrome(content)

    assert "<" not in content
    assert all(line.isprintable() for line in content.splitlines())
    assert trace.of("operation")
    for slice_ in trace.slices:
        for value in (slice_.name, *slice_.arguments.values()):
            if isinstance(value, str):
                assert not DIRECTING.intersection(value)
                assert "\n" not in value
                assert len(value) <= 200


def measure_idle_fractions(report: Report) -> list[tuple[str, float]]:
    """Return (label, idle fraction over all iterations) of each rank."""
    ratio, ratio_of_label = report.bubbles.ratio, []
    for rank in report.ranks:
        accounts = [
            rank_iteration.accounts[ratio]
            for iteration in report.iterations
            for rank_iteration in iteration.ranks
            if rank_iteration.rank == rank.index and ratio in rank_iteration.accounts
        ]
        bubble = sum(account.bubble_ns for account in accounts)
        ratio_of_label.append((rank.label, bubble / sum(account.window_ns for account in accounts)))
    return ratio_of_label


def create_tables(trace: Loaded) -> sqlite3.Connection:
    """Return the tables that the trace processor would create from a trace."""
    database = sqlite3.connect(":memory:")
    database.executescript(
        """
        CREATE TABLE process (upid INTEGER, pid INTEGER, name TEXT);
        CREATE TABLE thread (utid INTEGER, upid INTEGER, name TEXT);
        CREATE TABLE thread_track (id INTEGER, utid INTEGER);
        CREATE TABLE slice (track_id INTEGER, ts INTEGER, dur INTEGER, category TEXT, name TEXT);
        """
    )
    upids = {number: upid for upid, (number, _) in enumerate(trace.processes, 1)}
    database.executemany(
        "INSERT INTO process VALUES (?, ?, ?)",
        [(upids[number], number, name) for number, name in trace.processes],
    )
    tracks: dict[tuple[int, str, int], int] = {}
    for slice_ in trace.slices:
        track = tracks.setdefault((slice_.process, slice_.track, slice_.lane), len(tracks))
        database.execute(
            "INSERT INTO slice VALUES (?, ?, ?, ?, ?)",
            (track, slice_.start_ns, slice_.end_ns - slice_.start_ns, slice_.category, slice_.name),
        )
    # Each lane of the file is a thread, and each thread has one track.
    database.executemany(
        "INSERT INTO thread VALUES (?, ?, ?)",
        [(track, upids[process], name) for (process, name, _), track in tracks.items()],
    )
    database.executemany(
        "INSERT INTO thread_track VALUES (?, ?)", [(track, track) for track in tracks.values()]
    )
    return database


@pytest.mark.parametrize("name", RUNS)
def test_traces_contain_a_planted_run_and_the_query_in_the_guide_gives_its_ratios(
    name: str,
) -> None:
    report = analyze_planting(RUNS[name])
    trace = load_checked_trace(report)
    with closing(create_tables(trace)) as database:
        rows = database.execute(SQL).fetchall()

    assert trace.processes[1:] == [(rank.index + 1, rank.label) for rank in report.ranks]
    assert trace.of("iteration")
    assert trace.of("bubble")
    assert sum(len(slice_.leaving) for slice_ in trace.slices) > 0

    assert [rank for rank, _ in rows] == [rank for rank, _ in measure_idle_fractions(report)]
    assert [ratio for _, ratio in rows] == pytest.approx(
        [ratio for _, ratio in measure_idle_fractions(report)]
    )
