"""Stream numbers: what a profile holds of waiting, beside the work that is analysed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import distinct, looked_up
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.profile import Activities, Profile
from bubbleviz.model.synchronisation import EventRecords, Synchronisation, Waits


def synchronisation_of(
    profile: Profile,
) -> tuple[Synchronisation | None, tuple[Limitation, ...]]:
    """Return what a profile holds of waiting, None where that is nothing, and what is lost.

    What names no process is that of the only one that ran work.
    """
    if profile.synchronisation is None or not profile.launches_known:
        return None, ()
    found, lost = profile.synchronisation()
    processes = distinct(profile.activities.ranks[:, 0])
    if found is None or len(processes) != 1:
        return found, lost
    records, waits = found.records, found.waits
    return replace(
        found,
        records=replace(records, process=_filled(records, int(processes[0]))),
        waits=replace(waits, process=_filled(waits, int(processes[0]))),
    ), lost


def _filled(table: EventRecords | Waits, process: int) -> Ints:
    return np.where(table.process < 0, process, table.process)


def with_streams_of(
    work: Activities, found: Synchronisation, recorded: Activities
) -> Synchronisation:
    """Return the same, with the streams of the work that is analysed.

    Args:
        work: rows of the recorded work, in any order.
        found: with the streams of the recorded work.
        recorded: all of it.
    """
    keys, wanted = _keys(recorded), _keys(work)
    if all(map(np.array_equal, keys, wanted)):
        return found
    # Two pieces of work that agree in all of it have one launch, and most times one stream.
    return replace(found, streams=looked_up(keys, found.streams, wanted))


def _keys(work: Activities) -> tuple[Ints, ...]:
    """Return columns that tell pieces of work apart."""
    process, device = work.ranks[work.rank].T
    return work.start_ns, work.end_ns, work.correlation_id.astype(np.int64), process, device
