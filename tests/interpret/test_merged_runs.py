"""A file with two runs that have equal ranks and iterations is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import bubbleviz
from bubbleviz.errors import ProfileError
from tests.support.notes import list_limitation_subjects

STAGES, MICROBATCHES, STEPS = 2, 4, 3


class Row(NamedTuple):
    """An operation of a run, with times in nanoseconds."""

    iteration: int
    rank: int
    phase: str
    microbatch: int
    start_ns: int
    end_ns: int


def _run(
    begin_ns: int,
    unit_ns: int,
    passes: int = 1,
    steps: int = STEPS,
    microbatches: int = MICROBATCHES,
) -> list[Row]:
    """Return a GPipe run that repeats all microbatches several times in each iteration."""
    rows: list[Row] = []
    for step in range(steps):
        for number in range(passes):
            base_ns = begin_ns + (step * passes + number) * (8 + 3 * microbatches) * unit_ns
            for rank in range(STAGES):
                for microbatch in range(microbatches):
                    forward_ns = base_ns + (rank + microbatch) * unit_ns
                    turn = microbatches + 2 + 2 * (1 - rank + microbatch)
                    backward_ns = base_ns + turn * unit_ns
                    rows += (
                        Row(step, rank, "F", microbatch, forward_ns, forward_ns + unit_ns),
                        Row(step, rank, "B", microbatch, backward_ns, backward_ns + 2 * unit_ns),
                    )
    return rows


def _table(path: Path, rows: Sequence[Row]) -> Path:
    lines = [",".join(Row._fields), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def _event_list(
    path: Path, runs: Sequence[Sequence[Row]], *, complete_events: bool = False
) -> Path:
    """Write runs as tracer events. Ranks become processes, and runs become threads."""
    events: list[dict[str, Any]] = []
    for thread, rows in enumerate(runs):
        for row in rows:
            name = {"F": "forward", "B": "backward"}[row.phase]
            location = {"name": name, "pid": row.rank, "tid": thread}
            args = {"iteration": row.iteration, "microbatch": row.microbatch, "pp_rank": row.rank}
            start_us, end_us = row.start_ns / 1000, row.end_ns / 1000
            if complete_events:
                span = {"ph": "X", "ts": start_us, "dur": end_us - start_us}
                events.append({**location, **span, "args": args})
            else:
                events.append({**location, "ph": "B", "ts": start_us, "args": {"iteration": 0}})
                events.append({**location, "ph": "E", "ts": end_us, "args": args})
    events.sort(key=lambda event: (event["ts"], event["ph"] != "E"))
    path.write_text(json.dumps(events))
    return path


@pytest.mark.parametrize("begin_ns", [400, 1_000_000], ids=["overlapping", "one after the other"])
def test_tables_of_two_runs_are_refused(begin_ns: int, tmp_path: Path) -> None:
    rows = [*_run(0, 1000), *_run(begin_ns, 1300)]

    with pytest.raises(ProfileError, match=r"contains two runs; write each run to a separate"):
        bubbleviz.analyze(_table(tmp_path / "a.csv", rows))


@pytest.mark.parametrize("begin_ns", [400, 1_000_000], ids=["overlapping", "one after the other"])
@pytest.mark.parametrize("steps", [2, STEPS])
@pytest.mark.parametrize("microbatches", [2, 8])
def test_runs_of_different_microbatches_are_refused(
    begin_ns: int, steps: int, microbatches: int, tmp_path: Path
) -> None:
    other = _run(begin_ns, 1000, steps=steps, microbatches=microbatches)

    with pytest.raises(ProfileError, match="contains two runs"):
        bubbleviz.analyze(_table(tmp_path / "a.csv", [*_run(0, 1000), *other]))


@pytest.mark.parametrize("microbatches", [2, 8])
@pytest.mark.parametrize("steps", [1, STEPS])
def test_passes_of_an_iteration_may_have_different_microbatches(
    steps: int, microbatches: int, tmp_path: Path
) -> None:
    rows: list[Row] = []
    for step in range(steps):
        for number, count in enumerate((MICROBATCHES, microbatches)):
            begin_ns = (2 * step + number) * 40_000
            rows += [
                row._replace(iteration=step)
                for row in _run(begin_ns, 1000, steps=1, microbatches=count)
            ]
    report = bubbleviz.analyze(_table(tmp_path / "a.csv", rows))

    assert len(report.iterations) == steps


def test_runs_that_share_some_iterations_are_refused(tmp_path: Path) -> None:
    later = [row._replace(iteration=row.iteration + 1) for row in _run(1_000_000, 1300)]

    with pytest.raises(ProfileError, match=r"4 of 8 iterations \(counted per rank\)"):
        bubbleviz.analyze(_table(tmp_path / "a.csv", [*_run(0, 1000), *later]))


@pytest.mark.parametrize("steps", [1, STEPS])
def test_an_iteration_may_run_its_microbatches_twice(steps: int, tmp_path: Path) -> None:
    """Each pass of gradient accumulation numbers its microbatches from 0."""
    report = bubbleviz.analyze(_table(tmp_path / "a.csv", _run(0, 1000, passes=2, steps=steps)))

    assert len(report.iterations) == steps
    assert "repeated operations" in list_limitation_subjects(report)


@pytest.mark.parametrize("complete_events", [False, True])
@pytest.mark.parametrize("steps", [1, STEPS])
@pytest.mark.parametrize("begin_ns", [400, 1_000_000], ids=["overlapping", "one after the other"])
def test_event_lists_of_two_runs_are_refused(
    begin_ns: int, steps: int, complete_events: bool, tmp_path: Path
) -> None:
    runs = [_run(0, 1000, steps=steps), _run(begin_ns, 1300, steps=steps)]

    with pytest.raises(ProfileError, match=r"contains two runs; write each run to a separate"):
        bubbleviz.analyze(_event_list(tmp_path / "a.json", runs, complete_events=complete_events))


@pytest.mark.parametrize("complete_events", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_an_event_list_does_not_matter(
    seed: int, complete_events: bool, tmp_path: Path
) -> None:
    path = _event_list(tmp_path / "a.json", [_run(0, 1000)], complete_events=complete_events)
    written = bubbleviz.analyze(path)
    events = json.loads(path.read_text())
    path.write_text(json.dumps(random.Random(seed).sample(events, len(events))))

    shuffled = bubbleviz.analyze(path)

    assert shuffled.summary == written.summary
    assert len(written.operations) == 2 * STAGES * MICROBATCHES * STEPS
    for name in ("rank", "phase", "microbatch", "start_ns", "end_ns"):
        columns = [getattr(report.operations, name).tolist() for report in (written, shuffled)]
        assert columns[0] == columns[1]


def test_a_trace_with_two_threads_of_steps_is_refused(tmp_path: Path) -> None:
    """Correlation ids differ, so only the iterations reveal two runs."""
    events: list[dict[str, Any]] = []
    for thread, rows in enumerate((_run(0, 1000), _run(400, 1300))):
        for step in range(STEPS):
            of_step = [row for row in rows if row.iteration == step and row.rank == 0]
            start_us = min(row.start_ns for row in of_step) / 1000
            end_us = max(row.end_ns for row in of_step) / 1000
            span = {"pid": 9, "tid": thread, "ts": start_us, "dur": end_us - start_us}
            name = f"ProfilerStep#{step}"
            events.append({"ph": "X", "cat": "user_annotation", "name": name, **span})
            for number, row in enumerate(of_step):
                correlation = thread * 1000 + step * 100 + number
                start_us, end_us = row.start_ns / 1000, row.end_ns / 1000
                name = f"{row.phase}{row.microbatch}.0.0"
                span = {"pid": 9, "tid": thread, "ts": start_us, "dur": end_us - start_us}
                events.append({"ph": "X", "cat": "user_annotation", "name": name, **span})
                called = {**span, "dur": 0.01, "args": {"correlation": correlation}}
                launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel"}
                events.append({**launch, **called})
                args = {"correlation": correlation, "device": 0, "stream": 7 + thread}
                kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "args": args}
                events.append({**span, **kernel, "pid": 0, "tid": 7 + thread})
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))

    with pytest.raises(ProfileError, match="contains two runs"):
        bubbleviz.analyze(path)
