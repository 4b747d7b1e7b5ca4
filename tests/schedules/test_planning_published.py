"""Published orders are never better than plans at their own times and memory."""

from __future__ import annotations

import pytest

from bubbleviz.schedules.plan import looped_placement, v_placement
from bubbleviz.schedules.planning import best_plan
from bubbleviz.schedules.workload import Workload
from tests.support.published_orders import Row, numbers, reference

#: Schedules of one pipeline of the table, and whether they lie in a V.
PLACED = {
    **dict.fromkeys(("1F1B", "1F1B-I", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p", "ZB-3p"), False),
    **dict.fromkeys(("1F1B-V", "ZB-V", "ZB-V-handcrafted", "V-Half", "V-Min"), True),
    **dict.fromkeys(("torch:ScheduleGPipe", "torch:ScheduleInterleaved1F1B"), False),
    **dict.fromkeys(("torch:ScheduleInterleavedZeroBubble", "torch:ScheduleLoopedBFS"), False),
    "torch:ScheduleZBVZeroBubble": True,
    "torch:ScheduleDualPipeV/splitFB": True,
}


def workload_of(row: Row) -> Workload:
    """Return the times and the memory of a published order, in ticks of 1 us / v."""
    p, m, v, tf, tb, tw, tcomm = numbers(
        row, "p", "m", "chunks", "tf_us", "tb_us", "tw_us", "tcomm_us"
    )
    placement = v_placement(p) if PLACED[row["schedule"]] else looped_placement(p, v)
    count = len(placement)
    cut = [tcomm * v * (placement[s] != placement[s + 1]) for s in range(count - 1)]
    return Workload(
        placement,
        m,
        (tf,) * count,
        (tb,) * count,
        (tw,) * count,
        (tb + tw,) * count,
        (*cut, 0),
        (0, *cut),
        (1 / v,) * count,
        (1 / v,) * count,
        (float(row["peak_act_until_W"]),) * p,
    )


@pytest.mark.parametrize("name", PLACED)
def test_no_published_order_is_shorter(name: str) -> None:
    """A few of each, for time."""
    rows = [row for row in reference("schedules.csv") if row["schedule"] == name]
    rows = [row for row in rows if row["makespan_us"] and row["p"] == "4"]

    assert rows
    for row in rows[:: max(1, len(rows) // 2)]:
        found = best_plan(workload_of(row), split=True, prove=False)
        length_us = found.best.outcome.makespan_ns / float(row["chunks"])
        assert length_us <= float(row["makespan_us"]) + 0.01, row["function"]
        assert found.bound_ns / float(row["chunks"]) <= length_us + 0.01
