"""The planter's orders agree with bubbleviz's orders and with PyTorch's files."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bubbleviz.schedules.communication import torch_csv
from bubbleviz.schedules.known import SCHEDULES, find_schedule
from bubbleviz.schedules.plan import Plan
from tests.planting import orders
from tests.support.needs import get_reference_file
from tests.support.published_orders import OURS, parse_listed_plan, read_numbers, read_reference

#: Names of the schedules whose order does not depend on durations.
NAMES = sorted(rule.name for rule in SCHEDULES if rule.has_one_order)


def cells_of(plan: Plan | orders.Plan) -> list[list[tuple[int, str, int]]]:
    """Return the operations of each device as (virtual stage, phase, microbatch)."""
    return [
        [(op.virtual_stage, op.phase.label, op.microbatch) for op in order] for order in plan.orders
    ]


def test_all_schedules_with_one_order_can_be_planted() -> None:
    assert sorted(orders.SCHEDULES) == NAMES
    assert {name: rule.chunks for name, rule in orders.SCHEDULES.items()} == {
        name: find_schedule(name).chunks for name in NAMES
    }


@settings(max_examples=200)
@given(
    name=st.sampled_from(NAMES),
    p=st.integers(1, 4).map(lambda half: 2 * half),
    groups=st.integers(2, 5),
    v=st.integers(2, 4),
)
def test_both_packages_write_the_same_orders(name: str, p: int, groups: int, v: int) -> None:
    chunks = v if name.startswith(("interleaved", "combined", "looped")) else 0
    if name == "hanayo":
        chunks = 2 * (v - 1)
    planted = orders.make_plan(name, p, p * groups, chunks)
    rule = find_schedule(name)
    package_plan = rule.plan(p, p * groups, chunks or rule.chunks)

    assert cells_of(planted) == cells_of(package_plan)
    assert planted.placement == package_plan.placement
    assert (planted.chunks, planted.replicas) == (package_plan.chunks, package_plan.replicas)
    together = {(op.virtual_stage, op.phase, op.microbatch) for op in planted.together}
    assert together == {(op.virtual_stage, op.phase, op.microbatch) for op in package_plan.together}


@settings(max_examples=60)
@given(
    name=st.sampled_from(["1f1b", "gpipe", "zb-h1", "zb-h2", "zb-v"]),
    p=st.integers(1, 6),
    m=st.integers(1, 9),
)
def test_both_packages_write_the_same_orders_of_few_microbatches(name: str, p: int, m: int) -> None:
    rule = find_schedule(name)

    assert cells_of(orders.make_plan(name, p, m)) == cells_of(rule.plan(p, m, rule.chunks))


@pytest.mark.real_files
def test_planted_orders_are_the_published_ones() -> None:
    """The test covers rows that contain an order, for schedules whose published order is unique."""
    is_equal = (
        "1F1B",
        "torch:ScheduleGPipe",
        "torch:ScheduleInterleaved1F1B",
        "torch:ScheduleLoopedBFS",
    )
    rows = [
        row
        for row in read_reference("schedules.csv")
        if row["schedule"] in is_equal and row["order"]
    ]
    compared = 0
    for row in rows:
        p, m, v = read_numbers(row, "p", "m", "chunks")
        if m % p == 0 or row["schedule"] in is_equal[:2]:
            planted = orders.make_plan(OURS[row["schedule"]], p, m, v)
            assert cells_of(planted) == cells_of(parse_listed_plan(row)), row["schedule"]
            compared += 1
    assert compared >= 4


@pytest.mark.real_files
@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("DualPipeV.2ranks.4mb.csv", "dualpipev"),
        ("Interleaved1F1B.2ranks.4mb.csv", "interleaved-1f1b"),
        ("ZBVZeroBubble.2ranks.4mb.csv", "zb-v"),
    ],
)
def test_planted_orders_agree_with_pytorch(file: str, name: str) -> None:
    text = get_reference_file(f"torch_csv/{file}").read_text(encoding="utf-8")

    assert cells_of(orders.make_plan(name, 2, 4)) == cells_of(torch_csv.read(text, file).plan)


def test_an_order_can_come_from_a_file() -> None:
    plan = find_schedule("v-half").plan(4, 8, 2)
    read = orders.parse_plan(torch_csv.write(plan))

    assert cells_of(read) == cells_of(plan)
    assert (read.placement, read.chunks, read.microbatches) == (plan.placement, 2, 8)
