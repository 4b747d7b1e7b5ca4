"""Windows cover a part of the run, and their numbers agree with the numbers of the complete run."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.errors import InputError, UsageError
from bubbleviz.explain.windowed import OUTSIDE
from bubbleviz.model.phases import COUNTED
from bubbleviz.model.window import Window, parse_window
from bubbleviz.render.formats import list_renderers
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.planting import plant
from tests.planting.options import Planting
from tests.support.command_line import CommandLine

#: Iterations 7 to 12 of four ranks on two hosts.
#: The run contains an evaluation, stray kernels and late launches.
PLANTING = Planting(
    stages=4,
    microbatches=6,
    iterations=6,
    iteration_ranges=True,
    first_iteration=7,
    servers=2,
    jitter=0.1,
    transfer_ns=30_000,
    late_stage=1,
    late_ns=200_000,
    stray="busy",
    overhead=True,
    evaluation_at=3,
)
RUNS = {
    "1f1b": PLANTING,
    "interleaved": replace(PLANTING, schedule="interleaved-1f1b", chunks=2, microbatches=8),
    "zb-h2, iterations overlap": replace(
        PLANTING, schedule="zb-h2", microbatches=8, barrier=False, evaluation_at=-1
    ),
    "drifting hosts": replace(PLANTING, clock_error_ns=(0, 300_000), drift_ppb=(0, 20_000)),
}


@pytest.fixture(scope="module", params=RUNS)
def profiles(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("window")
    plant(RUNS[request.param], folder)
    return folder


@cache
def analyzed(folder: Path, window: str | None = None) -> Report:
    return bubbleviz.analyze(folder, window=window)


@pytest.mark.parametrize(
    ("text", "iterations", "times_ns"),
    [
        ("iteration:5-8", (5, 8), None),
        ("iteration:5", (5, 5), None),
        ("iteration: 05 - 8 ", (5, 8), None),
        ("time:1.5s-3s", None, (1_500_000_000, 3_000_000_000)),
        ("time:0ns-1ns", None, (0, 1)),
        ("time: 250us - 1.000001ms", None, (250_000, 1_000_001)),
        ("time:0.1µs-1s", None, (100, 1_000_000_000)),
        ("time:0.123456789s-1s", None, (123_456_789, 1_000_000_000)),
        ("time:2s-", None, (2_000_000_000, 1 << 62)),
        ("time:-2s", None, (0, 2_000_000_000)),
        ("time:-", None, (0, 1 << 62)),
        ("time:1s-999999999999s", None, (1_000_000_000, 1 << 62)),
    ],
)
def test_windows_are_written(
    text: str, iterations: tuple[int, int] | None, times_ns: tuple[int, int] | None
) -> None:
    assert parse_window(text) == Window(text, iterations, times_ns)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((t, "must have the form") for t in ("5-8", "iteration:", "iteration:a", "iteration:-5")),
        *(
            (t, "must have the form")
            for t in ("iteration:5,7", "time:1-3", "time:1s", "time:1e3s-2s")
        ),
        *((t, "ends before it begins") for t in ("iteration:8-5", "time:3s-1s", "time:1s-1s")),
        ("", "''"),
        ("time:1s--2s", "must have the form"),
        (f"iteration:{'9' * 80}", "…'"),
    ],
)
def test_an_invalid_window_is_refused(text: str, expected: str, cli: CommandLine) -> None:
    with pytest.raises(UsageError, match=r"--window ") as error:
        parse_window(text)
    assert expected in str(error.value)
    assert expected in cli.refused("analyze", "fixtures/1f1b", "--window", text, code=2)


@given(
    starts=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    lengths=st.lists(st.integers(0, 9), min_size=8, max_size=8),
    since=st.integers(0, 50),
    length=st.integers(1, 50),
)
def test_a_window_of_time_contains_what_begins_and_ends_in_it(
    starts: list[int], lengths: list[int], since: int, length: int
) -> None:
    times = [(start, start + own) for start, own in zip(starts, lengths, strict=False)]
    window = parse_window(f"time:{since}ns-{since + length}ns")
    in_window = set(range(since, since + length))
    expected = [bool(set(range(a, b))) and set(range(a, b)) <= in_window for a, b in times]
    touched = [bool(set(range(a, b)) & in_window) for a, b in times]
    start_ns, end_ns = np.array(times, np.int64).T
    names = [str(number) for number in range(len(times))]

    assert window.mask_overlapping(start_ns, end_ns).tolist() == touched
    if any(expected):
        assert window.mask_iterations(names, start_ns, end_ns).tolist() == expected
    else:
        with pytest.raises(InputError, match="no complete iteration lies in this window"):
            window.mask_iterations(names, start_ns, end_ns)


def test_a_window_outside_the_capture_is_refused_with_the_times_of_the_capture(
    cli: CommandLine,
) -> None:
    message = cli.refused("analyze", "fixtures/1f1b", "--window", "iteration:90-99", code=1)
    assert "--window iteration:90-99: there is no such iteration; the capture contains " in message
    message = cli.refused("analyze", "fixtures/1f1b", "--window", "time:90s-99s", code=1)
    assert "no complete iteration lies in this window; the capture contains iteration" in message
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        (
            "idle",
            "specify their name (bubbleviz idle --step NAME), or select by time, such as --window",
        ),
        ("nccl", "select by time, such as bubbleviz nccl --window"),
    ],
)
def test_a_window_without_steps_names_the_command_that_was_run(
    command: str, remedy: str, cli: CommandLine
) -> None:
    profile = "fixtures/1f1b/node0.sqlite"

    message = cli.refused(command, profile, "--window", "iteration:1-2", code=1)
    assert f"no ranges were recognized as steps; {remedy} time:1.5s-3s" in message


def test_a_window_of_everything_changes_nothing(profiles: Path) -> None:
    full_report = analyzed(profiles)
    for text in ("time:-", "iteration:0-99"):
        part = analyzed(profiles, text)
        for renderer in list_renderers():
            if renderer.name in ("json", "csv", "bubbles", "text", "svg", "chrome"):
                assert renderer.render(part, View()) == renderer.render(full_report, View())


@pytest.mark.parametrize("text", ["iteration:8-9", "iteration:7", "iteration:12", "iteration:9-99"])
def test_numbers_of_a_window_agree_with_the_complete_report(profiles: Path, text: str) -> None:
    full_report, part = analyzed(profiles), analyzed(profiles, text)
    first, last = parse_window(text).iterations or (0, 0)
    averaged_indices = [i.index for i in full_report.iterations if first <= int(i.name) <= last]

    assert [i.index for i in part.iterations] == list(range(len(averaged_indices)))
    for iteration, index in zip(part.iterations, averaged_indices, strict=True):
        # The primary ratio of a part may differ from that of the complete run.
        same_iteration = replace(
            iteration, index=index, bubble_ratio=full_report.iterations[index].bubble_ratio
        )
        assert same_iteration == full_report.iterations[index]
    averaged = [
        full_report.iterations[k] for k in averaged_indices if full_report.iterations[k].averaged
    ]
    assert part.summary.iterations == len(averaged)
    for name, spread in part.summary.bubble_ratio.items():
        values = [i.ratios[name].value for i in averaged]
        known_values = [value for value in values if value is not None]
        assert spread.n == len(known_values)
        assert spread.mean == (pytest.approx(np.mean(known_values)) if known_values else None)
    explanation, of_whole = part.explanation, full_report.explanation
    for name, idle_ns in explanation.causes.idle_ns.items():
        assert np.array_equal(idle_ns, of_whole.causes.idle_ns[name][averaged_indices])
    # If the primary ratios differ, exposed time and kernels belong to different windows.
    same_ratio = part.bubbles.ratio == full_report.bubbles.ratio
    compared = vars(explanation.communication) if same_ratio else ("wait_ns", "transfer_ns")
    for name in compared:
        column = getattr(explanation.communication, name)
        assert np.array_equal(column, vars(of_whole.communication)[name][averaged_indices])
    rest = [note for note in part.limitations if note.what == OUTSIDE]
    assert [note.count for note in rest] == [len(full_report.iterations) - len(averaged_indices)]


@pytest.mark.parametrize("text", ["iteration:8-9", "iteration:12"])
def test_tables_of_a_window_are_rows_of_the_complete_tables(profiles: Path, text: str) -> None:
    full_report, part = analyzed(profiles), analyzed(profiles, text)
    first, last = parse_window(text).iterations or (0, 0)
    iteration_indices = [i.index for i in full_report.iterations if first <= int(i.name) <= last]
    rows = np.flatnonzero(np.isin(full_report.operations.iteration, iteration_indices))

    assert len(rows) == len(part.operations)
    for name in full_report.operations.column_names():
        column = getattr(full_report.operations, name)[rows]
        column = column - iteration_indices[0] if name == "iteration" else column
        assert np.array_equal(getattr(part.operations, name), column), name

    def told(report: Report, of: list[int]) -> list[tuple[object, ...]]:
        bubbles = report.bubbles.take(np.isin(report.bubbles.iteration, of))
        operations = report.operations
        numbers = [bubbles.rank, bubbles.interval, bubbles.start_ns, bubbles.end_ns, bubbles.cause]
        numbers += [bubbles.iteration - of[0], bubbles.host_call, bubbles.host_range]
        for row in (bubbles.before, bubbles.after, bubbles.peer_operation):
            held = np.isin(np.append(operations.iteration, -1)[row], of)
            numbers += [np.where(held, np.append(operations.host_start_ns, 0)[row], -1)]
        return sorted(zip(*(column.tolist() for column in numbers), strict=True))

    if full_report.headline == part.headline:
        assert told(part, [i.index for i in part.iterations]) == told(
            full_report, iteration_indices
        )
    of_busy = np.isin(full_report.busy.operation, rows)
    assert np.array_equal(part.busy.start_ns, full_report.busy.start_ns[of_busy])
    assert np.array_equal(
        part.operations.host_start_ns[part.busy.operation],
        full_report.operations.host_start_ns[full_report.busy.operation[of_busy]],
    )
    receives, all_receives = part.explanation.receives, full_report.explanation.receives
    of_window = np.isin(all_receives.operation, rows)
    assert receives.transfer_ns.tolist() == all_receives.transfer_ns[of_window].tolist()
    starts = part.unattributed.start_ns
    assert len(starts) == 0 or starts.min() >= min(i.start_ns for i in part.iterations)


def test_the_typical_iteration_is_in_the_window(profiles: Path) -> None:
    full_report, part = analyzed(profiles), analyzed(profiles, "iteration:11")
    typical = part.typical_iteration()
    assert typical is not None
    assert typical.name == "11"
    path = part.explanation.path
    if path is None:
        assert part.explanation.no_path_reason or typical.ratios["schedule"].value is None
    else:
        assert path.iteration == 0
        assert len(path.slack_ns) == len(path.replayed) > 0
        assert set(part.operations.iteration[path.replayed].tolist()) == {0}
        assert set(part.operations.iteration[path.operations].tolist()) == {0}
    for row, _ in part.explanation.phase_times.stragglers:
        assert part.operations.phase[row] in COUNTED
    for kind in part.explanation.phase_times.kinds:
        assert kind.n <= RUNS["interleaved"].microbatches
    assert part.schedule is not None
    assert full_report.schedule is not None
    assert part.schedule.name == full_report.schedule.name
    assert set(part.schedule.judged) <= {0}


def test_a_window_of_time_equals_the_window_of_its_iterations(profiles: Path) -> None:
    full_report = analyzed(profiles)
    eight, nine = full_report.iterations[1], full_report.iterations[2]
    exact = f"time:{eight.start_ns}ns-{max(eight.end_ns, nine.end_ns)}ns"
    names = [i.name for i in analyzed(profiles, exact).iterations]
    assert names[:2] == ["8", "9"]

    short = analyzed(profiles, f"time:{eight.start_ns}ns-{nine.end_ns - 1}ns")
    assert "9" not in [i.name for i in short.iterations]
    text = next(note.reason for note in short.limitations if note.what == OUTSIDE)
    assert "that it only partly covers" in " ".join(text.split())


def test_the_first_iterations_of_the_window_are_skipped(profiles: Path) -> None:
    report = bubbleviz.analyze(profiles, window="iteration:9-12", skip=2)

    assert [i.name for i in report.iterations if i.averaged] == [
        i.name for i in analyzed(profiles).iterations if i.averaged and int(i.name) > 10
    ]


def test_an_iteration_outside_the_window_cannot_be_drawn(profiles: Path, cli: CommandLine) -> None:
    options = ["--window", "iteration:9-10", "--iteration", "11", "--svg", "-"]
    message = cli.refused("analyze", str(profiles), *options, code=2)
    assert "the capture contains iterations 9 to 10" in message
