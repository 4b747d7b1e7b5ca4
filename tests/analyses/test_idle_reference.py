"""Idle time against a slow reference that looks at every microsecond."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.errors import NothingToAnalyseError
from tests.support.idle_runs import CALLS, NAMES, World, add_up, spent, worlds, write_world


def _expected(world: World, device: int, shortest: int) -> dict[str, int] | None:
    """Return microseconds by activity, told cell by cell; None where nothing ran."""
    own = [one for one in world.kernels if one[2] == device and one[1] > one[0]]
    if not own:
        return None
    busy = {cell for start, end, _, _ in own for cell in range(start, end)}
    first, last = min(busy), max(busy) + 1
    idle = [cell for cell in range(first, last) if cell not in busy]
    starts = [cell for cell in idle if cell - 1 in busy]
    found: Counter[str] = Counter()
    gaps = []
    for start in starts:
        end = next(cell for cell in range(start, last) if cell in busy)
        after = next(one for one in own if one[0] == end)
        launch = sorted((one for one in world.calls if one[4] == after[3]), key=lambda one: one[0])
        gaps.append((start, end, launch[0] if launch else None))
    threads = Counter(call[2] for start, end, call in gaps if call and end - start >= shortest)
    lead = min((t for t in threads if threads[t] == max(threads.values())), default=None)
    for start, end, call in gaps:
        for cell in range(start, end):
            found[_cell(world, device, cell, (start, end, call), lead, shortest)] += 1
    return dict(found)


def _cell(
    world: World,
    device: int,
    cell: int,
    gap: tuple[int, int, Any],
    lead: int | None,
    shortest: int,
) -> str:
    start, end, call = gap
    if any(a <= cell < b for a, b in world.overheads):
        return "profiler"
    if end - start < shortest:
        return "kernel-to-kernel gaps"
    if call is None:
        return "launch not recorded"
    if cell >= call[0]:
        return "stream or rank dependency" if cell >= max(call[1], call[0] + 20) else "launch"
    for thread in dict.fromkeys((call[2], lead, 1)):
        told = _told(world, device, cell, thread, shortest)
        if told is not None:
            return told
    return "no host trace"


def _told(world: World, device: int, cell: int, thread: int | None, shortest: int) -> str | None:
    """Return what the strongest, then innermost thing around a cell says."""
    ran_on = {n: d for _, _, d, n in world.kernels}
    candidates: list[tuple[tuple[int, int, int, int], str]] = []
    for row, (start, end, own, name) in enumerate(world.ranges):
        if own == thread and start <= cell < end and end - start >= max(1, shortest):
            activity, strength = NAMES[name]
            candidates.append(((strength, start - end, start, row), activity))
    # Of calls and ranges that are equal, calls are innermost, launching ones last.
    for row, (start, end, own, name, number) in enumerate(world.calls):
        if own == thread and start <= cell < end:
            launching = _launching(world, row)
            activity = CALLS.get(name, "API calls" if not launching else "launch")
            if launching and ran_on[number] != device:
                activity = "other device"
            place = (2, start - end, start, (2000 if launching else 1000) + row)
            candidates.append((place, activity))
    return max(candidates, default=(None, None))[1]


def _launching(world: World, row: int) -> bool:
    """Return whether a call launched one of the kernels; of two of one id the first did."""
    number = world.calls[row][4]
    return any(n == number for *_, n in world.kernels)


@settings(max_examples=60)
@given(worlds(), st.sampled_from([0, 3, 10]))
def test_against_a_reference_that_looks_at_every_microsecond(world: World, shortest: int) -> None:
    expected = {d: _expected(world, d, shortest) for d in (0, 1)}
    expected = {d: told for d, told in expected.items() if told is not None}
    with TemporaryDirectory() as folder:
        file = write_world(Path(folder), world)
        if not expected:
            with pytest.raises(NothingToAnalyseError):
                bubbleviz.idle(file, shortest_us=shortest, step="no|mine")
            return
        report = bubbleviz.idle(file, shortest_us=shortest)

    for rank in report.ranks:
        if all(step.name is None for step in rank.steps):
            assert spent(rank) == expected[rank.device_id]
        add_up(rank)
    assert {rank.device_id for rank in report.ranks} == set(expected)
    assert sum(part.idle_ns for part in report.activities) == report.idle_ns
