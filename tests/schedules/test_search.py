"""Searched schedules: published rates, and a plain count of what orders must keep to."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bubbleviz.cli.app import main
from bubbleviz.errors import UsageError
from bubbleviz.explain.recognition.recognition import Recognition, schedule_of
from bubbleviz.model.phases import Phase
from bubbleviz.progress import unwatched
from bubbleviz.schedules.formulas import formulas
from bubbleviz.schedules.ideal import Estimate, Ideal, MemoryOptions, estimate, ideal, theory
from bubbleviz.schedules.known import schedule_named, schedules
from bubbleviz.schedules.measured_times import StageTimes
from bubbleviz.schedules.plan import Memory, Plan, Setting
from bubbleviz.schedules.simulation import cost, simulate
from tests.support.measured_orders import devices_of, of_orders
from tests.support.published_orders import Row, numbers, reference
from tests.support.stage_times import stage_durations

#: h and a of the models of Table 5; s is 1024.
MODELS = {"1.5B": (2304, 24), "6.2B": (4096, 32)}
#: Our names of the searched schedules in the tables, and their limit in units of M_B by p.
SEARCHED: dict[str, tuple[str, Callable[[int], float]]] = {
    "ZB-1p": ("zb-1p", lambda p: p),
    "ZB-2p": ("zb-2p", lambda p: 2 * p),
    "ZB-3p": ("zb-2p", lambda p: 3 * p),
    "ZB-V": ("zb-v", lambda p: p),
    "V-Half": ("v-half", lambda p: (p + 2) / 2),
    "V-Min": ("v-min", lambda p: (p + 4) // 3),
}
ALL = [one for one in schedules() if one.searched]


def slow_peaks(plan: Plan, memory: Memory) -> list[float]:
    """Return what each device holds at most, counted one operation after the other."""
    peaks = []
    for order in plan.orders:
        held = most = 0.0
        for op in order:
            if op.phase is Phase.F:
                held += memory.backward / plan.chunks
            elif op.phase is Phase.B:
                held -= (memory.backward - memory.weight) / plan.chunks
            else:
                held -= memory.weight / plan.chunks
            most = max(most, held)
        peaks.append(most)
    return peaks


def checked(plan: Plan, memory: Memory) -> None:
    """Assert that a plan is whole, can be run, and keeps within its memory."""
    stages = range(plan.virtual_stages)
    whole = {
        (stage, phase, microbatch)
        for stage in stages
        for phase in (Phase.F, Phase.B, Phase.W)
        for microbatch in range(plan.microbatches)
    }
    orders = [[(o.virtual_stage, o.phase, o.microbatch) for o in each] for each in plan.orders]
    assert sorted(one for each in orders for one in each) == sorted(whole)
    # Run without times: again and again, whatever has its inputs.
    done: set[tuple[int, Phase, int]] = set()
    at = [0] * plan.stages
    moved = True
    while moved:
        moved = False
        for device, order in enumerate(orders):
            while at[device] < len(order) and inputs(*order[at[device]], stages[-1]) <= done:
                assert plan.placement[order[at[device]][0]] == device
                done.add(order[at[device]])
                at[device] += 1
                moved = True
    assert done == whole
    assert memory.limit is not None
    assert max(slow_peaks(plan, memory)) <= memory.limit * (1 + 1e-9)


def inputs(stage: int, phase: Phase, microbatch: int, last: int) -> set[tuple[int, Phase, int]]:
    if phase is Phase.F:
        return {(stage - 1, Phase.F, microbatch)} if stage else set()
    if phase is Phase.W:
        return {(stage, Phase.B, microbatch)}
    behind = {(stage + 1, Phase.B, microbatch)} if stage < last else set()
    return {(stage, Phase.F, microbatch)} | behind


def searched(row: Row, name: str, memory: MemoryOptions, *, of_makespan: bool = False) -> Ideal:
    p, m, *us = numbers(row, "p", "m", "tf_us", "tb_us", "tw_us", "tcomm_us")
    tf, tb, tw, tcomm = (one / 1000 for one in us)
    times = StageTimes((tf,), (tb,), (tw,), tcomm)
    return ideal(name, p, m, times, memory=memory, of_makespan=of_makespan)


@pytest.mark.parametrize("p", ["4", "8"])
def test_few_microbatches_take_what_the_authors_greedy_orders_take(p: str) -> None:
    """The paper draws ZB-H1 and ZB-H2 for m >= 2p alone.

    With m = p the table has one order under both names: of eight greedy ones that which is best at
    equal times (``initial_solution``). The search finds orders that are as good.
    """
    table = [row for row in reference("schedules.csv") if (row["p"], row["m"]) == (p, p)]
    rows = [row for row in table if row["schedule"] in {"ZB-H1", "ZB-H2"}]

    assert len(rows) == 10
    assert len({row["order"] for row in rows}) == 1
    assert all("initial_solution" in row["function"] for row in rows)
    for row in rows[::2]:
        memory = MemoryOptions(float(p), 1.0, 1.0)
        cheapest = searched(row, "zb-1p", memory)
        shortest = searched(row, "zb-1p", memory, of_makespan=True)
        assert cheapest.stage_ratio is not None
        assert shortest.schedule_ratio is not None
        assert cheapest.stage_ratio <= float(row["bubble_rate"]) + 0.0005, row
        assert shortest.schedule_ratio <= float(row["makespan_bubble_rate"]) + 0.0005, row


def of_model(hidden: int, heads: int) -> tuple[float, float]:
    """Return M_B and M_W of a layer."""
    return 34 * hidden + 5 * heads * 1024, 32 * hidden


@pytest.mark.parametrize(("name", "most"), [("ZB-1p", 24), ("ZB-2p", 32)])
@pytest.mark.parametrize("model", MODELS)
def test_the_search_gives_the_rates_of_the_paper(name: str, most: int, model: str) -> None:
    """Up to so many microbatches, for time."""
    table = reference("zero_bubble_table5.csv")
    rows = [row for row in table if (row["schedule"], row["model"]) == (name, model)]
    rows = [row for row in rows if int(row["m"]) <= most]
    ours, limit = SEARCHED[name]
    backward, weight = of_model(*MODELS[model])

    assert rows
    for row in rows:
        memory = MemoryOptions(None, backward, weight)
        found = searched(row, ours, memory)
        assert found.stage_ratio is not None
        assert found.stage_ratio <= float(row["bubble_rate"]) + 0.0005, row
        assert found.memory.limit == limit(int(row["p"])) * backward
        checked(found.plan, found.memory)


@pytest.mark.parametrize("name", SEARCHED)
def test_the_search_gives_the_rates_of_the_table(name: str) -> None:
    """A part of the table, for time."""
    rows = [
        row
        for row in reference("schedules.csv")
        if row["schedule"] == name
        and (row["p"], row["m"], row["times"])
        in {
            ("4", "4", "paper_1.5B_m24"),
            ("4", "8", "flops_like_nocomm"),
            ("4", "16", "paper_1.5B_m24"),
            ("8", "16", "unit_comm"),
        }
    ]
    ours, limit = SEARCHED[name]
    backward, weight = of_model(4096, 32) if name.startswith("ZB-") else (1.0, 1.0)

    assert len(rows) == 4
    for row in rows:
        given = MemoryOptions(limit(int(row["p"])) * backward, backward, weight)
        found = searched(row, ours, given)
        assert found.stage_ratio is not None
        assert found.stage_ratio <= float(row["bubble_rate"]) + 0.0005, row
        checked(found.plan, found.memory)


@settings(max_examples=25)
@given(
    rule=st.sampled_from(ALL),
    stages=st.integers(1, 4),
    microbatches=st.integers(0, 6),
    times=st.lists(st.integers(0, 9), min_size=12, max_size=12),
    transfer=st.integers(0, 5),
    limit=st.floats(1, 8),
    kept=st.floats(0, 1),
)
def test_what_is_found_is_whole_and_keeps_within_memory(
    rule: object,
    stages: int,
    microbatches: int,
    times: list[int],
    transfer: int,
    limit: float,
    kept: float,
) -> None:
    schedule = next(one for one in ALL if one is rule)
    assert schedule.searched is not None
    memory = Memory(limit, 1.0, kept)
    forward, backward, weight = (tuple(times[n : n + stages]) for n in (0, 4, 8))
    setting = Setting(
        stages, microbatches, schedule.chunks, forward, backward, weight, transfer, memory
    )
    plan = schedule.searched.plan(setting, unwatched)

    assert plan.name == schedule.name
    checked(plan, memory)
    assert plan == schedule.searched.plan(setting, unwatched)


EACH = st.lists(st.integers(1, 9), min_size=5, max_size=5)


@settings(max_examples=25)
@given(
    name=st.sampled_from([one.name for one in ALL]),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 15)),
    times=st.tuples(EACH, EACH, EACH),
    transfer=st.integers(0, 3),
    limit=st.integers(1, 11),
    window=st.sampled_from(["cost_ms", "makespan_ms"]),
)
# One stage sets the pace; W stand where no filling puts them.
@example("zb-1p", (3, 6), ([7, 7, 1], [8, 5, 4], [2, 6, 1]), 0, 3, "cost_ms")
@example("zb-2p", (3, 9), ([3, 5, 5], [8, 6, 8], [8, 2, 1]), 0, 6, "cost_ms")
@example("zb-v", (3, 9), ([3, 6, 7], [4, 5, 2], [7, 9, 6]), 1, 3, "cost_ms")
@example("zb-1p", (8, 24), ([28] * 8, [4] * 8, [16] * 8), 0, 8, "cost_ms")
def test_no_order_that_fits_the_memory_is_better_than_what_is_found(
    name: str,
    sizes: tuple[int, int],
    times: tuple[list[int], list[int], list[int]],
    transfer: int,
    limit: int,
    window: str,
) -> None:
    """Judged by the simulation, at the times of the search."""
    tf, tb, tw = (tuple(map(float, each[: sizes[0]])) for each in times)
    own = StageTimes(tf, tb, tw, transfer)
    memory = MemoryOptions(float(limit), 1.0, 1.0)
    found = ideal(name, *sizes, own, memory=memory, of_makespan=window == "makespan_ms")
    checked(found.plan, found.memory)

    for other in schedules():
        if other.searched is None or other.searched.limit is None:
            try:
                fixed = ideal(other.name, *sizes, own, found.plan.chunks)
            except UsageError:
                continue  # not of these sizes
            alike = (fixed.plan.placement, fixed.plan.replicas) == (found.plan.placement, 1)
            if alike and max(fixed.peak_activations) <= limit:
                assert getattr(found, window) <= getattr(fixed, window), other.name


def test_more_memory_is_no_loss_and_one_microbatch_at_a_time_is_the_least() -> None:
    times = StageTimes((6.0,), (7.0,), (5.0,), 0.5)
    costs = [
        ideal("zb-1p", 4, 8, times, memory=MemoryOptions(limit)).cost_ms
        for limit in (1.0, 2.0, 4.0, 8.0)
    ]

    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == ideal("zb-2p", 4, 8, times).cost_ms
    # One at a time: there and back, with a W in between for its memory.
    assert costs[0] >= 8 * (6.0 * 4 + 7.0 * 4 + 0.5 * 6)


def test_zb_v_is_searched_only_within_a_limit() -> None:
    times = StageTimes((6.0,), (7.2,), (4.8,))
    fixed = ideal("zb-v", 4, 8, times)
    found = ideal("zb-v", 4, 8, times, memory=MemoryOptions(limit=4.0))

    assert fixed.plan == schedule_named("zb-v").plan(4, 8, 2)
    assert fixed.memory.limit is None
    assert fixed.peak_memory == fixed.peak_activations == found.peak_memory == (4.0,) * 4
    assert found.cost_ms < fixed.cost_ms


@pytest.mark.parametrize("p", [3, 5])
def test_v_half_has_half_a_microbatch_more_with_an_odd_number_of_stages(p: int) -> None:
    times = StageTimes((1.0,), (1.0,), (1.0,))
    half, least = (ideal(name, p, 4 * p, times) for name in ("v-half", "v-min"))
    told = schedule_of_plan(half.plan)

    assert half.memory.limit == (p + 2) / 2
    assert max(half.peak_memory) == (p + 2) / 2
    assert half.cost_ms < least.cost_ms
    assert "v-half" in (told.name, *told.also)


def schedule_of_plan(plan: Plan) -> Recognition:
    run = of_orders(devices_of(plan))
    return schedule_of(run.ranks, run.operations, run.iterations)


def test_a_large_search_repeats_the_middle_of_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = schedule_named("v-half").searched
    assert rule is not None
    ones, memory = (10,) * 4, Memory(3.0)

    def bubble(microbatches: int) -> int:
        setting = Setting(4, microbatches, 2, ones, ones, (8,) * 4, 1, memory)
        plan = rule.plan(setting, unwatched)
        checked(plan, memory)
        return cost(simulate(plan, stage_durations(10, 10, 8), transfer_ns=1)) - microbatches * 56

    of_few = bubble(16)
    monkeypatch.setattr("bubbleviz.schedules.search.climbing._MANY", 0)
    # In the steady state there is no bubble, so that what many have is what few have.
    assert bubble(40) <= of_few


def test_the_limit_is_told_with_its_peak(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["-p", "4", "-m", "8", "--tf", "1", "--tb", "1", "--tw", "1"]
    memory = ["--memory-limit", "60", "--memory-b", "10", "--memory-w", "4"]

    assert main(["simulate", "--schedule", "zb-1p", *sizes, *memory, "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)["memory"]
    assert told["limit"] == 60
    assert (told["backward"], told["weight"]) == (10, 4)
    assert len(told["peak"]) == 4
    assert max(told["peak"]) <= 60
    assert main(["simulate", "--schedule", "zb-1p", *sizes, *memory]) == 0
    assert "of 60" in capsys.readouterr().out


def test_chimera_has_the_bubble_of_its_paper() -> None:
    for p in (2, 4, 8):
        # Backward twice as long as forward, one group: (p-2) / (3p/2 + p-2).
        found = ideal("chimera", p, p, StageTimes((1.0,), (1.0,), (1.0,)))
        assert found.schedule_ratio == pytest.approx((p - 2) / (1.5 * p + p - 2))
        assert max(found.peak_activations) == p
        assert min(found.peak_activations) == p / 2 + 1
        # Forward as long as backward: no group waits for the one before but at its ends.
        even = ideal("chimera", p, 4 * p, StageTimes((2.0,), (1.0,), (1.0,)))
        assert even.makespan_ms == 4 * p * 4 + (p - 2) * 2


def test_1f1b_i_gives_the_rates_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row for row in reference("zero_bubble_table5.csv") if row["schedule"] == "1F1B-I"]

    assert len(rows) == 6
    for row in rows:
        p, m, v, *us = numbers(row, "p", "m", "chunks_1f1bi", "tf_us", "tb_us", "tw_us", "tcomm_us")
        tf, tb, tw, tcomm = (str(one / 1000) for one in us)
        sizes = ("-p", str(p), "-m", str(m), "--chunks", str(v), "--tcomm", tcomm)
        options = ["--schedule", "1f1b-i", *sizes, "--tf", tf, "--tb", tb, "--tw", tw]
        assert main(["simulate", *options, "--json", "-"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["bubble_ratio"]["stage"] == pytest.approx(float(row["bubble_rate"]), abs=5e-5)
        assert found["bubble_ratio"]["schedule"] is found["makespan_ms"] is None
        assert found["peak_activations"] is found["memory"] is None
        assert main(["simulate", *options]) == 0
        assert "a formula without an order" in capsys.readouterr().out


def test_a_formula_is_found_by_its_name() -> None:
    nothing = StageTimes((0.0,), (0.0,), (0.0,))
    for formula in formulas():
        assert isinstance(theory(formula.name, 1, 1, nothing), Estimate)
        assert estimate(formula, 2, 2, nothing).stage_ratio is None
        assert formula.drawn in {one.name for one in schedules()}
        assert formula.name not in {one.name for one in schedules()}


SIZES = ("-p", "4", "-m", "8", "--tf", "1", "--tb", "1", "--tw", "1")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--schedule", "1f1b", *SIZES, "--memory-limit", "4"), "1f1b has one order"),
        (("--schedule", "zb-1p", *SIZES, "--memory-limit", "0.5"), "holds no microbatch"),
        (("--schedule", "zb-1p", *SIZES, "--memory-limit", "nan"), "--memory-limit: nan is no"),
        (("--schedule", "zb-1p", *SIZES, "--memory-b", "inf"), "--memory-b: inf is no memory"),
        (("--schedule", "zb-1p", *SIZES, "--memory-w", "2"), "--memory-w: 2.0 is held"),
        (("--schedule", "zb-2p", *SIZES, "--chunks", "2"), "zb-2p has one chunk"),
        (("--schedule", "v-min", *SIZES, "--chunks", "1"), "v-min has two chunks"),
        (("--schedule", "chimera", *SIZES, "--chunks", "2"), "chimera has one chunk"),
        (("--schedule", "chimera", *SIZES, "-m", "6"), "in groups of them"),
        (("--schedule", "chimera", *SIZES, "-p", "3", "-m", "6"), "even number of stages"),
        (("--schedule", "1f1b-i", *SIZES, "--svg", "-"), "nothing to draw"),
        (("--schedule", "1f1b-i", *SIZES, "--memory-b", "2"), "leave the --memory options out"),
        (("--schedule", "1f1b-i", *SIZES, "--tf", "1,2,1,1"), "a formula of equal stages"),
        (("--schedule", "1f1b-i", *SIZES, "-m", "6"), "in groups of the 4 stages, not 6"),
    ],
)
def test_what_cannot_be_searched_is_said_in_a_sentence(
    options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *options]) == 2
    out, err = capsys.readouterr()

    assert said in err
    assert out == ""
    assert err.count("\n") == 1
