"""Promises: what advice saves is what the job takes once its work is spread evenly.

Jobs are simulated here, operation by operation in plain Python, before and after; bubbleviz reads
only the table of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

import bubbleviz
from bubbleviz.report.advice import Advice, advice_of
from tests.support.operation_tables import csv_of

MS = 1_000_000
#: How long F takes on a stage for a microbatch, ms; B takes twice that.
Times: TypeAlias = Callable[[int, int], float]
Rows: TypeAlias = list[tuple[int, str, int | str, int, int, int]]

LENGTHS = (0.5, 1, 2, 0.7, 1.2, 3, 1, 0.6)
#: Stages, microbatches, times, and the most that can be saved: Lin et al., arXiv 2505.05713, name
#: uneven stages and uneven lengths as the most common faults of production.
JOBS: dict[str, tuple[int, int, Times, float]] = {
    "two stages": (4, 8, lambda s, _: (10, 14, 10, 22)[s], 0.2667),
    "last stage": (4, 16, lambda s, _: (10, 10, 10, 14)[s], 0.1772),
    "last stage of eight": (8, 16, lambda s, _: 20 if s == 7 else 10, 0.3365),
    "one long microbatch": (4, 8, lambda _, m: 30 if m == 3 else 10, 0.25),
    "lengths": (4, 8, lambda _, m: 10 * LENGTHS[m], 0.2851),
    "every third microbatch": (4, 16, lambda _, m: 20 if m % 3 == 0 else 10, 0.3125),
}


def _order(schedule: str, stages: int, microbatches: int, stage: int) -> list[tuple[str, int]]:
    warmup = min(microbatches, stages - stage - 1)
    if schedule == "gpipe":
        warmup = microbatches
    forwards = [("F", m) for m in range(microbatches)]
    backwards = [("BW", m) for m in range(microbatches)]
    order = forwards[:warmup]
    for m in range(microbatches):
        order += [*forwards[warmup + m : warmup + m + 1], backwards[m]]
    return order


def _simulated(
    schedule: str,
    stages: int,
    microbatches: int,
    times: Times,
    late_ns: Sequence[int] = (0,) * 8,
) -> Rows:
    """Return (stage, phase, microbatch, start, end, launch) of an iteration, ns from its begin.

    Args:
        schedule: ``1f1b`` or ``gpipe``.
        stages: of the pipeline.
        microbatches: of the iteration.
        times: how long F takes.
        late_ns: how late the host of each stage begins to launch.
    """
    left = [_order(schedule, stages, microbatches, stage) for stage in range(stages)]
    free_ns = list(late_ns[:stages])
    ended: dict[tuple[str, int, int], int] = {}
    rows: Rows = []
    while any(left):
        for stage in range(stages):
            while left[stage]:
                phase, m = left[stage][0]
                forward = phase == "F"
                needs = [("F", stage - 1, m)] if forward and stage else []
                if not forward:
                    needs = [("F", stage, m), *([("BW", stage + 1, m)] * (stage < stages - 1))]
                if not all(need in ended for need in needs):
                    break
                start_ns = max(free_ns[stage], *(ended[need] for need in needs), 0)
                end_ns = start_ns + round((1 if forward else 2) * times(stage, m) * MS)
                ended[phase, stage, m] = free_ns[stage] = end_ns
                launch_ns = late_ns[stage] - 10_000 + sum(row[0] == stage for row in rows)
                rows.append((stage, phase, m, start_ns, end_ns, launch_ns))
                left[stage].pop(0)
    for stage, end_ns in enumerate(free_ns):
        rows.append((stage, "Optimizer", "", end_ns, end_ns + MS // 50, late_ns[stage]))
    return rows


def _length_ns(rows: Rows) -> int:
    return max(end_ns for *_, end_ns, _ in rows)


def _advice(folder: Path, *iterations: Rows) -> tuple[Advice, ...]:
    """Return the advice on a job whose iterations follow each other."""
    table, since_ns = [], 0
    for k, rows in enumerate(iterations):
        for stage, phase, m, *times_ns in rows:
            table.append((k, stage, stage, phase, m, *(time_ns + since_ns for time_ns in times_ns)))
        since_ns += _length_ns(rows) + 20_000
    times = ("start_ns", "end_ns", "launched_ns")
    names = ("iteration", "rank", "stage", "phase", "microbatch", *times)
    columns = dict(zip(names, map(list, zip(*table, strict=True)), strict=True))
    return advice_of(bubbleviz.analyze(csv_of(folder / "operations.csv", columns)))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("name", JOBS)
def test_no_work_is_lost_by_what_is_promised(name: str, schedule: str, tmp_path: Path) -> None:
    stages, microbatches, times, most = JOBS[name]
    rows = _simulated(schedule, stages, microbatches, times)
    mean = sum(times(s, m) for s in range(stages) for m in range(microbatches))
    even = _simulated(schedule, stages, microbatches, lambda *_: mean / stages / microbatches)
    saved = 1 - _length_ns(even) / _length_ns(rows)
    first = _advice(tmp_path, *[rows] * 4)[0]

    assert first.kind == ("stage" if "stage" in name else "microbatch")
    assert first.saving_ratio == pytest.approx(saved, abs=0.002)
    assert "(at most -" in first.text
    if schedule == "1f1b":
        assert saved == pytest.approx(most, abs=0.0001)


def test_several_stages_are_one_sentence(tmp_path: Path) -> None:
    stages, microbatches, times, _ = JOBS["two stages"]
    rows = _simulated("1f1b", stages, microbatches, times)
    first, *others = _advice(tmp_path, *[rows] * 4)

    assert "stages 1, 3 hold too much" in first.text
    assert first.text.count("Move layers") == 1
    assert first.ranks == (1, 3)
    assert not [advice for advice in others if "stage" in advice.kind]


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("stage", [0, 2])
def test_a_host_that_begins_late_is_named_with_what_that_costs(
    stage: int, every: int, tmp_path: Path
) -> None:
    """Data loading before the first operation: of the first stage, all wait between iterations."""
    late = tuple(60 * MS * (own == stage) for own in range(4))
    slow, fast = (_simulated("1f1b", 4, 8, lambda *_: 10, own) for own in (late, (0,) * 4))
    iterations = [slow if k % every == every - 1 else fast for k in range(6)]
    first = _advice(tmp_path, *iterations)[0]
    # What the first iteration waited for is not in the profile.
    seen = iterations[1:] if stage == 0 else iterations
    length_ns = sum(map(_length_ns, seen)) / len(seen)

    assert first.kind == "launch"
    assert first.ranks == (stage,)
    assert first.text.startswith("Begin iterations earlier" if stage == 0 else "Launch earlier")
    assert first.saving_ratio == pytest.approx(1 - _length_ns(fast) / length_ns, abs=0.002)
    assert first.iterations == len([rows for rows in seen if rows is slow])


def test_a_job_without_a_fault_is_bound_by_its_schedule(tmp_path: Path) -> None:
    assert not _advice(tmp_path, *[_simulated("1f1b", 4, 8, lambda *_: 10)] * 4)


def test_an_optimizer_without_a_name_is_no_pause(tmp_path: Path) -> None:
    """Iterations that follow each other after a usual time may be at work in it."""
    rows = [row for row in _simulated("1f1b", 4, 8, lambda *_: 10) if row[1] != "Optimizer"]
    pauses = [(*row[:3], row[3] + 40 * MS, row[4] + 40 * MS, row[5] + 40 * MS) for row in rows]

    assert not _advice(tmp_path, *[pauses] * 4)
