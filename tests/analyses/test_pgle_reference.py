"""Instruction costs against plain Python: statistics, and whole runs."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bubbleviz.analyses.pgle import measure_costs
from bubbleviz.analyses.pgle.instructions import RangeKind, parse_range_names
from tests.support.nsys_exports import K, M
from tests.support.xla_runs import FORMS, NCCL, Run, told


def test_the_default_is_the_percentile_of_jax(tmp_path: Path) -> None:
    # xla/python/aggregate_profile_test.cc: of 0, 10, .. 100 the 90th percentile is 90.
    run = Run()
    for took in (7, *range(0, 101, 10)):
        with run.module():
            run.thunk("custom-call", took)
            run.thunk("psum.2", took, kernel=NCCL)
    path = run.written(tmp_path)

    assert told(measure_costs(path)) == {"custom-call": 0.090, "psum.2": 0.090}
    # Collectives may have a rule of their own; the name says nothing, the kernel does.
    costs = measure_costs(path, aggregate="min", aggregate_collectives="max")
    assert told(costs) == {"custom-call": 0.0, "psum.2": 0.1}


# A plain reference


OPS = ("while.1", "a", "b", "all-gather-start.1")


@st.composite
def trees(draw: st.DrawFn) -> Run:
    """Return runs of nested instructions with any number of kernels, on two threads."""
    chance = random.Random(draw(st.integers(0, 1 << 32)))
    run = Run()

    def grow(depth: int, tid: int) -> None:
        for _ in range(chance.randrange(4)):
            op = chance.choice(OPS)
            with run.range(chance.choice(FORMS).format(op), tid):
                for _ in range(chance.randrange(3)):
                    kernel, device = chance.choice(("gemm", None)), chance.randrange(2)
                    run.launch(chance.randrange(5), kernel=kernel, device=device, tid=tid)
                if depth:
                    grow(depth - 1, tid)

    for _ in range(chance.randrange(1, 5)):
        tid = chance.choice([1, 2])
        with run.module(chance.choice(["m", "n"]), tid=tid):
            run.thunk("a", 3, tid=tid)
            grow(2, tid)
    return run


class Plain:
    """What the costs are, told range by range and kernel by kernel."""

    def __init__(self, run: Run) -> None:
        self.ranges = run.ranges
        self.said = [parse_range_names([r.name or ""]) for r in run.ranges]
        self.instructions = [
            i for i, s in enumerate(self.said) if s.kind[0] == RangeKind.INSTRUCTION
        ]
        execution = self.executions()
        calls = {call.correlation: call for call in run.calls}
        self.cost: dict[tuple[int, int], int] = defaultdict(int)
        ran: list[K | M] = [*run.kernels, *run.copies]
        for work in ran:
            call = calls[work.correlation]
            held = self.around(call.start, call.end, call.tid, RangeKind.INSTRUCTION)
            self.cost[execution[held[-1]], work.device] += work.end - work.start

    def around(self, start: int, end: int, tid: int, kind: RangeKind) -> list[int]:
        """Return the ranges around a time, from outermost to innermost (ids ascend)."""
        return [
            i
            for i, r in enumerate(self.ranges)
            if self.said[i].kind[0] == kind and r.tid == tid
            if r.start <= start and end <= (r.end or 0)
        ]

    def above(self, row: int, kind: RangeKind) -> int:
        own = self.ranges[row]
        held = [i for i in self.around(own.start, own.end or 0, own.tid, kind) if i != row]
        return held[-1] if held else -1

    def op(self, row: int) -> str:
        return self.said[row].instructions[0]

    def executions(self) -> dict[int, int]:
        siblings: dict[tuple[int, int], list[int]] = defaultdict(list)
        parent = {row: self.above(row, RangeKind.INSTRUCTION) for row in self.instructions}
        for row in self.instructions:
            siblings[self.above(row, RangeKind.MODULE), parent[row]].append(row)
        execution = {row: row for row in self.instructions}
        for (_, holder), own in siblings.items():
            loop = holder >= 0 and self.op(holder).startswith("while")
            if loop and len({self.op(row) for row in own}) == 1:
                continue
            for before, row in pairwise(own):
                if self.op(before) == self.op(row):
                    execution[row] = execution[before]
        for row in self.instructions:
            if parent[row] >= 0 and self.op(parent[row]) == self.op(row):
                execution[row] = execution[parent[row]]
        return execution

    def longest(self, skip: int) -> dict[str, int]:
        """Return the longest execution of each instruction, after its module's warm-up."""
        ran: dict[tuple[str | None, int], set[int]] = defaultdict(set)
        for row, device in self.cost:
            module = self.above(row, RangeKind.MODULE)
            ran[self.ranges[module].name, device].add(module)
        most: dict[str | None, int] = defaultdict(int)
        for (name, _), own_runs in ran.items():
            most[name] = max(most[name], len(own_runs))
        longest: dict[str, int] = {}
        for (row, device), took in self.cost.items():
            module = self.above(row, RangeKind.MODULE)
            name = self.ranges[module].name
            if sorted(ran[name, device]).index(module) >= skip or most[name] <= skip:
                longest[self.op(row)] = max(longest.get(self.op(row), 0), took)
        return longest


@settings(max_examples=60)
@given(run=trees(), skip=st.integers(0, 2))
def test_costs_against_plain_python(
    run: Run, skip: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = run.written(tmp_path_factory.mktemp("run"))
    expected = Plain(run).longest(skip)

    costs = measure_costs(path, aggregate="max", skip=skip)

    assert set(expected) <= set(OPS)
    assert told(costs) == {name: took / 1000 for name, took in sorted(expected.items())}
