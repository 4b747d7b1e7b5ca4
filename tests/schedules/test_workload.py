"""Workloads: times by virtual stage and edge, and memory by device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bubbleviz.errors import MismatchError, UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.known import find_schedule
from bubbleviz.schedules.measured_times import build_workload
from bubbleviz.schedules.plan import OperationTimes
from bubbleviz.schedules.simulation import simulate_outcome
from bubbleviz.schedules.workload import Workload

TWO = Workload(
    placement=(0, 1),
    microbatches=2,
    forward_ns=(10, 20),
    backward_ns=(5, 7),
    weight_ns=(3, 4),
    fused_ns=(8, 11),
    down_ns=(100, 0),
    up_ns=(0, 1000),
    activation=(2.0, 3.0),
    weight_activation=(1.0, 3.0),
)


def kinds(*rows: tuple[int, int, str, float, int]) -> list[OperationTimes]:
    return [
        OperationTimes(Phase[phase], median_ns, stage, chunk, virtual_stage)
        for stage, chunk, phase, median_ns, virtual_stage in rows
    ]


def test_a_plan_is_timed_by_virtual_stage_and_by_direction() -> None:
    outcome = simulate_outcome(find_schedule("1f1b").plan(2, 2, 1), TWO)

    # F0 and F1 of stage 0 end at 10 and 20.
    # Stage 1 begins at 110 and runs F B F B, which take 20 and 11 each.
    assert outcome.makespan_ns == 110 + 2 * 31 + 1000 + 8
    assert outcome.simulation.cost_ns == outcome.makespan_ns
    assert outcome.peak_memory == (4.0, 3.0)
    assert outcome.fits


def test_a_split_backward_keeps_part_of_its_memory_until_w() -> None:
    plan = find_schedule("zb-h1").plan(2, 2, 1)

    assert [str(op) for op in plan.orders[1]] == ["1F0", "1B0", "1F1", "1B1", "1W0", "1W1"]
    assert simulate_outcome(plan, TWO).peak_memory == (4.0, 6.0)
    assert simulate_outcome(plan, replace(TWO, limit=(4.0, 6.0))).fits
    assert not simulate_outcome(plan, replace(TWO, limit=(4.0, 5.9))).fits


def test_a_plan_of_another_placement_is_refused() -> None:
    with pytest.raises(
        UsageError, match="zb-v and the run place virtual stages on different devices"
    ):
        simulate_outcome(find_schedule("zb-v").plan(2, 2, 2), TWO)


def test_a_measured_workload_has_the_transfers_of_each_edge() -> None:
    v = build_workload(
        kinds(
            (0, 0, "F", 10.4, 0), (1, 0, "F", 11, 1), (1, 1, "F", 12, 2), (0, 1, "F", 13, 3),
            (0, 0, "BW", 21, 0), (1, 0, "BW", 22, 1), (1, 1, "B", 12, 2), (0, 1, "B", 13, 3),
            (1, 1, "W", 5, 2), (0, 1, "W", 6, 3), (0, 1, "BW", 18, 3), (0, 1, "R", 1, 3),
            (1, 0, "RECV_F", 100, 1), (0, 0, "RECV_B", 200, 0), (0, 1, "RECV_F", 300, 3),
        ),
        250.0,
        4,
    )  # fmt: skip

    assert v == Workload(
        placement=(0, 1, 1, 0),
        microbatches=4,
        forward_ns=(10, 11, 12, 13),
        backward_ns=(11, 11, 12, 14),
        weight_ns=(10, 11, 5, 6),
        fused_ns=(21, 22, 17, 19),
        # The gradient of the last edge never waited.
        # Its transfer time therefore equals that of the activation.
        down_ns=(100, 0, 300, 0),
        up_ns=(0, 200, 0, 300),
        activation=(0.5,) * 4,
        weight_activation=(0.5,) * 4,
        split=True,
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "the stages are unknown; pass --order"),
        ([(0, -1, "F", 1.0, -1)], "the stages are unknown; pass --order"),
        ([(0, 0, "F", 1.0, 0), (1, 0, "F", 1.0, 2)], "virtual stage 1 of 3 is missing"),
        ([(0, 0, "F", 1.0, 0)], "virtual stage 0 has no forwards or no backwards"),
        ([(0, 0, "FB", 1.0, 0)], "covers overlapping forwards and backwards"),
    ],
)
def test_a_run_that_lacks_times_is_refused(
    rows: list[tuple[int, int, str, float, int]], message: str
) -> None:
    with pytest.raises(MismatchError, match=message):
        build_workload(kinds(*rows), None, 1)
