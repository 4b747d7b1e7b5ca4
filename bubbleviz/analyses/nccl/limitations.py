"""What could not be told of communication, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bubbleviz.analyses.nccl.clocks import Clock, Placed
from bubbleviz.analyses.nccl.communications import Communications, Split
from bubbleviz.analyses.nccl.kernels import Carried
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operations import Limitation
from bubbleviz.sources.nccl.events import EventFile


def limitations_of(
    recorded: Sequence[EventFile],
    profiles: Sequence[Carried],
    table: Communications,
    placed: Placed,
    clocks: Sequence[Clock],
    instance: Ints,
    ranks: Sequence[int | None],
) -> Iterator[Limitation]:
    """Yield what could not be told."""
    for file in recorded:
        yield from _of_file(file)
    for profile in profiles:
        yield from profile.limitations
        if profile.without:
            reason = f"{profile.source.path}: they ran in CUDA graphs, or beyond the capture"
            yield Limitation("calls of NCCL without kernels", reason, profile.without)
    endless = int((table.duration_ns < 0).sum())
    if endless:
        yield Limitation(
            "operations of unknown duration",
            "neither the GPU nor a proxy thread told when they ended; record kernel events "
            "(NCCL_PROFILE_EVENT_MASK=4095), give a profile, and end the job in order",
            endless,
        )
    yield from _of_clocks(placed, clocks)
    yield from _missing(table, instance, ranks)


def _of_file(file: EventFile) -> Iterator[Limitation]:
    for what, count, reason in (
        ("objects that are no event", file.unreadable, "cut, or damaged; they are left out"),
        ("events without an end", file.unfinished, "the job, or the file, ended before"),
        ("ends without a begin", file.unbegun, "their begin is missing; they are left out"),
        ("operations told twice", file.repeated, "the profiler wrote them again; once counts"),
        ("events of unknown categories", file.strange, "they are left out"),
    ):
        if count:
            yield Limitation(what, f"{file.path}: {reason}", count)


def _of_clocks(placed: Placed, clocks: Sequence[Clock]) -> Iterator[Limitation]:
    if placed.ambiguous:
        yield Limitation(
            "operations that kernels match at several offsets",
            "they come too evenly, or are too few; state one with --anchor",
            placed.ambiguous,
        )
    by = [clock.by for clock in clocks]
    if "own" in by and len(clocks) > 1:
        yield Limitation(
            "clocks that lie on no other",
            "no kernel and no common operation puts them there, so their times stand alone; state "
            "an instant with --anchor",
            by.count("own"),
        )
    if "utc" in by:
        yield Limitation(
            "hosts on one clock by UTC alone",
            "waiting between them is known to milliseconds at best",
            by.count("utc"),
        )
    if "operations" in by:
        yield Limitation(
            "clocks placed by the ends of operations",
            "the members of an operation are taken to end together",
            by.count("operations"),
        )


def _missing(
    table: Communications, instance: Ints, ranks: Sequence[int | None]
) -> Iterator[Limitation]:
    alone = (table.split == Split.UNKNOWN) & (table.duration_ns >= 0)
    if alone.any():
        yield Limitation(
            "operations whose waiting is unknown",
            "no other member, on a clock that compares, and no proxy thread tells of it; give the "
            "files of all ranks",
            int(alone.sum()),
        )
    ordered = int((table.split == Split.ORDER).sum())
    if ordered:
        yield Limitation(
            "operations paired by their order alone",
            "the profiles tell no communicators; all GPUs ran as many kernels, each at one time, "
            "and these are taken for one operation",
            ordered,
        )
    held = np.flatnonzero((instance != NONE) & (table.split == Split.MEMBERS) & (table.peer < 0))
    if len(held):
        members = groups_of(instance[held])
        sizes = np.array([own or 0 for own in ranks], np.int64)
        whole = sizes[table.communicator[held]]
        few = np.bincount(members.of_row)[members.of_row] < whole
        if few.any():
            yield Limitation(
                "operations of which not all members were recorded",
                "a missing member may have begun later: they waited at least as long",
                int(few.sum()),
            )
