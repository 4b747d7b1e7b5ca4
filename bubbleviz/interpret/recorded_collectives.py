"""Recorded collectives: among whom kernels communicate, as far as a profile tells.

PyTorch's profiler describes the collective of each kernel. NCCL's ranges carry their communicator;
a kernel belongs to the last range that its thread had opened when it launched it::

    thread   ├ ncclAllReduce ┤      ├ ncclAllGather ┤
    calls           ├ launch ┤             ├ launch ┤
"""

from __future__ import annotations

from dataclasses import field

import numpy as np

from bubbleviz.conventions.kinds import Kinds, matching
from bubbleviz.interpret.linking.links import LinkResult, Links
from bubbleviz.interpret.told_operations import sound_collectives
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.nccl_payloads import Payloads
from bubbleviz.model.preceding import last_before
from bubbleviz.model.process_groups import Collectives, Group
from bubbleviz.model.profile import Activities, Profile
from bubbleviz.model.values import frozen


@frozen
class RecordedCollectives(Table):
    """What is recorded of kernels, one row a kernel, ascending; -1 unknown.

    Attributes:
        kernel: row of the activities.
        operation: a number that kernels of one operation share.
        group: row of ``groups``.
        sequence: number of the operation in its group.
        groups: communicators and process groups.
    """

    kernel: Ints
    operation: Ints
    group: Ints
    sequence: Ints
    groups: tuple[Group, ...] = field(metadata={"shared": True})


def recorded_collectives(
    profile: Profile,
    activities: Activities,
    linked: LinkResult,
    communication: Bools,
    kinds: Kinds,
) -> RecordedCollectives:
    """Return what a profile records of the collectives of its kernels.

    Args:
        profile: the profile, whose file is still open.
        activities: its work, named as what it carries out.
        linked: its work and launches.
        communication: which of the work is communication.
        kinds: lists of what kernels are.
    """
    if profile.collectives is not None:
        return _of_pytorch(sound_collectives(profile.collectives, linked.sound))
    if profile.payloads is None or not profile.payloads_described:
        return _nothing()
    rows = np.flatnonzero(communication[: activities.kernels])
    passing = matching(activities.names, kinds.point_to_point)
    rows = rows[~passing[activities.name_id[rows]]]
    if len(rows) == 0:
        return _nothing()
    payloads, _ = profile.payloads()
    return _of_nccl(payloads, rows, linked.links)


def _nothing() -> RecordedCollectives:
    none = np.empty(0, np.int64)
    return RecordedCollectives(none, none.copy(), none.copy(), none.copy(), ())


def _of_pytorch(collectives: Collectives) -> RecordedCollectives:
    """Return what PyTorch's profiler records of kernels."""
    known = collectives.take(collectives.group != NONE)
    # A batch of sends and receives is one kernel, and no collective.
    first = groups_of(known.kernel).first
    return RecordedCollectives(
        known.kernel[first],
        known.operation[first],
        known.group[first],
        known.sequence[first],
        collectives.groups,
    )


def _of_nccl(payloads: Payloads, rows: Ints, links: Links) -> RecordedCollectives:
    """Return the communicators of kernels.

    Args:
        payloads: of NCCL's ranges.
        rows: kernels of collectives.
        links: of all work.
    """
    sizes = np.zeros(len(payloads.communicators), np.int64)
    some = payloads.communicator >= 0
    np.maximum.at(sizes, payloads.communicator[some], payloads.ranks[some])
    # Ranges that begin or end a communicator move nothing.
    payloads = payloads.take((payloads.communicator >= 0) & (payloads.bytes >= 0))
    rows = rows[links.call[rows] != NONE]
    thread = links.threads[links.thread[rows]]
    opened = last_before(
        payloads.thread, payloads.start_ns, thread, links.launched_ns[rows], or_at=True
    )
    own = opened != NONE
    rows, opened = rows[own], opened[own]
    groups = tuple(
        Group(name=f"0x{number:016x}", size=size, sole=True)
        for number, size in zip(payloads.communicators, sizes.tolist(), strict=True)
    )
    unknown = np.full(len(rows), NONE, np.int64)
    return RecordedCollectives(rows, unknown, payloads.communicator[opened], unknown.copy(), groups)
