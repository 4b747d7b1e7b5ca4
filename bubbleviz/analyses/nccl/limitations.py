"""Limitations: what event files and profiles do not show of communication, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bubbleviz.analyses.nccl.communications import Alignment, Communications, RecordingClock, Split
from bubbleviz.analyses.nccl.profiles import NcclProfile
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.texts import listed
from bubbleviz.sources.nccl.events import EventFile


def file_limitations(file: EventFile) -> Iterator[Limitation]:
    """Yield what an event file lacks, or holds without use."""
    for what, count, reason in (
        ("objects that are no event", file.unreadable, "cut, or damaged; they are left out"),
        ("events without an end", file.unfinished, "the job, or the file, ended before"),
        ("ends without a begin", file.unbegun, "their begin is missing; they are left out"),
        ("operations recorded twice", file.repeated, "the profiler wrote them again; once counts"),
        ("events of unknown categories", file.strange, "they are left out"),
        (
            "times of GPUs far from their others",
            file.strange_clocks,
            "damaged; these operations have the host's times",
        ),
    ):
        if count:
            yield Limitation(what, f"{file.path}: {reason}", count)


def profile_limitations(profile: NcclProfile) -> Iterator[Limitation]:
    """Yield what a profile does not say of its operations."""
    yield from profile.limitations
    if profile.without_kernels:
        reason = f"{profile.source.path}: they ran in graphs, or beyond the capture"
        yield Limitation("calls of NCCL without kernels", reason, profile.without_kernels)


def duration_limitations(table: Communications) -> Iterator[Limitation]:
    """Yield the operations of unknown duration."""
    endless = int((table.duration_ns < 0).sum())
    if endless:
        yield Limitation(
            "operations of unknown duration",
            "neither the GPU nor a proxy thread recorded their end; record kernel events "
            "(NCCL_PROFILE_EVENT_MASK=4095), give a profile, and end the job in order",
            endless,
        )


def clock_limitations(ambiguous: int, clocks: Sequence[RecordingClock]) -> Iterator[Limitation]:
    """Yield the clocks that are not aligned, or only roughly.

    Args:
        ambiguous: operations whose clock several offsets put onto kernels equally well.
        clocks: of profiles and event files.
    """
    if ambiguous:
        yield Limitation(
            "operations that kernels match at several offsets",
            "they come too evenly, or are too few; give an instant with --anchor",
            ambiguous,
        )
    alignments = [clock.aligned_by for clock in clocks]
    if Alignment.UNALIGNED in alignments and len(clocks) > 1:
        yield Limitation(
            "clocks that could not be aligned",
            "no kernel and no common operation ties them to another, so their times stand alone; "
            "give an instant with --anchor",
            alignments.count(Alignment.UNALIGNED),
        )
    if Alignment.UTC in alignments:
        yield Limitation(
            "hosts aligned by UTC alone",
            "waiting between them is known to milliseconds at best",
            alignments.count(Alignment.UTC),
        )
    if Alignment.OPERATIONS in alignments:
        yield Limitation(
            "clocks aligned by the ends of operations",
            "the members of an operation are taken to end together",
            alignments.count(Alignment.OPERATIONS),
        )


def run_limitations(clocks: Sequence[RecordingClock], profiles: int) -> Iterator[Limitation]:
    """Yield the event files that nothing ties to the profiles: they may be of another run.

    Args:
        clocks: of profiles, then of event files.
        profiles: how many of them are of profiles.
    """
    loose = [clock.label for clock in clocks[profiles:] if not clock.aligned]
    if profiles and loose:
        yield Limitation(
            "event files that may be of another run than the profiles",
            f"{listed(loose, 3)}: none of their operations is "
            "one of the profiles' kernels, and totals count both; measure them apart, or give an "
            "instant with --anchor",
            len(loose),
        )


def member_limitations(
    table: Communications, instance: Ints, ranks: Sequence[int | None]
) -> Iterator[Limitation]:
    """Yield the operations whose members are missing, or assumed.

    Args:
        table: operations.
        instance: a number that the members of each share; -1 unknown.
        ranks: number of ranks of each communicator; None unknown.
    """
    alone = (table.split == Split.UNKNOWN) & (table.duration_ns >= 0)
    if alone.any():
        yield Limitation(
            "operations whose waiting is unknown",
            "there is no other member on an aligned clock, and no proxy thread; give the files of "
            "all ranks",
            int(alone.sum()),
        )
    ordered = int((table.split == Split.ORDER).sum())
    if ordered:
        yield Limitation(
            "operations paired by their order alone",
            "the profiles hold no communicators; all GPUs ran as many kernels, each at one time, "
            "and these are taken for one operation",
            ordered,
        )
    rows = np.flatnonzero((instance != NONE) & (table.split == Split.MEMBERS) & (table.peer < 0))
    if len(rows):
        members = groups_of(instance[rows])
        sizes = np.array([size or 0 for size in ranks], np.int64)
        whole = sizes[table.communicator[rows]]
        few = np.bincount(members.of_row)[members.of_row] < whole
        if few.any():
            yield Limitation(
                "operations of which not all members were recorded",
                "a missing member may have begun later: they waited at least as long",
                int(few.sum()),
            )
