"""Planning: never worse than a fixed order, equal to brute force, with correct bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.native.library import SWITCH, get_library
from bubbleviz.schedules.plan import Memory, Plan, make_looped_placement, make_v_placement
from bubbleviz.schedules.plan_memory import compute_peak_memory
from bubbleviz.schedules.planning import find_best_plan, list_fixed_plans
from bubbleviz.schedules.search.makespan_bound import compute_lower_bound
from bubbleviz.schedules.search.orders import _run_trials, find_shortest_orders, improve_orders
from bubbleviz.schedules.search.problem import Codes, build_problem, decode_plan
from bubbleviz.schedules.simulation import simulate_outcome
from bubbleviz.schedules.workload import Workload, build_device_workload
from tests.support.compiled import build_library
from tests.support.published_orders import Row, read_numbers, read_reference

pytestmark = pytest.mark.thorough

QUIET = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def workload(
    placement: tuple[int, ...],
    microbatches: int,
    times: tuple[int, ...] = (10, 10, 10),
    transfer: int = 0,
    limit: float | None = None,
) -> Workload:
    devices = max(placement) + 1
    of_devices = [(time,) * devices for time in times]
    return build_device_workload(placement, microbatches, of_devices, transfer, Memory(limit))


@st.composite
def workloads(draw: st.DrawFn, max_microbatches: int = 4) -> Workload:
    devices = draw(st.integers(1, 3))
    placement = draw(
        st.sampled_from(
            [tuple(range(devices)), make_v_placement(devices), make_looped_placement(devices, 2)]
        )
    )
    count = len(placement)

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=count, max_size=count)))

    cut = [a != b for a, b in pairwise(placement)]
    backward, weight, activation = each(1, 20), each(0, 20), each(0, 5)
    down, up = each(0, 15), each(0, 15)
    min_memory = max(
        sum(h for h, at in zip(activation, placement, strict=True) if at == d) for d in placement
    )
    return Workload(
        placement,
        draw(st.integers(1, max_microbatches)),
        each(1, 20),
        backward,
        weight,
        tuple(b + w for b, w in zip(backward, weight, strict=True)),
        (*(t * far for t, far in zip(down, cut, strict=False)), 0),
        (0, *(t * far for t, far in zip(up, cut, strict=False))),
        tuple(map(float, activation)),
        tuple(draw(st.integers(0, max_microbatches)) * 1.0 for max_microbatches in activation),
        draw(st.none() | st.floats(1, 3).map(lambda room: (max(1, min_memory) * room,) * devices)),
        split=draw(st.booleans()),
    )


def all_orders(counts: dict[int, int]) -> Iterator[list[int]]:
    """Yield every order of operations of one device, in lexicographic order."""
    if not counts:
        yield []
    for code in sorted(counts):
        rest = {other: n - (other == code) for other, n in counts.items()}
        for order in all_orders({other: n for other, n in rest.items() if n}):
            yield [code, *order]


def shortest_of_all(work: Workload, *, fused: bool) -> int:
    """Return the shortest makespan over all orders of all devices."""
    problem = build_problem(work, fused=fused)

    @cache
    def of(device: int) -> list[list[int]]:
        stages = problem.stages[device]
        phases = (0, 1) if fused else (0, 1, 2)
        return list(all_orders({3 * s + f: work.microbatches for s in stages for f in phases}))

    def together(device: int, codes: Codes) -> int:
        if device == problem.devices:
            improved = improve_orders(problem, codes, 0)
            return 1 << 60 if improved is None else improved[0]
        return min(together(device + 1, [*codes, order]) for order in of(device))

    return together(0, [])


def checked(plan: Plan, work: Workload) -> None:
    """Assert that a plan contains every operation exactly once, and fits in memory."""
    ran = sorted(
        (op.virtual_stage, op.microbatch, phase)
        for order in plan.orders
        for op in order
        for phase in ((Phase.B, Phase.W) if op.phase is Phase.BW else (op.phase,))
    )
    assert ran == sorted(
        (s, mb, phase)
        for s in range(work.virtual_stages)
        for mb in range(work.microbatches)
        for phase in (Phase.F, Phase.B, Phase.W)
    )
    if work.limit is not None:
        peaks = compute_peak_memory(plan, work.activation, work.weight_activation)
        assert all(a <= b * (1 + 1e-9) for a, b in zip(peaks, work.limit, strict=True))


@QUIET
@given(workloads())
def test_the_best_plan_is_no_worse_than_any_fixed_one_that_fits(work: Workload) -> None:
    best = find_best_plan(work)

    checked(best.best.plan, work)
    for plan in list_fixed_plans(work):
        outcome = simulate_outcome(plan, work)
        if outcome.fits and (work.split or not plan.splits):
            assert best.best.makespan_ns <= outcome.makespan_ns
    assert best.lower_bound_ns <= best.best.makespan_ns
    assert best.split is work.split
    if work.split:
        assert best.best_split is None
    else:
        assert not best.best.plan.splits
        assert best.best_split is not None
        checked(best.best_split.plan, work)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(workloads(max_microbatches=2), st.booleans())
def test_the_search_is_as_good_as_trying_all_orders(work: Workload, fused: bool) -> None:
    work = replace(work, split=not fused)
    if work.virtual_stages > 2 or (not fused and work.virtual_stages * work.microbatches > 3):
        work = replace(work, microbatches=1)
    if work.virtual_stages > 3:
        return

    best = find_best_plan(work)

    assert best.best.makespan_ns == shortest_of_all(work, fused=fused)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(workloads(max_microbatches=4), st.booleans())
def test_the_search_is_as_good_as_cp_sat(work: Workload, fused: bool) -> None:
    pytest.importorskip("ortools", reason="OR-tools is not installed")
    from tests.support.exact_orders import solve_exactly

    problem = build_problem(work, fused=fused)
    length, _ = find_shortest_orders(problem, lambda _: [], weights=not fused)

    exact = solve_exactly(problem, weights=not fused, deterministic_time=2.0)

    assert exact.lower_bound <= length
    if exact.is_optimal:
        assert compute_lower_bound(problem) <= exact.makespan
        assert length <= exact.makespan * 1.05
        # Both models of an order's time agree.
        replayed = improve_orders(problem, exact.codes, 0)
        assert replayed is not None
        assert replayed[0] == exact.makespan


@QUIET
@given(workloads(), st.integers(1, 30), st.integers(0, 50), st.booleans())
def test_the_compiled_search_gives_the_same(
    work: Workload, memory: int, rise: int, makespan: bool
) -> None:
    if get_library() is None:
        pytest.skip("the compiled part is missing")
    problem = build_problem(work, fused=not work.split, makespan=makespan)
    phases = (1, 2) if work.split else (1,)
    codes = [
        [*(3 * s for s in stage), *(3 * s + phase for s in reversed(stage) for phase in phases)]
        * work.microbatches
        for stage in problem.stages
    ]
    options = {"memory": memory, "rise": rise, "seed": memory}
    compiled = improve_orders(problem, codes, 60, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, "0")
        assert improve_orders(problem, codes, 60, **options) == compiled
        if makespan and compiled is not None:
            plan = decode_plan("", problem, compiled[1], fused=not work.split)
            assert simulate_outcome(plan, work).makespan_ns == compiled[0]


@QUIET
@given(workloads(max_microbatches=6), st.booleans())
def test_compiled_trials_give_the_same(work: Workload, makespan: bool) -> None:
    problem = build_problem(work, fused=not work.split, makespan=makespan)
    library = build_library()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bubbleviz.native.library._load_once", lambda: library)
        compiled = _run_trials(problem, weights=True)
        patch.setenv(SWITCH, "0")
        assert _run_trials(problem, weights=True) == compiled


def test_trials_whose_times_need_more_than_64_bits_run_without_compiled_code() -> None:
    problem = build_problem(workload((0, 1, 1, 0), 3))
    lengths = tuple(length << 52 for length in problem.lengths)

    assert _run_trials(replace(problem, lengths=lengths), weights=True) == _run_trials(
        problem, weights=True
    )


def test_orders_that_deadlock_or_do_not_fit_are_refused() -> None:
    problem = build_problem(workload((0, 1), 2, limit=1.0), fused=True)

    # B of the first stage needs B of the second stage, which waits for a second F.
    assert improve_orders(problem, [[0, 1, 0, 1], [3, 3, 4, 4]], 10) is None
    assert improve_orders(problem, [[0, 0, 1, 1], [3, 4, 3, 4]], 10) is None
    assert improve_orders(problem, [[1, 0, 0, 1], [3, 4, 3, 4]], 10) is None
    assert improve_orders(problem, [[0, 1, 0, 1], [3, 4, 3, 4]], 0) is not None


def test_a_long_link_has_more_microbatches_in_transfer() -> None:
    best = find_best_plan(replace(workload((0, 1), 16, transfer=40), split=False))

    names = {candidate.plan.name: candidate.makespan_ns for candidate in best.candidates}
    assert best.best.makespan_ns < names["1f1b"]


def test_a_run_with_whole_backwards_is_offered_the_gain_of_splitting() -> None:
    work = replace(workload((0, 1, 2, 3), 8, limit=4.0), split=False)

    best, split_plan = find_best_plan(work), find_best_plan(work, split=True)

    assert best.best_split is not None
    assert (best.best.plan.splits, best.best_split.plan.splits, split_plan.best_split) == (
        False,
        True,
        None,
    )
    assert best.best_split.makespan_ns < best.best.makespan_ns
    assert split_plan.best.makespan_ns == best.best_split.makespan_ns


def test_a_whole_backward_that_is_shorter_than_its_halves_stays_whole() -> None:
    work = replace(workload((0, 1), 4), fused_ns=(12, 12))

    best = find_best_plan(work)

    assert best.split
    assert any(op.phase is Phase.BW for row in best.best.plan.orders for op in row)
    assert (
        best.lower_bound_ns
        <= best.best.makespan_ns
        < find_best_plan(workload((0, 1), 4)).best.makespan_ns
    )


def test_one_device_has_no_bubble() -> None:
    best = find_best_plan(workload((0,), 3))

    assert best.is_proven
    assert best.best.makespan_ns == 90
    assert best.max_improvement == 0


def test_every_order_of_a_placement_occurs_once_under_its_name() -> None:
    """As in PyTorch's Interleaved1F1B (4 ranks, 6 microbatches), six run in one round."""
    in_rounds = [plan.name for plan in list_fixed_plans(workload(make_looped_placement(4, 2), 6))]
    plans = list_fixed_plans(workload((0, 1, 2, 3), 8))

    assert in_rounds == ["interleaved-1f1b", "interleaved-zb", "looped-bfs"]
    assert {"1f1b", "gpipe", "zb-h1", "zb-h2"} <= {plan.name for plan in plans}
    assert len(plans) == len({plan.orders for plan in plans})


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (workload((0, 1), 4, limit=0.9), "is too small: on device 0, a single microbatch needs 1;"),
        (workload(tuple(range(8)), 10_000), "240,000 operations are too many to plan"),
        (replace(workload((0, 1), 4), microbatches=0), "0 microbatches: must be at least 1"),
    ],
)
def test_what_cannot_be_planned_is_refused(work: Workload, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        find_best_plan(work)


def test_memory_limits_by_virtual_stage_and_device_are_kept() -> None:
    """The first device needs twice the memory per microbatch, and can store two microbatches."""
    work = replace(
        workload((0, 1, 2), 12), activation=(2.0, 1.0, 1.0), weight_activation=(2.0, 1.0, 1.0)
    )
    free = find_best_plan(work).best
    bound = find_best_plan(replace(work, limit=(4.0, 4.0, 4.0))).best

    assert bound.peak_memory[0] <= 4.0
    assert free.makespan_ns < bound.makespan_ns


@pytest.mark.parametrize("activation", [(5.0, 0.0), (0.0, 5.0), (0.0, 0.0)])
@pytest.mark.parametrize("limit", [None, (5.0, 5.0), (5.0, 0.0), (0.0, 0.0)])
@pytest.mark.parametrize("split", [True, False])
def test_a_virtual_stage_that_holds_nothing_has_room_for_all(
    activation: tuple[float, ...], limit: tuple[float, ...] | None, *, split: bool
) -> None:
    work = replace(
        workload((0, 1), 5), activation=activation, weight_activation=activation, split=split
    )
    work = replace(work, limit=limit)
    if limit is not None and any(a > b for a, b in zip(activation, limit, strict=True)):
        with pytest.raises(UsageError, match="a single microbatch needs"):
            find_best_plan(work)
        return

    best = find_best_plan(work)

    checked(best.best.plan, work)
    assert best.best.allowed
    free = find_best_plan(replace(work, activation=(0.0, 0.0), weight_activation=(0.0, 0.0)))
    assert best.best.makespan_ns >= free.best.makespan_ns


#: Schedules in the table with one pipeline, and whether their placement is V-shaped.
PLACED = {
    **dict.fromkeys(["1F1B", "1F1B-I", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p", "ZB-3p"], False),
    **dict.fromkeys(["1F1B-V", "ZB-V", "ZB-V-handcrafted", "V-Half", "V-Min"], True),
    **{f"torch:Schedule{name}": False for name in ("GPipe", "Interleaved1F1B", "LoopedBFS")},
    "torch:ScheduleInterleavedZeroBubble": False,
    **{f"torch:Schedule{name}": True for name in ("ZBVZeroBubble", "DualPipeV/splitFB")},
}


def workload_of(row: Row) -> Workload:
    """Return the workload (times and memory) of a published order, in ticks of 1 us / v."""
    p, m, v, tf, tb, tw, tcomm = read_numbers(
        row, "p", "m", "chunks", "tf_us", "tb_us", "tw_us", "tcomm_us"
    )
    placement = make_v_placement(p) if PLACED[row["schedule"]] else make_looped_placement(p, v)
    return workload(placement, m, (tf, tb, tw), tcomm * v, float(row["peak_act_until_W"]))


@pytest.mark.real_files
def test_no_published_order_is_shorter(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """A few orders of each schedule are tested with a reduced time budget."""
    monkeypatch.setattr("bubbleviz.schedules.planning._MAX_TIMED", 10_000_000)
    for name in PLACED:
        with subtests.test(name=name):
            rows = [row for row in read_reference("schedules.csv") if row["schedule"] == name]
            rows = [row for row in rows if row["makespan_us"] and row["p"] == "4"]

            assert rows
            for row in rows[:: max(1, len(rows) // 2)]:
                best = find_best_plan(workload_of(row), split=True)
                length_us = best.best.makespan_ns / float(row["chunks"])
                assert length_us <= float(row["makespan_us"]) + 0.01, row["function"]
                assert best.lower_bound_ns / float(row["chunks"]) <= length_us + 0.01
