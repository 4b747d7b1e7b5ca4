"""Reordering: what is out of place goes back to where the plan has it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.explain.recognition.orders import difference
from bubbleviz.explain.recognition.recognition import Deviation
from bubbleviz.explain.what_if import turns_of
from bubbleviz.model.columns import Ints
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import Phase
from tests.support.drawn_reports import Op, operations_of

ITERATIONS = np.array([0])


def ran(*order: tuple[Phase, int]) -> Operations:
    """Return the operations of a rank, in this order."""
    table = operations_of(
        [Op(0, phase, n, 10 * k, 10 * k + 9) for k, (phase, n) in enumerate(order)]
    )[0]
    count = len(table)
    return table.changed(host_start_ns=np.arange(count), iteration=np.zeros(count, np.int64))


def deviation(operations: Operations, row: int, what: str, places: int) -> Deviation:
    """Return the deviation of an operation."""
    phase, microbatch = int(operations.phase[row]), int(operations.microbatch[row])
    return Deviation(0, 0, Phase(phase), microbatch, int(operations.chunk[row]), what, places)


def planned(operations: Operations, deviations: Sequence[Deviation]) -> list[int]:
    """Return the rows in the order in which they take their turns."""
    rows: Ints = np.arange(len(operations))
    turns = turns_of(operations, rows, deviations, ITERATIONS)
    order: list[int] = np.argsort(turns, kind="stable").tolist()
    return order


MEASURED = ((Phase.F, 0), (Phase.F, 1), (Phase.BW, 0), (Phase.F, 2), (Phase.BW, 1), (Phase.BW, 2))


@pytest.mark.parametrize(
    ("row", "what", "places", "order"),
    [
        (2, "late", 1, [0, 2, 1, 3, 4, 5]),
        (2, "late", 2, [2, 0, 1, 3, 4, 5]),
        (1, "early", 1, [0, 2, 1, 3, 4, 5]),
        (0, "early", 5, [1, 2, 3, 4, 5, 0]),
    ],
)
def test_one_goes_back(row: int, what: str, places: int, order: list[int]) -> None:
    operations = ran(*MEASURED)

    assert planned(operations, [deviation(operations, row, what, places)]) == order


def test_where_some_are_missing_all_keep_their_turns() -> None:
    operations = ran(*MEASURED)
    late = deviation(operations, 2, "late", 1)
    missing = Deviation(0, 0, Phase.F, 7, 0, "missing", 0)

    assert planned(operations, [late, missing]) == [0, 1, 2, 3, 4, 5]


@given(st.integers(2, 12), st.data())
def test_any_one_operation_goes_back_by_its_difference_from_the_plan(
    count: int, data: st.DataObject
) -> None:
    measured = list(range(count))
    moved = measured.pop(data.draw(st.integers(0, count - 1)))
    measured.insert(data.draw(st.integers(0, count - 1)), moved)
    diff = difference(np.array(measured), np.arange(count))
    operations = ran(*((Phase.F, number) for number in measured))
    deviations = [
        deviation(operations, measured.index(code), "late" if places > 0 else "early", abs(places))
        for code, places in zip(diff.moved.tolist(), diff.places.tolist(), strict=True)
    ]

    rows = planned(operations, deviations)
    assert [measured[row] for row in rows] == list(range(count))
