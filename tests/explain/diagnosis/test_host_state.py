"""Host state: the call and the range that take half of what was lost."""

from __future__ import annotations

import numpy as np
import pytest

from bubbleviz.explain.diagnosis.fault import HostState, beside_operations, host_during
from bubbleviz.model.operations import HostActivities
from bubbleviz.model.phases import Phase

#: Names of operations, ranges and calls by their numbers: F, step, load, cudaMemcpy.
F, STEP, LOAD, COPY = range(4)


def hosts(*rows: tuple[int, int, int, int, int, int]) -> HostActivities:
    """Return activities of (rank, operation, start, end, call, name)."""
    columns = np.array(rows, np.int64).reshape(-1, 6).T.copy()
    return HostActivities(*columns)


def test_nothing_is_known_of_a_host_that_was_not_recorded() -> None:
    state = host_during(HostActivities.none(), 0, 10, 20, 10)

    assert state == HostState()
    assert not state.known


def test_the_shortest_range_and_the_call_that_take_half_are_named() -> None:
    own = hosts(
        (0, -1, 0, 100, 0, STEP),
        (0, -1, 10, 16, 0, LOAD),
        (0, -1, 10, 13, 1, COPY),
        (0, -1, 13, 15, 1, COPY),
        (1, -1, 10, 20, 0, F),
    )

    assert host_during(own, 0, 10, 20, 10) == HostState(call_id=COPY, range_id=LOAD)
    assert host_during(own, 0, 10, 20, 12) == HostState(range_id=LOAD)
    assert host_during(own, 0, 10, 20, 13) == HostState(range_id=STEP)
    assert host_during(own, 2, 10, 20, 10) == HostState()


@pytest.mark.parametrize(
    ("operation", "call", "name", "kept"),
    [(-1, 0, LOAD, 1), (-1, 0, F, 0), (-1, 1, F, 1), (0, 0, LOAD, 0), (1, 0, LOAD, 1)],
)
def test_ranges_of_operations_and_before_all_but_optimizers_are_left_out(
    operation: int, call: int, name: int, kept: int
) -> None:
    own = hosts((0, operation, 0, 10, call, name), (0, operation, 0, 10, call, name))
    phase = np.array([Phase.F, Phase.OPTIMIZER], np.int64)

    assert len(beside_operations(own, np.array([F]), phase)) == kept
