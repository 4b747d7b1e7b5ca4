"""Layouts: the best of all, by the times of the simulator and within the memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bubbleviz.errors import UsageError
from bubbleviz.model.columns import Ints
from bubbleviz.schedules.known import schedule_named
from bubbleviz.schedules.layout.layers import Layers, Layout, even_layout, layout_workload
from bubbleviz.schedules.layout.partition import (
    BROKEN_OFF,
    NONE_FITS,
    Partition,
    balanced,
    best_partition,
)
from bubbleviz.schedules.layout.recurrence import Recurrence
from bubbleviz.schedules.workload import outcome_of
from tests.schedules.layout.models import all_layouts, brute_force, model, simulated

#: Schedules with one order, and sizes that they allow: p, m, v.
ORDERS = [
    ("1f1b", 3, 5, 1), ("gpipe", 3, 4, 1), ("zb-h1", 3, 6, 1), ("zb-h2", 3, 6, 1),
    ("zb-v", 2, 5, 2), ("interleaved-1f1b", 2, 4, 2), ("looped-bfs", 2, 4, 2),
    ("dualpipev", 2, 4, 2),
]  # fmt: skip
numbers = st.lists(st.integers(0, 50), min_size=7, max_size=7)


def best(name: str, sizes: tuple[int, int, int], layers: Layers, **given: object) -> Partition:
    found = best_partition(Recurrence(schedule_named(name).plan(*sizes)), layers, **given)  # type: ignore[arg-type]
    assert isinstance(found, Partition)
    return found


def rows(layouts: Sequence[Layout]) -> Ints:
    return np.array([layout.bounds for layout in layouts], np.int64)


def test_a_layer_on_its_only_stage_has_one_layout() -> None:
    found = best("1f1b", (1, 2, 1), model([10]))

    assert found.layout.bounds == (0, 1)
    assert (found.makespan_ns, found.proven) == (60, True)


def test_no_layout_has_a_stage_without_layers() -> None:
    with pytest.raises(UsageError, match="2 layers for 3 virtual stages: each needs one"):
        best("1f1b", (3, 4, 1), model([10, 10]))


def test_layouts_that_take_equally_long_are_told_apart_by_nothing() -> None:
    layers = model([10] * 6)
    again = [best("1f1b", (3, 4, 1), layers) for _ in range(2)]

    assert again[0] == again[1]
    assert again[0].layout.bounds == (0, 2, 4, 6)
    assert again[0].proven


def test_layers_without_any_time_have_a_layout() -> None:
    found = best("1f1b", (2, 3, 1), model([0, 0, 0]))

    assert (found.makespan_ns, found.proven) == (0, True)
    assert (found.layout.bounds[0], found.layout.bounds[-1]) == (0, 3)


def test_a_last_layer_without_time_is_part_of_the_layout() -> None:
    layers = model([10, 10, 10, 10, 10, 0], resident=[0, 0, 0, 0, 0, 1000])
    recurrence = Recurrence(schedule_named("1f1b").plan(2, 3, 1))

    assert best("1f1b", (2, 3, 1), layers).layout.bounds[-1] == 6
    assert best_partition(recurrence, layers, [100.0, 100.0]) == NONE_FITS
    assert balanced(layers, 2).tolist() == [0, 2, 6]


def test_a_heavy_head_takes_layers_off_the_last_stage() -> None:
    found = best("1f1b", (4, 16, 1), model([10] * 12 + [30]))

    assert [len(stage) for stage in found.layout.stages] == [4, 4, 4, 1]


@pytest.mark.parametrize(("name", "stages", "microbatches", "chunks"), ORDERS)
@settings(max_examples=15, deadline=None)
@given(
    st.tuples(numbers, numbers, numbers, numbers, numbers, numbers),
    st.lists(st.integers(1, 9), min_size=7, max_size=7),
)
def test_the_recurrence_is_the_simulator(
    name: str,
    stages: int,
    microbatches: int,
    chunks: int,
    times: tuple[list[int], ...],
    held: list[int],
) -> None:
    """Also the memory, and the longest path, which is as long as the makespan."""
    forward, backward, weight, fused, down, up = times
    layers = model(
        forward, backward_ns=backward, weight_ns=weight, fused_ns=fused, down_ns=down, up_ns=up,
        held=held, kept=[each / 2 for each in held], resident=[1.0] * 7,
    )  # fmt: skip
    plan = schedule_named(name).plan(stages, microbatches, chunks)
    recurrence = Recurrence(plan)
    layouts = all_layouts(7, recurrence.placement)[:10]
    found = recurrence.makespans(layers, rows(layouts))

    assert found.tolist() == [simulated(plan, layers, layout)[0] for layout in layouts]
    limit = [30.0] * stages
    found_best = best_partition(recurrence, layers, limit)
    wanted = brute_force(plan, layers, limit)
    if not isinstance(found_best, Partition):
        assert (found_best, wanted) == (NONE_FITS, None)
    else:
        assert found_best.makespan_ns == wanted
        assert found_best.proven
        assert simulated(plan, layers, found_best.layout, limit) == (wanted, True)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("name", "chunks"), [("1f1b", 1), ("zb-h1", 1), ("zb-v", 2)])
def test_of_245157_layouts_the_best_is_found(name: str, chunks: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    times = random.integers(900, 1300, (3, 24))
    times[:, 0], times[:, -1] = random.integers(100, 800, 3), random.integers(1500, 4000, 3)
    layers = model(times[0], backward_ns=times[1], weight_ns=times[2], down_ns=200, up_ns=300)
    recurrence = Recurrence(schedule_named(name).plan(8 // chunks, 16, chunks))
    inner = np.array(list(combinations(range(1, 24), 7)), np.int64)
    ends = np.zeros((len(inner), 1), np.int64)
    every = np.concatenate((ends, inner, ends + 24), axis=1)
    found = best_partition(recurrence, layers)

    assert len(every) == 245_157
    assert isinstance(found, Partition)
    assert found.proven
    assert found.makespan_ns == recurrence.makespans(layers, every).min()


def test_a_search_that_is_broken_off_bounds_what_it_did_not_look_at() -> None:
    random = np.random.default_rng(5)
    layers = model(random.integers(900, 1300, 16).tolist())
    whole = best("interleaved-1f1b", (4, 8, 2), layers)
    cut = best("interleaved-1f1b", (4, 8, 2), layers, beginnings=1)

    assert whole.proven
    assert not cut.proven
    assert cut.least_ns <= whole.makespan_ns <= cut.makespan_ns


def test_a_search_that_is_broken_off_does_not_say_that_nothing_fits() -> None:
    random = np.random.default_rng(11)
    times, held, resident = (random.integers(*ends, 12) for ends in ((5, 50), (1, 30), (0, 60)))
    layers = model(times.tolist(), held=held.tolist(), resident=resident.tolist())
    recurrence = Recurrence(schedule_named("interleaved-1f1b").plan(2, 4, 2))
    limit = [350.0, 350.0]

    assert isinstance(best_partition(recurrence, layers, limit), Partition)
    assert best_partition(recurrence, layers, limit, beginnings=1) == BROKEN_OFF
    assert best_partition(recurrence, layers, [1.0, 1.0]) == NONE_FITS


def test_a_start_is_not_made_worse() -> None:
    layers = model([10] * 12 + [30])
    start = even_layout(layers, tuple(range(4)))
    found = best("1f1b", (4, 16, 1), layers, starts=[start])

    assert start.bounds == (0, 3, 6, 9, 13)
    assert found.makespan_ns < simulated(schedule_named("1f1b").plan(4, 16, 1), layers, start)[0]


def test_what_fits_no_layout_is_none() -> None:
    recurrence = Recurrence(schedule_named("1f1b").plan(2, 4, 1))

    assert best_partition(recurrence, model([1, 1, 1]), [1.9, 1.9]) == NONE_FITS
    # Stage 0 holds two microbatches, stage 1 one.
    assert isinstance(best_partition(recurrence, model([1, 1, 1]), [2.0, 2.0]), Partition)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(1, 50), min_size=6, max_size=6),
    st.lists(st.integers(0, 80), min_size=9, max_size=9),
)
def test_links_between_devices_are_part_of_the_times(times: list[int], links: list[int]) -> None:
    layers, between = model(times, down_ns=3, up_ns=5), np.array(links).reshape(3, 3)
    plan = schedule_named("1f1b").plan(3, 4, 1)
    recurrence = Recurrence(plan, between)
    layouts = all_layouts(6, recurrence.placement)
    every = [
        outcome_of(plan, layout_workload(layers, layout, 4, edges=recurrence.edges)).makespan_ns
        for layout in layouts
    ]
    found = best_partition(recurrence, layers)

    assert recurrence.makespans(layers, rows(layouts)).tolist() == every
    assert isinstance(found, Partition)
    assert found.proven
    assert found.makespan_ns == min(every)
