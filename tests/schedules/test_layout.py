"""Layouts: the best of all layouts that fit in memory, according to the simulator."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bubbleviz.errors import UsageError
from bubbleviz.model.columns import Ints
from bubbleviz.schedules.known import find_schedule
from bubbleviz.schedules.layout import partition
from bubbleviz.schedules.layout.best_layouts import LayoutQuestion, find_best_layouts
from bubbleviz.schedules.layout.framework_options import (
    format_megatron_layout,
    list_torchtitan_modules,
)
from bubbleviz.schedules.layout.layers import (
    LayerKind,
    Layers,
    Layout,
    build_layout_workload,
    make_even_layouts,
)
from bubbleviz.schedules.layout.recurrence import Recurrence
from bubbleviz.schedules.plan import Plan, make_looped_placement, make_v_placement
from bubbleviz.schedules.simulation import simulate_outcome


def model(
    forward_ns: Sequence[int],
    *,
    backward_ns: Sequence[int] | None = None,
    weight_ns: Sequence[int] | None = None,
    fused_ns: Sequence[int] | None = None,
    down_ns: int | Sequence[int] = 0,
    up_ns: int | Sequence[int] = 0,
    activation: Sequence[float] | None = None,
    weight_activation: Sequence[float] | None = None,
    resident: Sequence[float] | None = None,
) -> Layers:
    """Return layers with these times. Omitted values default to the forward time, 1 or 0."""
    count = len(forward_ns)
    forward = np.array(forward_ns, np.int64)
    backward = forward if backward_ns is None else np.array(backward_ns, np.int64)
    weight = forward if weight_ns is None else np.array(weight_ns, np.int64)
    fused = backward + weight if fused_ns is None else np.array(fused_ns, np.int64)
    full = np.ones(count) if activation is None else np.array(activation, float)
    return Layers(
        forward.copy(),
        backward.copy(),
        weight.copy(),
        fused.copy(),
        np.broadcast_to(np.array(down_ns, np.int64), count).copy(),
        np.broadcast_to(np.array(up_ns, np.int64), count).copy(),
        full,
        full.copy() if weight_activation is None else np.array(weight_activation, float),
        np.zeros(count) if resident is None else np.array(resident, float),
        tuple(f"layers.{at}" for at in range(count)),
        (LayerKind.TRANSFORMER,) * count,
    )


def all_layouts(layers: int, placement: tuple[int, ...]) -> list[Layout]:
    """Return every layout with at least one layer per virtual stage."""
    cuts = combinations(range(1, layers), len(placement) - 1)
    return [Layout(placement, (0, *cut, layers)) for cut in cuts]


def simulated(
    plan: Plan, layers: Layers, layout: Layout, limit: Sequence[float] | None = None
) -> tuple[int, bool]:
    """Return the simulated makespan of a plan with a layout, and whether the layout fits."""
    outcome = simulate_outcome(
        plan, build_layout_workload(layers, layout, plan.microbatches, limit)
    )
    return outcome.makespan_ns, outcome.fits


def brute_force(plan: Plan, layers: Layers, limit: Sequence[float] | None = None) -> int | None:
    """Return the shortest makespan of all layouts that fit, or None if no layout fits."""
    layouts = [
        simulated(plan, layers, layout, limit)
        for layout in all_layouts(len(layers), plan.placement)
    ]
    return min((makespan_ns for makespan_ns, fits in layouts if fits), default=None)


#: (schedule, p, m, v) of schedules that have a single order.
ORDERS = [
    ("1f1b", 3, 5, 1), ("gpipe", 3, 4, 1), ("zb-h1", 3, 6, 1), ("zb-h2", 3, 6, 1),
    ("zb-v", 2, 5, 2), ("interleaved-1f1b", 2, 4, 2), ("looped-bfs", 2, 4, 2),
    ("dualpipev", 2, 4, 2),
]  # fmt: skip
numbers = st.lists(st.integers(0, 50), min_size=7, max_size=7)


def find_best(
    name: str, sizes: tuple[int, int, int], layers: Layers, **options: object
) -> partition.Partition:
    recurrence = Recurrence(find_schedule(name).plan(*sizes))
    result = partition.find_best_partition(recurrence, layers, **options)  # type: ignore[arg-type]  # given by name
    assert isinstance(result, partition.Partition)
    return result


def rows(layouts: Sequence[Layout]) -> Ints:
    return np.array([layout.bounds for layout in layouts], np.int64)


def test_no_layout_has_a_stage_without_layers() -> None:
    with pytest.raises(
        UsageError, match="2 layers for 3 virtual stages, but each stage needs at least one"
    ):
        find_best("1f1b", (3, 4, 1), model([10, 10]))
    assert find_best("1f1b", (2, 3, 1), model([0, 0, 0])).makespan_ns == 0


def test_a_last_layer_without_time_is_part_of_the_layout() -> None:
    layers = model([10, 10, 10, 10, 10, 0], resident=[0, 0, 0, 0, 0, 1000])
    recurrence = Recurrence(find_schedule("1f1b").plan(2, 3, 1))

    assert find_best("1f1b", (2, 3, 1), layers).layout.bounds[-1] == 6
    assert partition.find_best_partition(recurrence, layers, [100.0, 100.0]) == partition.NONE_FITS
    assert partition.balance_layers(layers, 2).tolist() == [0, 2, 6]


@pytest.mark.parametrize(("name", "stages", "microbatches", "chunks"), ORDERS)
@settings(max_examples=15, deadline=None)
@given(
    st.tuples(numbers, numbers, numbers, numbers, numbers, numbers),
    st.lists(st.integers(1, 9), min_size=7, max_size=7),
)
def test_the_recurrence_agrees_with_the_simulator(
    name: str,
    stages: int,
    microbatches: int,
    chunks: int,
    times: tuple[list[int], ...],
    activation: list[int],
) -> None:
    """Both also agree on the memory, and on the longest path, whose length is the makespan."""
    forward, backward, weight, fused, down, up = times
    layers = model(
        forward, backward_ns=backward, weight_ns=weight, fused_ns=fused, down_ns=down, up_ns=up,
        activation=activation, weight_activation=[amount / 2 for amount in activation],
        resident=[1.0] * 7,
    )  # fmt: skip
    plan = find_schedule(name).plan(stages, microbatches, chunks)
    recurrence = Recurrence(plan)
    layouts = all_layouts(7, recurrence.placement)[:10]
    makespans_ns = recurrence.compute_makespans(layers, rows(layouts))

    assert makespans_ns.tolist() == [simulated(plan, layers, layout)[0] for layout in layouts]
    limit = [30.0] * stages
    found_best = partition.find_best_partition(recurrence, layers, limit)
    shortest_ns = brute_force(plan, layers, limit)
    if not isinstance(found_best, partition.Partition):
        assert (found_best, shortest_ns) == (partition.NONE_FITS, None)
    else:
        assert found_best.makespan_ns == shortest_ns
        assert found_best.proven
        assert simulated(plan, layers, found_best.layout, limit) == (shortest_ns, True)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("name", "chunks"), [("1f1b", 1), ("zb-h1", 1), ("zb-v", 2)])
def test_the_best_of_245157_layouts_is_found(name: str, chunks: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    times = random.integers(900, 1300, (3, 24))
    times[:, 0], times[:, -1] = random.integers(100, 800, 3), random.integers(1500, 4000, 3)
    layers = model(times[0], backward_ns=times[1], weight_ns=times[2], down_ns=200, up_ns=300)
    recurrence = Recurrence(find_schedule(name).plan(8 // chunks, 16, chunks))
    inner = np.array(list(combinations(range(1, 24), 7)), np.int64)
    first_bound = np.zeros((len(inner), 1), np.int64)
    bounds = np.concatenate((first_bound, inner, first_bound + 24), axis=1)
    best_layout = partition.find_best_partition(recurrence, layers)

    assert len(bounds) == 245_157
    assert isinstance(best_layout, partition.Partition)
    assert best_layout.proven
    assert best_layout.makespan_ns == recurrence.compute_makespans(layers, bounds).min()


def test_an_interrupted_search_bounds_the_layouts_it_did_not_try() -> None:
    random = np.random.default_rng(5)
    layers = model(random.integers(900, 1300, 16).tolist())
    complete = find_best("interleaved-1f1b", (4, 8, 2), layers)
    cut = find_best("interleaved-1f1b", (4, 8, 2), layers, max_nodes=1)

    assert complete.proven
    assert not cut.proven
    assert cut.least_ns <= complete.makespan_ns <= cut.makespan_ns


def test_an_interrupted_search_does_not_claim_that_nothing_fits() -> None:
    random = np.random.default_rng(11)
    times, activation, resident = (
        random.integers(*ends, 12) for ends in ((5, 50), (1, 30), (0, 60))
    )
    layers = model(times.tolist(), activation=activation.tolist(), resident=resident.tolist())
    recurrence = Recurrence(find_schedule("interleaved-1f1b").plan(2, 4, 2))
    limit = [350.0, 350.0]

    assert isinstance(partition.find_best_partition(recurrence, layers, limit), partition.Partition)
    assert (
        partition.find_best_partition(recurrence, layers, limit, max_nodes=1)
        == partition.BROKEN_OFF
    )
    assert partition.find_best_partition(recurrence, layers, [1.0, 1.0]) == partition.NONE_FITS


def test_a_layout_is_compared_with_the_better_of_two_equal_ones() -> None:
    """With 5 layers, the last of which is heavy, the odd layer is on the first stage."""
    question = LayoutQuestion(model([10] * 4 + [20]), 2, 8)
    (row,) = find_best_layouts(question, ["1f1b"])

    assert [each.bounds for each in make_even_layouts(question.layers, (0, 1))] == [
        (0, 2, 5),
        (0, 3, 5),
    ]
    assert row.baseline is not None
    assert row.baseline.bounds == (0, 3, 5)
    assert row.saving == 0


def test_a_start_is_not_made_worse() -> None:
    layers = model([10] * 12 + [30])
    start, _ = make_even_layouts(layers, tuple(range(4)))
    best_layout = find_best("1f1b", (4, 16, 1), layers, starts=[start])

    assert start.bounds == (0, 3, 6, 9, 13)
    assert (
        best_layout.makespan_ns < simulated(find_schedule("1f1b").plan(4, 16, 1), layers, start)[0]
    )


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(1, 50), min_size=6, max_size=6),
    st.lists(st.integers(0, 80), min_size=9, max_size=9),
)
def test_links_between_devices_are_part_of_the_times(times: list[int], links: list[int]) -> None:
    layers, between = model(times, down_ns=3, up_ns=5), np.array(links).reshape(3, 3)
    plan = find_schedule("1f1b").plan(3, 4, 1)
    recurrence = Recurrence(plan, between)
    layouts = all_layouts(6, recurrence.placement)
    every = [
        simulate_outcome(
            plan, build_layout_workload(layers, layout, 4, edges=recurrence.edges)
        ).makespan_ns
        for layout in layouts
    ]
    best_layout = partition.find_best_partition(recurrence, layers)

    assert recurrence.compute_makespans(layers, rows(layouts)).tolist() == every
    assert isinstance(best_layout, partition.Partition)
    assert best_layout.proven
    assert best_layout.makespan_ns == min(every)


HEAVY_HEAD = LayoutQuestion(model([10] * 12 + [30], down_ns=1, up_ns=1), 4, 8)


def test_every_schedule_with_one_order_has_its_best_layout() -> None:
    rows = find_best_layouts(HEAVY_HEAD, [])
    feasible = [row for row in rows if row.best is not None]
    times = [row.best.makespan_ns for row in feasible if row.best]

    assert {"1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "zb-v"} <= {
        row.schedule for row in feasible
    }
    assert times == sorted(times)
    for row in feasible:
        assert row.plan is not None
        assert row.best is not None
        if row.plan.replicas == 1:
            work = build_layout_workload(HEAVY_HEAD.layers, row.best.layout, 8)
            outcome = simulate_outcome(row.plan, work)
            assert outcome.makespan_ns == row.best.makespan_ns
            assert outcome.peak_memory == row.peak_memory
            assert row.bubble_ratio == pytest.approx(outcome.simulation.schedule_ratio)
            assert row.proven
            assert row.baseline_ns is not None
            assert row.saving == 1 - row.best.makespan_ns / row.baseline_ns


def test_the_run_is_compared_with_its_own_layout() -> None:
    run_layout = Layout((0, 1, 2, 3), (0, 1, 2, 3, 13))
    (row,) = find_best_layouts(replace(HEAVY_HEAD, current_layout=run_layout), ["1f1b"])

    assert (row.baseline, row.is_current_layout) == (run_layout, True)
    (even,) = find_best_layouts(HEAVY_HEAD, ["1f1b"])
    assert not even.is_current_layout
    assert row.baseline_ns
    assert even.baseline_ns
    assert row.baseline_ns > even.baseline_ns
    assert row.best
    assert even.best
    assert row.best.layout == even.best.layout


def test_a_limit_is_kept_and_what_does_not_fit_has_a_reason() -> None:
    limit = (14.0,) * 4
    rows = {row.schedule: row for row in find_best_layouts(replace(HEAVY_HEAD, limit=limit), [])}
    row = rows["1f1b"]

    assert row.plan is not None
    assert row.best is not None
    assert row.best.makespan_ns == brute_force(row.plan, HEAVY_HEAD.layers, limit)
    assert max(row.peak_memory) <= 14.0
    assert rows["gpipe"].best is None
    assert rows["gpipe"].reason == "no layout fits into memory"


def test_a_searched_order_and_its_layout_are_improved_in_turn() -> None:
    small = LayoutQuestion(model([10] * 6 + [25]), 2, 4)
    (row,) = find_best_layouts(small, ["zb-1p"])

    assert row.best is not None
    assert row.baseline_ns is not None
    assert row.best.makespan_ns <= row.baseline_ns
    assert not row.exact
    assert not row.proven
    (v,) = find_best_layouts(small, ["v-half"])
    assert v.best is not None
    assert v.best.layout.placement == (0, 1, 1, 0)


def test_sizes_that_a_schedule_does_not_allow_are_refused_or_reported() -> None:
    with pytest.raises(UsageError, match="a multiple of the 4 stages, not 6"):
        find_best_layouts(replace(HEAVY_HEAD, microbatches=6), ["interleaved-1f1b"])
    with pytest.raises(UsageError, match="unknown schedule"):
        find_best_layouts(HEAVY_HEAD, ["none"])
    rows = {row.schedule: row for row in find_best_layouts(HEAVY_HEAD, [], chunks=3)}
    chunks = {name: row.plan.chunks for name, row in rows.items() if row.plan}

    assert (chunks["interleaved-1f1b"], chunks["1f1b"]) == (3, 1)
    assert rows["zb-v"].best is None
    assert rows["zb-v"].reason


KINDS = {
    "E": LayerKind.EMBEDDING, "t": LayerKind.TRANSFORMER, "m": LayerKind.MTP, "L": LayerKind.HEAD,
}  # fmt: skip


def layers_of(letters: str) -> Layers:
    kinds = tuple(KINDS[letter] for letter in letters)
    return replace(model([1] * len(letters)), kinds=kinds)


def layout_of(stages: list[str], chunks: int = 1) -> tuple[Layers, Layout]:
    bounds = [0]
    for stage in stages:
        bounds.append(bounds[-1] + len(stage))
    placement = make_looped_placement(len(stages) // chunks, chunks)
    return layers_of("".join(stages)), Layout(placement, tuple(bounds))


def unrolled(text: str) -> list[str]:
    """Parse the grammar: commas are cosmetic, groups precede letters, and lines separate stages."""
    text = text.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text)
    return text.split("|")


@pytest.mark.parametrize(
    ("stages", "chunks", "expected"),
    [
        (["EtL"], 1, "EtL"),
        (["Et", "tL"], 1, "Et|tL"),
        (["Ettt", *["tt"] * 29, "m", "L"], 2, "Et*3|(tt|)*29m|L"),
        (["Etttt", "ttttt", "ttttt", "tL"], 1, "Et*4|(t*5|)*2tL"),
        (["ttt", "tt"], 1, "Et*3|ttL"),
    ],
)
def test_a_layout_is_written_for_megatron(stages: list[str], chunks: int, expected: str) -> None:
    assert format_megatron_layout(*layout_of(stages, chunks)) == expected


@given(st.lists(st.integers(1, 7), min_size=1, max_size=12))
def test_megatron_reads_the_written_layout(counts: list[int]) -> None:
    stages = ["t" * count for count in counts]
    layout_text = format_megatron_layout(*layout_of(stages))

    assert layout_text is not None
    assert unrolled(layout_text) == ["E" * (not at) + s + "L" * (at == len(stages) - 1)
                                 for at, s in enumerate(stages)]  # fmt: skip


def test_no_layout_is_written_that_megatron_refuses() -> None:
    # Layers for multi-token prediction are on two stages, or on the first chunk of a device.
    assert format_megatron_layout(*layout_of(["Et", "tm", "mL"])) is None
    assert format_megatron_layout(*layout_of(["Et", "m", "t", "L"], 2)) is None
    # A head or an embedding is on two stages, or the placement is V-shaped.
    assert format_megatron_layout(*layout_of(["Et", "tL", "L"])) is None
    assert format_megatron_layout(*layout_of(["E", "Et", "tL"])) is None
    assert (
        format_megatron_layout(layers_of("EttL"), Layout(make_v_placement(2), (0, 1, 2, 3, 4)))
        is None
    )


def test_modules_are_written_for_torchtitan() -> None:
    """The modules include ends that were not measured separately, and a head of several layers."""
    layers, layout = layout_of(["Et", "LL"])
    names = replace(layers, names=("emb", "layers.0", "norm", "output"))

    assert list_torchtitan_modules(*layout_of(["Et", "tt", "L"])) == [
        ["tok_embeddings", "layers.0"], ["layers.1", "layers.2"], ["norm", "output"],
    ]  # fmt: skip
    assert list_torchtitan_modules(*layout_of(["t", "t"])) == [
        ["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"],
    ]  # fmt: skip
    assert list_torchtitan_modules(names, layout)[1] == ["norm", "output"]
