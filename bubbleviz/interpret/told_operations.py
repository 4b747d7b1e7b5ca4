"""Told operations: what a trace says that kernels of NCCL carry out, where their names do not.

NCCL passes data in kernels named after sends and receives for all-to-alls, too, and AMD's have one
name for all. What PyTorch's profiler records of a kernel tells more; then the range around its
launch does::

    range     ├─ nccl:all_to_all ─┤
    call           ├ launch ┤
    kernel                      ├─ ncclDevKernel_SendRecv ─┤     an all-to-all
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.conventions.collective_operations import operation_of, operation_of_range
from bubbleviz.conventions.kinds import matching
from bubbleviz.interpret.linking.links import LinkResult, Links
from bubbleviz.interpret.linking.open_ranges import ThreadRanges
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, joined, widened
from bubbleviz.model.process_groups import Collectives
from bubbleviz.model.profile import Activities, Profile, Ranges
from bubbleviz.model.values import frozen

#: Kernels that carry out more than their names say.
_VAGUE = r"^(?:void )?nccl\w*?(?:SendRecv|Generic)"
#: Operations of two ranks; a batch of both is one kernel.
_PASSES = ("Send", "Recv", "SendRecv")


@frozen
class ToldOperations:
    """The operation of each of some activities, as a trace tells it.

    Attributes:
        operation: row of ``names``; -1 where nothing tells.
        names: of operations, as NCCL has them.
    """

    operation: Ints
    names: tuple[str, ...]


def told_operations(
    collectives: Collectives | None, ranges: Ranges, linked: LinkResult, profile: Profile
) -> ToldOperations:
    """Return the operation that each kernel of a vague name carries out.

    Args:
        collectives: that kernels are recorded to carry out, by the rows of ``linked``; None
            without any.
        ranges: of the profile, those that name operations of NCCL among them.
        linked: the profile's work and its launches.
        profile: whose work it is.
    """
    activities = linked.activities
    vague = np.append(matching(activities.names, (_VAGUE,)), False)
    rows = np.flatnonzero(vague[activities.name_id[: activities.kernels]])
    of_record = [] if collectives is None else [operation_of(name) for name in collectives.names]
    of_range = [operation_of_range(name) for name in ranges.names]
    names = tuple(dict.fromkeys((*_PASSES, *filter(None, (*of_record, *of_range)))))
    operation = np.full(len(activities), NONE, np.int64)
    if len(rows) == 0:
        return ToldOperations(operation, names)
    number = {"": NONE} | {name: place for place, name in enumerate(names)}
    if profile.launches_known:
        of_name = np.array([number[name] for name in of_range], np.int64)
        operation[rows] = _around(rows, linked.links, ranges, of_name, profile)
    if collectives is not None:
        of_name = np.array([number[name] for name in of_record], np.int64)
        recorded = _recorded(collectives, of_name, len(activities))
        recorded[~vague[activities.name_id]] = NONE
        operation = np.where(recorded == NONE, operation, recorded)
    return ToldOperations(operation, names)


def sound_collectives(collectives: Collectives, sound: Bools | None) -> Collectives:
    """Return the collectives of the kernels that are kept; all are if None."""
    if sound is None:
        return collectives
    kept = collectives.take(sound[collectives.kernel])
    return replace(kept, kernel=(np.cumsum(sound) - 1)[kept.kernel])


def with_told_operations(collectives: Collectives, told: ToldOperations) -> Collectives:
    """Return collectives, and one of its own for each other kernel whose operation is told."""
    rows = np.flatnonzero(told.operation != NONE)
    rows = rows[~np.isin(rows, collectives.kernel)]
    columns = dict.fromkeys(Collectives.column_names(), np.full(len(rows), NONE, np.int64)) | {
        "kernel": rows,
        "operation": int(collectives.operation.max(initial=NONE)) + 1 + np.arange(len(rows)),
        "name": told.operation[rows] + len(collectives.names),
        "uneven": np.zeros(len(rows), np.int64),
    }
    more = replace(collectives, **columns)
    return replace(joined((collectives, more)), names=(*collectives.names, *told.names))


def named_as_told(profile: Profile, linked: LinkResult) -> Activities:
    """Return the work of a profile, kernels of vague names named ``nccl:`` and the operation."""
    collectives = profile.collectives
    if collectives is not None:
        collectives = sound_collectives(collectives, linked.sound)
    told = told_operations(collectives, profile.ranges, linked, profile)
    activities = linked.activities
    rows = np.flatnonzero(told.operation != NONE)
    if len(rows) == 0:
        return activities
    named = told.operation[rows] + len(activities.names)
    name_id: Codes = widened(activities.name_id.copy(), named)
    name_id[rows] = named
    names = (*activities.names, *(f"nccl:{name}" for name in told.names))
    return replace(activities, name_id=name_id, names=names)


def _around(rows: Ints, links: Links, ranges: Ranges, of_name: Ints, profile: Profile) -> Ints:
    """Return the operation of the innermost range around each launch that names one; -1 none."""
    operation = np.full(len(rows), NONE, np.int64)
    named = np.flatnonzero(of_name[ranges.name_id] != NONE) if len(of_name) else rows[:0]
    launched = np.flatnonzero(links.call[rows] >= 0)
    if len(named) == 0 or len(launched) == 0:
        return operation
    around = ThreadRanges(ranges, named).around(links.calls_of(rows[launched], profile.calls))
    inside = around != NONE
    operation[launched[inside]] = of_name[ranges.name_id[around[inside]]]
    return operation


def _recorded(collectives: Collectives, of_name: Ints, count: int) -> Ints:
    """Return the operation that records give each activity; -1 where there is none.

    A kernel of several operations is a batch of sends and receives, or of one collective.
    """
    operation = np.full(count, NONE, np.int64)
    numbers = of_name[collectives.name] if len(of_name) else collectives.name[:0]
    np.maximum.at(operation, collectives.kernel[: len(numbers)], numbers)
    sends = np.zeros(count, bool)
    sends[collectives.kernel[numbers == _PASSES.index("Send")]] = True
    both = sends & (operation == _PASSES.index("Recv"))
    operation[both] = _PASSES.index("SendRecv")
    return operation
