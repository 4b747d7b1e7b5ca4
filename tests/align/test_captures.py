"""Several captures of one process are analyzed as one run that pauses between them."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.errors import MismatchError
from tests.planting import Planting, plant
from tests.planting.truth import Truth
from tests.support.captures import cut_captures
from tests.support.command_line import CommandLine
from tests.support.edited_databases import edit_database
from tests.support.torch_traces import write_traces

_RUN = Planting(
    stages=3,
    microbatches=4,
    iterations=6,
    kernels=1,
    jitter=0.1,
    barrier=True,
    files="rank",
    devices="zero",
)
_CAPTURES = range(2), range(3, 6)


@dataclass(frozen=True)
class CutRun:
    """A planted run, and the exports of its captures.

    Attributes:
        truth: The planted run.
        folder: Directory of the exports.
        captures: Exports of each capture.
    """

    truth: Truth
    folder: Path
    captures: list[list[Path]]


def write_captures(
    folder: Path,
    planting: Planting = _RUN,
    captures: Sequence[range] = _CAPTURES,
    moved_ns: Sequence[int] = (),
) -> CutRun:
    """Plant a run, and write several captures of its processes."""
    truth = plant(planting, folder / "whole")
    output = folder / "captures"
    files = cut_captures(truth, folder / "whole", captures, output, moved_ns=moved_ns)
    return CutRun(truth, output, files)


def check_iterations(report: bubbleviz.Report, run: CutRun) -> None:
    """Check the ratios of all captured iterations. There is no period across a pause."""
    captured = [k for capture in _CAPTURES for k in capture]
    last = {capture[-1] for capture in _CAPTURES}
    assert [iteration.complete for iteration in report.iterations] == [True] * len(captured)
    for iteration, k in zip(report.iterations, captured, strict=True):
        for name, true in run.truth.iterations[k].bubble_ratio.items():
            expected = None if name == "period" and k in last else true
            assert iteration.ratios[name].value == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"iteration_ranges": True},
        {"servers": 3, "clock_error_ns": (0, 700_000, -300_000)},
        {"servers": 3, "iteration_ranges": True, "clock_error_ns": (0, 700_000, -300_000)},
        {"files": "server", "devices": "local"},
    ],
    ids=str,
)
def test_captures_are_one_run_with_pauses(changes: dict[str, object], tmp_path: Path) -> None:
    run = write_captures(tmp_path, replace(_RUN, **changes))  # type: ignore[arg-type]
    report = bubbleviz.analyze(run.folder)

    check_iterations(report, run)
    assert len(report.ranks) == 3
    assert len(report.profiles) == sum(map(len, run.captures))
    (note,) = (n for n in report.limitations if n.what == "time between captures")
    assert "captured 2 times each" in note.reason
    assert len(report.pauses) == note.count == 3


def test_the_order_of_files_does_not_matter(tmp_path: Path) -> None:
    run = write_captures(tmp_path)
    (first, *others), later = run.captures
    report = bubbleviz.analyze([*reversed(later), *others, first])

    check_iterations(report, run)


@pytest.mark.parametrize("identity", ["host", "rank", "file name"])
def test_traces_of_a_repeated_schedule(identity: str, tmp_path: Path) -> None:
    run = write_captures(tmp_path)
    folder = tmp_path / "traces"
    folder.mkdir()
    for number, files in enumerate(run.captures):
        for rank, export in enumerate(files):
            (trace,) = write_traces(export, tmp_path)
            document = json.loads(gzip.decompress(trace.read_bytes()))
            if identity != "host":
                del document["host_name"]
            if identity == "rank":
                document["distributedInfo"] = {"rank": rank, "world_size": 3}
            name = f"node0_{rank}.{1_700_000_000_000_000_000 + number}.pt.trace.json"
            (folder / name).write_text(json.dumps(document))

    report = bubbleviz.analyze(folder)

    assert len(report.ranks) == 3
    check_iterations(report, run)


@pytest.mark.parametrize("lacking", [0, 1, 2])
@pytest.mark.parametrize("n_servers", [1, 3])
def test_a_capture_that_one_process_lacks(n_servers: int, lacking: int, tmp_path: Path) -> None:
    captures = [range(2), range(3, 6), range(7, 10)]
    run = write_captures(tmp_path, replace(_RUN, servers=n_servers, iterations=10), captures)
    run.captures[lacking][1].unlink()
    report = bubbleviz.analyze(run.folder)

    assert len(report.ranks) == 3
    captured = [(k, number) for number, capture in enumerate(captures) for k in capture]
    for iteration, (k, number) in zip(report.iterations, captured, strict=True):
        ratio = run.truth.iterations[k].bubble_ratio["schedule"]
        expected = None if number == lacking else pytest.approx(ratio, abs=1e-9)
        assert iteration.ratios["schedule"].value == expected


def test_iterations_that_a_pause_cuts_off_are_incomplete(tmp_path: Path) -> None:
    run = write_captures(tmp_path)
    for export in run.captures[0]:
        # The capture ends in the middle of iteration 1, 16 ms after the start.
        tables = "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL"
        edit_database(export, *(f"DELETE FROM {table} WHERE end > 30000000" for table in tables))
    report = bubbleviz.analyze(run.folder)

    assert [iteration.complete for iteration in report.iterations] == [True, False, *[True] * 3]
    assert [iteration.kind for iteration in report.iterations] == ["training"] * 5


def test_forward_passes_are_one_window_per_capture(tmp_path: Path) -> None:
    planting = replace(
        _RUN,
        inference=True,
        optimizer_ns=-1,
        iterations=12,
        microbatches=1,
        iteration_ranges=True,
        jitter=0.0,
    )
    run = write_captures(tmp_path, planting, [range(4), range(8, 12)])
    report = bubbleviz.analyze(run.folder)
    single = [bubbleviz.analyze(files) for files in run.captures]

    ratios = [iteration.ratios["schedule"].value for iteration in report.iterations]
    assert ratios == [one.iterations[0].ratios["schedule"].value for one in single]


@pytest.mark.parametrize("n_servers", [1, 3])
def test_captures_minutes_apart_are_refused_with_commands(
    n_servers: int, tmp_path: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    planting = replace(_RUN, servers=n_servers)
    monkeypatch.chdir(tmp_path)
    run = write_captures(Path(), planting, moved_ns=(0, 100_000_000_000))

    message = cli.refused("analyze", run.folder)

    assert "two captures of process 2001, 100 s apart; analyze each capture" in message
    assert "separately: (1) bubbleviz analyze " in message
    commands = re.findall(r"\(\d\) bubbleviz (analyze [^\s,;]+)", message)
    assert [sorted(Path().glob(command.split()[1])) for command in commands] == run.captures
    assert cli.printed(*commands[1].split())
    check_iterations(bubbleviz.analyze(run.folder, align="causal"), run)


def test_clocks_that_differ_by_more_than_a_pause(tmp_path: Path) -> None:
    """The second capture of each host has the same time as the first capture of another one."""
    run = write_captures(tmp_path, replace(_RUN, servers=3), moved_ns=(0, 100_000_000_000))
    for files in run.captures:
        shift = "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + 100057000000"
        edit_database(files[2], shift)

    with pytest.raises(MismatchError) as error:
        bubbleviz.analyze(run.folder)

    paths = [f"{run.folder}/rank*.{number}.sqlite" for number in (1, 2)]
    assert f"(1) bubbleviz analyze {paths[0]}, (2) bubbleviz analyze {paths[1]};" in str(
        error.value
    )


def test_two_runs_of_the_same_iterations_are_refused(tmp_path: Path) -> None:
    planting = replace(_RUN, iteration_ranges=True)
    run = write_captures(tmp_path, planting, [range(2), range(2)], (0, 5_000_000_000))

    with pytest.raises(MismatchError, match="both contain process 2001 and iteration 0, so"):
        bubbleviz.analyze(run.folder)


def test_each_capture_of_a_process_can_be_listed(tmp_path: Path) -> None:
    """The names of the files of a capture have no common pattern."""
    run = write_captures(tmp_path, moved_ns=(0, 100_000_000_000))
    files = [
        path.rename(path.with_name(f"{name}.sqlite"))
        for path, name in zip(chain(*run.captures), "fbdaec", strict=True)
    ]

    with pytest.raises(MismatchError) as error:
        bubbleviz.analyze(files)

    first, second = (" ".join(map(str, capture)) for capture in (files[:3], files[3:]))
    assert f"(1) bubbleviz analyze {first}, (2) bubbleviz analyze {second};" in str(error.value)


@pytest.mark.parametrize("has_host", [True, False])
def test_traces_without_a_start_time_are_grouped_by_name(has_host: bool, tmp_path: Path) -> None:
    run = write_captures(tmp_path)
    folder = tmp_path / "traces"
    folder.mkdir()
    for number, files in enumerate(run.captures):
        for rank, export in enumerate(files):
            (trace,) = write_traces(export, tmp_path)
            document = json.loads(gzip.decompress(trace.read_bytes()))
            document["distributedInfo"] = {"rank": rank, "world_size": 3}
            del document["baseTimeNanoseconds"]
            if not has_host:
                del document["host_name"]
            (folder / f"rank{rank}.{number}.pt.trace.json").write_text(json.dumps(document))

    with pytest.raises(MismatchError, match="but do not record when they started") as error:
        bubbleviz.analyze(folder)

    commands = [f"bubbleviz analyze {folder}/rank*.{n}.pt.trace.json" for n in range(2)]
    assert all(command in str(error.value) for command in commands)


def test_two_runs_of_the_same_ranks_are_refused(tmp_path: Path) -> None:
    run = write_captures(tmp_path)
    folder = tmp_path / "traces"
    folder.mkdir()
    for number, files in enumerate(run.captures):
        for rank, export in enumerate(files):
            (trace,) = write_traces(export, tmp_path)
            text = gzip.decompress(trace.read_bytes()).decode()
            pid = re.search(r'"pid": (2\d{3})', text)
            assert pid is not None
            document = json.loads(text.replace(f'"pid": {pid[1]}', f'"pid": {number + 1}{pid[1]}'))
            document["distributedInfo"] = {"rank": rank, "world_size": 3}
            (folder / f"rank{rank}.run{number}.pt.trace.json").write_text(json.dumps(document))

    with pytest.raises(MismatchError, match="both contain rank 0, in two processes") as error:
        bubbleviz.analyze(folder)

    commands = [f"bubbleviz analyze {folder}/rank*.run{n}.pt.trace.json" for n in range(2)]
    assert all(command in str(error.value) for command in commands)


def test_captures_at_the_same_time_are_refused(tmp_path: Path) -> None:
    run = write_captures(tmp_path, captures=[range(2), range(1, 3)])

    with pytest.raises(MismatchError, match="of the same host at the same time, so they are two"):
        bubbleviz.analyze(run.folder)
