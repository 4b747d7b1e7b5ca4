"""Layouts for schedules: against the run's own, within the memory, for orders that are searched."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bubbleviz.errors import UsageError
from bubbleviz.schedules.layout.best_layouts import LayoutQuestion, best_layouts
from bubbleviz.schedules.layout.layers import Layout, layout_workload
from bubbleviz.schedules.workload import outcome_of
from tests.schedules.layout.models import brute_force, model

HEAVY_HEAD = LayoutQuestion(model([10] * 12 + [30], down_ns=1, up_ns=1), 4, 8)


def test_every_schedule_of_one_order_has_its_best_layout() -> None:
    rows = best_layouts(HEAVY_HEAD, [])
    made = [row for row in rows if row.best is not None]
    times = [row.best.makespan_ns for row in made if row.best]

    assert {"1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "zb-v"} <= {row.schedule for row in made}
    assert times == sorted(times)
    for row in made:
        assert row.plan is not None
        assert row.best is not None
        if row.plan.replicas == 1:
            work = layout_workload(HEAVY_HEAD.layers, row.best.layout, 8)
            outcome = outcome_of(row.plan, work)
            assert outcome.makespan_ns == row.best.makespan_ns
            assert outcome.peak_memory == row.peak_memory
            assert row.bubble_ratio == pytest.approx(outcome.schedule_ratio)
            assert row.proven
            assert row.before_ns is not None
            assert row.saving == 1 - row.best.makespan_ns / row.before_ns


def test_the_run_is_compared_with_its_own_layout() -> None:
    own = Layout((0, 1, 2, 3), (0, 1, 2, 3, 13))
    (row,) = best_layouts(replace(HEAVY_HEAD, own=own), ["1f1b"])

    assert (row.before, row.own) == (own, True)
    (even,) = best_layouts(HEAVY_HEAD, ["1f1b"])
    assert not even.own
    assert row.before_ns
    assert even.before_ns
    assert row.before_ns > even.before_ns
    assert row.best
    assert even.best
    assert row.best.layout == even.best.layout


def test_a_limit_is_kept_and_what_does_not_fit_has_a_reason() -> None:
    limit = (14.0,) * 4
    rows = {row.schedule: row for row in best_layouts(replace(HEAVY_HEAD, limit=limit), [])}
    row = rows["1f1b"]

    assert row.plan is not None
    assert row.best is not None
    assert row.best.makespan_ns == brute_force(row.plan, HEAVY_HEAD.layers, limit)
    assert max(row.peak_memory) <= 14.0
    assert rows["gpipe"].best is None
    assert rows["gpipe"].reason == "no layout fits the memory"


def test_a_searched_order_and_its_layout_are_improved_in_turn() -> None:
    small = LayoutQuestion(model([10] * 6 + [25]), 2, 4)
    (row,) = best_layouts(small, ["zb-1p"])

    assert row.best is not None
    assert row.before_ns is not None
    assert row.best.makespan_ns <= row.before_ns
    assert not row.exact
    assert not row.proven
    (v,) = best_layouts(small, ["v-half"])
    assert v.best is not None
    assert v.best.layout.placement == (0, 1, 1, 0)


def test_sizes_that_a_named_schedule_does_not_allow_are_refused() -> None:
    with pytest.raises(UsageError, match="in groups of the 4 stages, not 6"):
        best_layouts(replace(HEAVY_HEAD, microbatches=6), ["interleaved-1f1b"])
    with pytest.raises(UsageError, match="no schedule is called"):
        best_layouts(HEAVY_HEAD, ["none"])
    rows = best_layouts(replace(HEAVY_HEAD, microbatches=6), [])
    assert {row.schedule: row.reason for row in rows}["interleaved-1f1b"]


def test_chunks_are_of_schedules_that_have_several() -> None:
    rows = {row.schedule: row for row in best_layouts(HEAVY_HEAD, [], chunks=3)}

    assert rows["interleaved-1f1b"].plan
    assert rows["interleaved-1f1b"].plan.chunks == 3
    assert rows["1f1b"].plan
    assert rows["1f1b"].plan.chunks == 1
    assert rows["zb-v"].best is None
