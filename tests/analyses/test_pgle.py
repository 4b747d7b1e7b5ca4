"""Instruction costs: planted JAX runs with known costs, what makes costs wrong, the command."""

from __future__ import annotations

import csv
import io
import random
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bubbleviz.analyses.pgle import measure_costs
from bubbleviz.analyses.pgle import text as pgle_text
from bubbleviz.analyses.pgle.analysis import contents_of
from bubbleviz.analyses.pgle.comparison import compare_costs
from bubbleviz.analyses.pgle.costs import Costs, aggregation_of
from bubbleviz.analyses.pgle.files import pb, pbtxt, read_costs
from bubbleviz.analyses.pgle.instructions import GRAPHS, OVERLAP, PAIRS
from bubbleviz.analyses.pgle.range_names import GLOBS, RangeKind, parse_range_names
from bubbleviz.cli.app import main
from bubbleviz.errors import NothingToAnalyseError, UsageError
from tests.support.nsys_exports import C, K, R, profile
from tests.support.xla_runs import FORMS, NCCL, Run, told


def steps(count: int, cost: int = 1_000) -> Run:
    """Return a run of ``jit_step`` in which the step k takes ``cost`` + k, the first ten times."""
    run = Run()
    for k in range(count):
        with run.module():
            run.thunk("fusion.1", (cost + k) * (10 if k == 0 else 1))
            run.thunk("all-gather-start.2", 500, 40, kernel=NCCL)
    return run


def notes(costs: Costs) -> set[str]:
    return {note.what for note in costs.limitations}


# Nothing


def test_a_profile_without_kernels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NothingToAnalyseError, match="no CUDA kernels were recorded"):
        measure_costs(profile(tmp_path))


def test_a_run_of_another_framework_is_refused(tmp_path: Path) -> None:
    path = profile(tmp_path, [K(5, 9, 1)], [C(1, 2, 1)], [R(0, 3, "F0.0.0")])
    with pytest.raises(NothingToAnalyseError, match="as JAX names instructions"):
        measure_costs(path)


def test_modules_without_instructions_are_refused(tmp_path: Path) -> None:
    run = Run()
    with run.module():
        run.launch(5)
    with pytest.raises(NothingToAnalyseError, match="as JAX names instructions"):
        measure_costs(run.written(tmp_path))


def test_instructions_without_work_are_refused(tmp_path: Path) -> None:
    run = Run()
    run.launch(5)
    run.thunk("fusion.1")
    with pytest.raises(NothingToAnalyseError, match="no instruction of XLA has GPU work"):
        measure_costs(run.written(tmp_path))


# Known truth


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", ["fusion.3", "loop_add_fusion.1.remat2", "a.double_buffer_clone"])
def test_every_form_gives_the_whole_name(form: str, op: str, tmp_path: Path) -> None:
    run = Run()
    for _ in range(2):
        with run.module():
            run.thunk(op, 1_234, form=form)

    assert told(measure_costs(run.written(tmp_path))) == {op: 1.234}


def test_names_that_say_nothing() -> None:
    names = ["Thunk:#name=a#", "Thunk", "Thunk:#hlo_op=#", "XlaModule:#prefix=a#", "x", ""]
    assert parse_range_names(names).kind.tolist() == [RangeKind.OTHER] * len(names)
    said = parse_range_names(
        [
            "TSL:XlaModule:#prefix=jit(f)/jit(main),hlo_module=jit_f,program_id=3#",
            "XlaModule:#hlo_module=jit_f#",
            "TSL:XlaCompileBackend:#module=jit_f#",
            FORMS[3].format("a"),
        ]
    )
    assert said.kind.tolist() == [
        RangeKind.MODULE,
        RangeKind.MODULE,
        RangeKind.COMPILATION,
        RangeKind.INSTRUCTION,
    ]
    assert [said.modules[i] for i in said.module.tolist() if i >= 0] == [
        "jit_f(3)",
        "jit_f",
        "jit_step(7)",
    ]
    assert len(GLOBS) == 3


def test_work_of_an_execution_is_summed_and_the_first_one_left_out(tmp_path: Path) -> None:
    costs = measure_costs(steps(4).written(tmp_path), aggregate="max")

    assert told(costs) == {"all-gather-start.2": 0.540, "fusion.1": 1.003}
    assert [own.collective for own in costs.instructions] == [True, False]
    assert [own.executions for own in costs.instructions] == [3, 3]
    assert (costs.executions, costs.left_out.warm_up, costs.devices) == (6, 2, 1)
    assert notes(costs) & {OVERLAP, PAIRS, GRAPHS} == set()


@pytest.mark.parametrize(
    ("skip", "cost_us", "left_out"), [(0, 10.0, 0), (1, 1.003, 2), (3, 1.003, 6), (4, 10.0, 0)]
)
def test_warm_up(skip: int, cost_us: float, left_out: int, tmp_path: Path) -> None:
    costs = measure_costs(steps(4).written(tmp_path), aggregate="max", skip=skip)

    assert told(costs)["fusion.1"] == cost_us
    assert costs.left_out.warm_up == left_out
    # A module that never runs more often keeps its warm-up, and that is said.
    assert ("modules whose warm-up counts" in notes(costs)) == (skip == 4)


def test_the_order_of_ranges_in_the_export_is_nothing(tmp_path: Path) -> None:
    run = steps(4)
    run.ranges.reverse()

    assert told(measure_costs(run.written(tmp_path), aggregate="max"))["fusion.1"] == 1.003


def test_copies_are_work(tmp_path: Path) -> None:
    run = Run()
    for _ in range(2):
        with run.module():
            run.thunk("copy.1", 30, kernel=None)
            run.thunk("fusion.1", 50)

    assert told(measure_costs(run.written(tmp_path))) == {"copy.1": 0.030, "fusion.1": 0.050}


def test_the_innermost_instruction_takes_a_kernel_and_each_trip_is_an_execution(
    tmp_path: Path,
) -> None:
    run = Run()
    for _ in range(2):
        with run.module(), run.range("Thunk:#hlo_op=while.1#"):
            run.launch(3, kernel=None)
            for trip in range(4):
                run.thunk("dot.2", 100 + trip)
                run.thunk("add.3", 5)
    costs = measure_costs(run.written(tmp_path), aggregate="max")

    assert told(costs) == {"add.3": 0.005, "dot.2": 0.103, "while.1": 0.003}
    assert [own.executions for own in costs.instructions] == [4, 4, 1]


def test_thunks_of_one_instruction_in_a_row_are_one_execution(tmp_path: Path) -> None:
    run = Run()
    for _ in range(2):
        with run.module():
            run.thunk("sort.1", 10)
            run.thunk("sort.1", 20)
            run.thunk("add.2", 1)
            run.thunk("sort.1", 40)
    costs = measure_costs(run.written(tmp_path), aggregate="mean")

    assert told(costs) == {"add.2": 0.001, "sort.1": 0.035}


def test_trips_of_a_loop_of_one_instruction_are_executions(tmp_path: Path) -> None:
    run = Run()
    for _ in range(2):
        with run.module(), run.range("Thunk:#hlo_op=while.1#"):
            for trip in range(3):
                run.thunk("dot.2", 100 + trip)

    assert told(measure_costs(run.written(tmp_path), aggregate="min")) == {"dot.2": 0.100}


def test_an_instruction_inside_itself_is_one(tmp_path: Path) -> None:
    run = Run()
    for _ in range(2):
        with run.module(), run.range(FORMS[0].format("call.1")):
            run.launch(7)
            with run.range(FORMS[0].format("call.1")):
                run.launch(8)
                run.thunk("call.1", 9)
    costs = measure_costs(run.written(tmp_path))

    assert told(costs) == {"call.1": 0.024}
    assert costs.executions == 1


def test_ranges_that_begin_together_nest_by_their_ends(tmp_path: Path) -> None:
    ranges: list[R] = []
    calls: list[C] = []
    kernels: list[K] = []
    for step, at in enumerate((100, 1_100)):
        ranges.append(R(at - 5, at + 95, "XlaModule:#hlo_module=jit_step#"))
        # The export may list what is inside first.
        for end, op in ((30, "call.1"), (60, "call.1"), (90, "while.2")):
            ranges.append(R(at, at + end, FORMS[0].format(op)))
        for number, start in enumerate((10, 40, 70)):
            calls.append(C(at + start, at + start + 5, 3 * step + number))
            kernels.append(K(at + start, at + start + 10 + number, 3 * step + number))
    costs = measure_costs(profile(tmp_path, kernels, calls, ranges), skip=0)

    # An instruction inside itself is one: 10 + 11 ns.
    assert told(costs) == {"call.1": 0.021, "while.2": 0.012}
    assert [own.executions for own in costs.instructions] == [2, 2]


def test_each_device_has_its_own_executions_and_warm_up(tmp_path: Path) -> None:
    run = Run()
    for step in range(3):
        for device in (0, 1):
            tid = 10 + device
            with run.module(tid=tid):
                took = 100 * (step + 1) + device
                run.thunk("fusion.1", took, device=device, tid=tid)
    path = run.written(tmp_path)

    assert told(measure_costs(path, aggregate="max")) == {"fusion.1": 0.301}
    assert told(measure_costs(path, aggregate="min")) == {"fusion.1": 0.200}
    costs = measure_costs(path, aggregate="mean")
    assert told(costs) == {"fusion.1": 0.2505}
    assert (costs.devices, costs.executions, costs.left_out.warm_up) == (2, 4, 2)


def test_profiles_of_several_hosts_count_together(tmp_path: Path) -> None:
    for host, cost in enumerate((1_000, 2_000)):
        steps(3, cost).written(tmp_path, f"{host}.sqlite")
    costs = measure_costs(tmp_path, aggregate="max")

    assert told(costs)["fusion.1"] == 2.002
    assert (costs.devices, costs.executions) == (2, 8)


def test_modules_are_one_or_apart_or_one_is_taken(tmp_path: Path) -> None:
    run = Run()
    for _ in range(2):
        with run.module("jit_init", 1):
            run.thunk("fusion.1", 10)
        with run.module("jit_step", 7):
            run.thunk("fusion.1", 20)
            run.thunk("fusion.2", 30)
        with run.module("jit_step", 9):
            run.thunk("fusion.1", 40)
    path = run.written(tmp_path)
    shared = "instructions whose name several modules have"

    together = measure_costs(path, aggregate="max")
    assert told(together) == {"fusion.1": 0.040, "fusion.2": 0.030}
    assert shared in notes(together)
    assert [seen.label for seen in together.modules] == [
        "jit_step(7)",
        "jit_step(9)",
        "jit_init(1)",
    ]
    assert told(measure_costs(path, modules=["jit_init"])) == {"fusion.1": 0.010}
    one = measure_costs(path, modules=["jit_step(7)"])
    assert told(one) == {"fusion.1": 0.020, "fusion.2": 0.030}
    assert shared not in notes(one)
    assert told(measure_costs(path, aggregate="max", modules=["jit_step"]))["fusion.1"] == 0.040
    apart = measure_costs(path, apart=True)
    assert [(own.module, own.name, own.cost_us) for own in apart.instructions] == [
        ("jit_init(1)", "fusion.1", 0.010),
        ("jit_step(7)", "fusion.1", 0.020),
        ("jit_step(7)", "fusion.2", 0.030),
        ("jit_step(9)", "fusion.1", 0.040),
    ]
    with pytest.raises(UsageError, match=r"jit_nothing.*hold jit_init\(1\), jit_step\(7\)"):
        measure_costs(path, modules=["jit_nothing"])


def test_files_of_modules_with_hostile_names_do_not_meet(tmp_path: Path) -> None:
    run = Run()
    for name in ("../a", "__/a", "x" * 300, "x" * 301):
        for _ in range(2):
            with run.module(name):
                run.thunk("fusion.1", 10)
    costs = measure_costs(run.written(tmp_path), apart=True)
    files = contents_of(costs, str(tmp_path / "out" / "costs.pb"))

    assert len(files) == 4
    assert {Path(file).parent for file in files} == {tmp_path / "out"}
    assert all(len(Path(file).name) < 120 and file.endswith(".pb") for file in files)


def test_what_the_capture_cuts_and_what_compiles_is_left_out(tmp_path: Path) -> None:
    run = Run()
    run.thunk("fusion.1", 9_999)
    with run.range("XlaCompile:#module=jit_step#"), run.module("autotune", 0):
        run.thunk("fusion.1", 8_888)
    for _ in range(3):
        with run.module():
            run.thunk("fusion.1", 10)
    row = len(run.ranges)
    with run.module():
        run.thunk("fusion.1", 7_777)
    run.ranges[row] = R(run.ranges[row].start, None, run.ranges[row].name)
    costs = measure_costs(run.written(tmp_path), aggregate="max")

    assert told(costs) == {"fusion.1": 0.010}
    assert (costs.left_out.cut, costs.left_out.compilation, costs.left_out.warm_up) == (2, 1, 1)


def test_all_left_out_is_refused(tmp_path: Path) -> None:
    run = Run()
    with run.range("XlaCompile:#module=jit_step#"), run.module():
        run.thunk("fusion.1", 10)
    with pytest.raises(NothingToAnalyseError, match="no execution of an instruction is whole"):
        measure_costs(run.written(tmp_path))


def test_without_ranges_of_modules_each_instruction_counts_its_executions(tmp_path: Path) -> None:
    run = Run()
    for took in (900, 10, 20):
        run.thunk("fusion.1", took)
    for took in (800, 7):
        run.thunk("fusion.2", took, form=FORMS[3])
    costs = measure_costs(run.written(tmp_path), aggregate="max")

    assert told(costs) == {"fusion.1": 0.020, "fusion.2": 0.007}
    assert [seen.label for seen in costs.modules] == ["jit_step(7)"]


def test_work_that_no_instruction_launched_is_told(tmp_path: Path) -> None:
    run = steps(2)
    run.launch(2_000_000)
    run.kernels.append(K(9_000_000, 9_500_000, 777))
    costs = measure_costs(run.written(tmp_path))
    reason = {note.what: note.reason for note in costs.limitations}

    assert "2.000 ms" in reason["work outside every instruction"]
    assert "0.500 ms" in reason["kernels without their launching call"]


# Rules


@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=30), st.integers(0, 100))
def test_rules_against_plain_python(values: list[int], percent: int) -> None:
    import numpy as np

    # Two groups, so that the places of the second count, too.
    ascending = np.array([5, 6, 7, *sorted(values)])
    first, count = np.array([0, 3]), np.array([3, len(values)])

    def of(text: str) -> float:
        return float(aggregation_of(text, "--aggregate").of(ascending, first, count)[1])

    assert of("max") == max(values) == of("p100")
    assert of("min") == min(values) == of("p0")
    assert of("median") == median(values)
    assert of("mean") == pytest.approx(fmean(values))
    assert of(f"p{percent}") == sorted(values)[percent * (len(values) - 1) // 100]


def test_the_default_is_the_percentile_of_jax(tmp_path: Path) -> None:
    # xla/python/aggregate_profile_test.cc: of 0, 10, .. 100 the 90th percentile is 90.
    run = Run()
    for took in (7, *range(0, 101, 10)):
        with run.module():
            run.thunk("custom-call", took)

    assert told(measure_costs(run.written(tmp_path))) == {"custom-call": 0.090}


def test_collectives_have_a_rule_of_their_own(tmp_path: Path) -> None:
    run = Run()
    for took in (1, 10, 30, 20):
        with run.module():
            run.thunk("fusion.1", took)
            run.thunk("psum.2", took, kernel=NCCL)
    path = run.written(tmp_path)
    costs = measure_costs(path, aggregate="min", aggregate_collectives="max")

    assert told(costs) == {"fusion.1": 0.010, "psum.2": 0.030}
    # The name says nothing, the kernel does.
    assert [own.collective for own in costs.instructions] == [False, True]


@pytest.mark.parametrize("text", ["", "p101", "p-1", "p", "90", "average", "p090"])
def test_other_rules_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not one of max, min, mean, median, or a percentile"):
        aggregation_of(text, "--aggregate")


# A plain reference


@st.composite
def trees(draw: st.DrawFn) -> Run:
    """Return runs of nested instructions with any number of kernels, on two threads."""
    chance = random.Random(draw(st.integers(0, 1 << 32)))
    run = Run()

    def grow(depth: int, tid: int) -> None:
        for _ in range(chance.randrange(4)):
            op = chance.choice(["while.1", "a", "b", "all-gather-start.1"])
            with run.range(FORMS[0].format(op), tid):
                for _ in range(chance.randrange(3)):
                    run.launch(chance.randrange(5), device=chance.randrange(2), tid=tid)
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
        for kernel in run.kernels:
            call = calls[kernel.correlation]
            held = self.around(call.start, call.end, call.tid, RangeKind.INSTRUCTION)
            self.cost[execution[held[-1]], kernel.device] += kernel.end - kernel.start

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


@settings(max_examples=60, deadline=None)
@given(run=trees(), skip=st.integers(0, 2))
def test_costs_against_plain_python(
    run: Run, skip: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = run.written(tmp_path_factory.mktemp("run"))
    expected = Plain(run).longest(skip)

    costs = measure_costs(path, aggregate="max", skip=skip)

    assert told(costs) == {name: took / 1000 for name, took in sorted(expected.items())}


# What makes costs wrong


@pytest.mark.parametrize(("shared_ns", "warned"), [(0, False), (10, False), (11, True)])
def test_collectives_beside_compute_are_told(shared_ns: int, warned: bool, tmp_path: Path) -> None:
    run = Run()
    for _ in range(2):
        with run.module():
            run.thunk("all-gather-start.1", 1_000, kernel=NCCL, stream=8)
            run.free[0, 7] = run.free[0, 8] - shared_ns
            run.thunk("fusion.2", 500)
            run.free[0, 8] = run.free[0, 7]
            run.now = max(run.now, run.free[0, 7])
    costs = measure_costs(run.written(tmp_path))

    # One hundredth is a tie, and passes.
    assert (OVERLAP in notes(costs)) == warned


def test_compute_of_another_device_is_not_beside(tmp_path: Path) -> None:
    run = Run()
    for _ in range(2):
        start = run.now = max(run.now, *run.free.values(), 0)
        for device in (0, 1):
            run.free[device, 7] = start
            with run.module(tid=10 + device):
                kernel, op = ((NCCL, "all-gather-start.1"), ("gemm", "fusion.2"))[device]
                run.thunk(op, 5_000, kernel=kernel, device=device, tid=10 + device)

    assert OVERLAP not in notes(measure_costs(run.written(tmp_path)))


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter", "async", "collective-permute"])
def test_pairs_with_something_between_are_told(kind: str, between: bool, tmp_path: Path) -> None:
    run = Run()
    for _ in range(2):
        with run.module():
            run.thunk(f"{kind}-start.1", 100, kernel=NCCL)
            if between:
                run.thunk("fusion.2", 100)
            run.thunk(f"{kind}-done.9")
            run.thunk("fusion.3", 100)

    assert (PAIRS in notes(measure_costs(run.written(tmp_path)))) == between


def test_pairs_that_cross_are_apart(tmp_path: Path) -> None:
    run = Run()
    for _ in range(2):
        with run.module():
            for half in ("start.1", "done.2"):
                for kind in ("all-gather", "reduce-scatter"):
                    run.thunk(f"{kind}-{half}", *([100] if half == "start.1" else []), kernel=NCCL)
    costs = measure_costs(run.written(tmp_path))

    assert [n.count for n in costs.limitations if n.what == PAIRS] == [4]


def test_sends_and_receives_are_apart_by_nature(tmp_path: Path) -> None:
    run = Run()
    for _ in range(2):
        with run.module():
            for op in ("send.1", "recv.2", "send-done.3", "recv-done.4"):
                run.thunk(op, 100, kernel=NCCL)

    assert PAIRS not in notes(measure_costs(run.written(tmp_path)))


def test_graphs_hide_instructions(tmp_path: Path) -> None:
    run = Run()
    for _ in range(2):
        with run.module():
            with run.range("Thunk:#hlo_op=command_buffer.1#"):
                run.launch(100, call="cudaGraphLaunch_v10000")
            run.thunk("fusion.2", 100)
    costs = measure_costs(run.written(tmp_path))

    assert [n.count for n in costs.limitations if n.what == GRAPHS] == [1]


# Comparisons


def test_estimates_are_held_against_a_profile(tmp_path: Path) -> None:
    costs = measure_costs(steps(2).written(tmp_path))
    found = compare_costs(
        costs.instructions, {"fusion.1": 0.5, "all-gather-start.2": 2.54, "gone.1": 3.0}
    )

    # 0.540 us and 1.001 us were measured.
    assert [own.name for own in found.differences] == ["all-gather-start.2", "fusion.1"]
    assert [own.off_us for own in found.differences] == pytest.approx([-2.0, 0.501])
    assert [own.ratio for own in found.differences] == pytest.approx([0.54 / 2.54, 2.002])
    assert found.unmeasured == ("gone.1",)
    assert found.unestimated == ()
    assert (found.estimated_us, found.measured_us) == pytest.approx((3.04, 1.541))
    assert (found.off_us, found.unmeasured_us) == pytest.approx((2.501, 3.0))


def test_fingerprints_of_modules_are_taken_off(tmp_path: Path) -> None:
    costs = measure_costs(steps(2).written(tmp_path))
    found = compare_costs(costs.instructions, {"90ab::fusion.1": 1.0, "12cd::fusion.1": 2.0})

    assert [(own.name, own.estimated_us) for own in found.differences] == [("fusion.1", 2.0)]


def test_nothing_to_compare_and_ties(tmp_path: Path) -> None:
    costs = measure_costs(steps(2).written(tmp_path))
    nothing = compare_costs(costs.instructions, {})
    assert (nothing.differences, len(nothing.unestimated)) == ((), 2)
    assert compare_costs((), {}).off_us == 0

    equal = compare_costs(costs.instructions, {"fusion.1": 1.001, "all-gather-start.2": 0.54})
    assert [own.name for own in equal.differences] == ["all-gather-start.2", "fusion.1"]
    assert [own.ratio for own in equal.differences] == [1.0, 1.0]
    assert compare_costs(costs.instructions, {"fusion.1": 0.0}).differences[0].ratio is None


# The command


def called(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["pgle", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_writes_text_and_binary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = steps(4).written(tmp_path)
    before = path.read_bytes()
    expected = {"all-gather-start.2": 0.54, "fusion.1": 1.002}

    text, binary = tmp_path / "costs.pbtxt", tmp_path / "costs.pb"
    code, out, err = called(capsys, path, "-o", text)
    assert (code, err) == (0, "")
    assert (
        "2 instructions, of them 1 collectives; p90 of executions and devices: 6 executions" in out
    )
    assert "--xla_gpu_enable_latency_hiding_scheduler=false" in out
    assert f"--xla_gpu_pgle_profile_file_or_directory_path={text}\n" in out
    assert called(capsys, path, "-o", binary)[0] == 0
    assert read_costs(str(text)) == read_costs(str(binary)) == expected
    assert pbtxt.read(text.read_bytes()) == pb.read(binary.read_bytes())
    assert called(capsys, path, "-o", "-")[:2] == (0, text.read_text())
    assert path.read_bytes() == before
    assert {file.name for file in tmp_path.iterdir()} == {"jax.sqlite", text.name, binary.name}


def test_a_file_that_xla_does_not_read_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "costs.txt"
    code, _, err = called(capsys, steps(2).written(tmp_path), "-o", file)

    assert (code, err.count("\n")) == (0, 1)
    assert f"{file}: written as text, but XLA reads files that end with .pb or .pbtxt" in err
    assert set(dict(pbtxt.read(file.read_bytes()))) == {"fusion.1", "all-gather-start.2"}


def test_nothing_is_replaced_without_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, file = steps(2).written(tmp_path), tmp_path / "costs.pbtxt"
    file.write_text("mine")

    code, out, err = called(capsys, path, "-o", file)
    assert (code, out, file.read_text()) == (1, "", "mine")
    assert "--force" in err
    assert called(capsys, path, "-o", file, "--force")[0] == 0
    assert file.read_text() != "mine"
    assert called(capsys, path, "-o", path, "-f")[0] == 1
    (tmp_path / "costs.jit_step_7_.pbtxt").write_text("mine")
    code, _, err = called(capsys, path, "--modules", "-o", file)
    assert (code, (tmp_path / "costs.jit_step_7_.pbtxt").read_text()) == (1, "mine")
    assert "costs.jit_step_7_.pbtxt: exists already" in err


def test_modules_are_written_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = steps(2).written(tmp_path)
    code, out, _ = called(capsys, path, "--modules", "-o", tmp_path / "costs.pbtxt")

    assert code == 0
    assert read_costs(str(tmp_path / "costs.jit_step_7_.pbtxt"))["fusion.1"] == 1.001
    assert f"path={tmp_path / 'costs.jit_step_7_.pbtxt'}\n" in out
    assert not (tmp_path / "costs.pbtxt").exists()


def test_the_command_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, file, table = steps(2).written(tmp_path), tmp_path / "a.pb", tmp_path / "off.csv"
    file.write_bytes(pb.write({"fusion.1": 0.5, "=gone": 3.0, "all-gather-start.2": 0.54}))
    code, out, err = called(capsys, path, "--against", file, "--csv", table)

    assert (code, err) == (0, "")
    lines = out.splitlines()
    rows = [at for at, line in enumerate(lines) if line.startswith(("fusion.1 ", "all-gather"))]
    assert lines[rows[0]].split() == ["fusion.1", "0.500", "1.001", "2.002", "+0.501", "1"]
    assert lines[rows[1]].startswith("all-gather-start.2")
    assert "estimated, not in the profile: 1 instructions, 3.000 us (=gone)" in out
    read = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [row["instruction"] for row in read] == ["fusion.1", "all-gather-start.2"]
    assert float(read[0]["ratio"]) == pytest.approx(2.002)


def test_without_a_file_the_costs_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = called(capsys, steps(2).written(tmp_path))

    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines() if line.startswith("fusion.1")] == [
        ["fusion.1", "1.001", "1", "compute"]
    ]


def test_limitations_go_to_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run()
    for _ in range(2):
        with run.module():
            run.thunk("all-gather-start.1", 1_000, kernel=NCCL, stream=8)
            run.thunk("fusion.2", 1_000)
            run.thunk("all-gather-done.1")
    code, out, err = called(capsys, run.written(tmp_path), "-o", "-")

    assert code == 0
    assert set(pbtxt.read(out.encode())) == {("all-gather-start.1", 1.0), ("fusion.2", 1.0)}
    assert [line.split(" (")[0] for line in err.splitlines()] == [
        "bubbleviz: limitation: collectives overlap compute",
        "bubbleviz: limitation: asynchronous collectives",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--aggregate", "p101"], "not one of"),
        (["--aggregate-collectives", "most"], "not one of"),
        (["--csv", "x.csv"], "--against"),
        (["--modules", "--against", "x.pb"], "--module NAME"),
        (["--modules", "-o", "-"], "name a file"),
        (["--module", "jit_other"], "jit_step(7)"),
        (["--skip", "-1"], "--skip"),
    ],
)
def test_wrong_usage_is_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = called(capsys, steps(2).written(tmp_path), *arguments)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_hostile_names_are_inert_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["<script>x", "a\nb\x1b[2J", "=1+1", '" } costs { name: "', "z" * 10_000, "größe"]
    run = Run()
    for _ in range(2):
        with run.module("<b>\n" + "m" * 10_000):
            for name in names:
                run.thunk(name, 1_000)
    path, file = run.written(tmp_path), tmp_path / "costs.pbtxt"
    assert called(capsys, path, "-o", file)[0] == 0
    _, shown, _ = called(capsys, path)
    code, out, _ = called(capsys, path, "--against", file, "--csv", "-")

    assert code == 0
    assert read_costs(str(file)) == dict.fromkeys(names, 1.0)
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert max(map(len, shown.splitlines())) < 250
    cells = {row["instruction"] for row in csv.DictReader(io.StringIO(out))}
    assert not any(cell.startswith("=") for cell in cells)


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    path = steps(3).written(tmp_path)
    written = [contents_of(measure_costs(path, jobs=jobs), "c.pbtxt") for jobs in (1, 2)]

    assert written[0] == written[1]


def test_a_report_is_exported_and_goes_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = steps(2)
    run.launch(10)
    export = run.written(tmp_path)
    report, program = tmp_path / "jax.nsys-rep", tmp_path / "bin" / "nsys"
    report.write_bytes(b"not what SQLite writes")
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nshift 4; cp {export} "$1"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    costs = measure_costs(report)

    assert told(costs) == told(measure_costs(export))
    loose = [n for n in costs.limitations if n.what == "work outside every instruction"]
    assert [n.reason.split(":")[0] for n in loose] == [str(report)]


def test_the_same_profile_twice_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = steps(2).written(tmp_path)
    code, _, err = called(capsys, path, path)

    assert code == 1
    assert "the same profile twice" in err


def test_limitations_of_clocks_are_no_warnings(tmp_path: Path) -> None:
    costs = measure_costs(steps(2).written(tmp_path))

    assert "what the GPUs are" in notes(costs)
    assert pgle_text.warnings(costs.limitations) == ()
