"""Joined recordings on other clocks: by way of some, and at once."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from bubbleviz.align.merge import JoinedRecordings, join, on_clocks
from bubbleviz.align.offsets import ProfileClock
from bubbleviz.conventions.convention_file import find_conventions
from bubbleviz.interpret.fleet.run_recordings import Fleet, record_all
from bubbleviz.interpret.record import ReadOptions
from bubbleviz.interpret.recording import Recordings
from bubbleviz.model.columns import Table
from bubbleviz.progress import Unwatched
from tests.planting import plant
from tests.planting.options import Planting

MACHINES = ("a", "b", "c")
BEFORE = tuple(ProfileClock(offset_ns, None) for offset_ns in (0, 500, -700))


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Recordings:
    folder = tmp_path_factory.mktemp("run")
    plant(Planting(stages=3, servers=3, microbatches=4, iterations=2, reduce_ns=100_000), folder)
    parts, _ = record_all(
        Fleet(1), Fleet(1).find([str(folder)]), ReadOptions(find_conventions(())), Unwatched()
    )
    return parts


def columns(joined: JoinedRecordings) -> dict[str, list[int]]:
    """Return all columns of all tables."""
    found = {}
    for part in fields(joined):
        value = getattr(joined, part.name)
        if isinstance(value, Table):
            for name in value.column_names():
                found[f"{part.name}.{name}"] = getattr(value, name).tolist()
        elif isinstance(value, np.ndarray):
            found[part.name] = value.tolist()
    return found


@pytest.mark.parametrize(
    "after",
    [
        (ProfileClock(0, 0), ProfileClock(499, 20), ProfileClock(12_345, None)),
        (ProfileClock(0, 0), ProfileClock(7, 20, -31.25, 4_000), ProfileClock(0, 1, 50.0, -9)),
    ],
)
def test_times_are_moved_by_steps_as_at_once(
    recordings: Recordings, after: tuple[ProfileClock, ...]
) -> None:
    joined, none = join(recordings, MACHINES), (ProfileClock(0, 0),) * 3
    before = on_clocks(joined, none, BEFORE)

    moved = on_clocks(before, BEFORE, after)

    assert columns(moved) == columns(on_clocks(joined, none, after))
    for rank in joined.ranks:
        own = np.flatnonzero(joined.unattributed.rank == rank.profile)
        at_ns = joined.unattributed.start_ns[own]
        assert moved.unattributed.start_ns[own].tolist() == after[rank.profile].of(at_ns).tolist()
    shared = before.operations.start_ns is before.busy.start_ns
    assert (moved.operations.start_ns is moved.busy.start_ns) == shared
