"""Calls that launch work are told by their names, in the host's activities as everywhere."""

from __future__ import annotations

import pytest

from bubbleviz.conventions.host_activities import LAUNCH, TRANSFER, default_activities
from bubbleviz.conventions.launching_calls import (
    COPIES,
    GRAPH_LAUNCHES,
    KERNEL_LAUNCHES,
    MEMSETS,
    WORK_CALLS,
)


@pytest.mark.parametrize("name", [*KERNEL_LAUNCHES, *GRAPH_LAUNCHES])
def test_a_launch_is_an_activity_of_its_own(name: str) -> None:
    assert default_activities().lookup().call(name)[0] == LAUNCH


@pytest.mark.parametrize("name", [*COPIES, *MEMSETS])
def test_a_copy_is_a_transfer(name: str) -> None:
    assert default_activities().lookup().call(name)[0] == TRANSFER


def test_other_calls_launch_nothing() -> None:
    for name in ("cudaLaunchHostFunc_v10000", "cudaGraphInstantiate", "cudaMalloc", "cuLaunchGrid"):
        assert not name.startswith(WORK_CALLS)
