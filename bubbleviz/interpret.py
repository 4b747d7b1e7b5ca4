"""Interpret: one profile's linked kernels become operations of ranks, with their device spans.

After this stage no kernel is kept: what remains of a profile is small, its operations, their
busy intervals, the compute that no operation explains, and counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz import intervals
from bubbleviz.columns import NONE, Bools, Ints, Table
from bubbleviz.conventions import Convention, Names, understand
from bubbleviz.coverage import Coverage, measure_coverage
from bubbleviz.iterations import HostOrder, constant_names, number_iterations, occurrences
from bubbleviz.kinds import Kinds, matching
from bubbleviz.link import Activities, Links, Rule, launched_inside, link
from bubbleviz.model import BusyIntervals, Limitation, Operations, RankIntervals
from bubbleviz.phases import COMMUNICATION, COMPUTE, COUNTED, WORK, Phase
from bubbleviz.profile import Profile, Ranges, Source, process_of


@dataclass(frozen=True)
class LocalRank:
    """A (process, device) of one profile."""

    process: int
    device_id: int
    uuid: str | None
    global_rank: int | None


@dataclass(frozen=True)
class Said(Table):
    """What the names say of operations beyond their key; -1 nothing.

    Attributes:
        stage: virtual stage.
        iteration: number of the iteration that a range around it names.
    """

    stage: Ints
    iteration: Ints


@dataclass(frozen=True)
class ActiveTime(Table):
    """How long compute kernels of an iteration's work ran on a rank (length of their union)."""

    rank: Ints
    iteration: Ints
    active_ns: Ints


@dataclass(frozen=True)
class Recording:
    """One profile, interpreted; times are the profile's own.

    ``operations.rank`` counts the profile's ranks and ``operations.iteration`` each rank's own
    iterations from 0; both get their final numbers when profiles are put together.
    """

    source: Source
    convention: str
    ranks: tuple[LocalRank, ...]
    operations: Operations
    said: Said
    busy: BusyIntervals
    active: ActiveTime
    unattributed: RankIntervals
    coverage: Coverage
    start_ns: int
    end_ns: int
    limitations: tuple[Limitation, ...]


@dataclass(frozen=True)
class _Work(Table):
    """Kernels, then copies: when and where they ran, and the range they belong to."""

    start_ns: Ints
    end_ns: Ints
    rank: Ints
    range: Ints
    compute: Bools
    communication: Bools
    receive: Bools


@dataclass(frozen=True)
class _Parts(Table):
    """Ranges on ranks, in order of (rank, host start), each a part of an operation."""

    range: Ints
    rank: Ints
    mark: Ints
    iteration: Ints
    constant: Bools
    operation: Ints


def interpret(
    profile: Profile, convention: Convention, kinds: Kinds, *, cross_thread: bool = True
) -> Recording:
    """Return the operations of one profile.

    Args:
        profile: as read, with at least the ranges that the convention may name.
        convention: how its ranges are named.
        kinds: lists of what kernels and threads are.
        cross_thread: whether backward kernels may be launched from another thread.
    """
    kinds = kinds.extended(convention.communication, convention.helper_threads)
    names = understand(profile.ranges.names, convention)
    named = profile.ranges.take(names.phase[profile.ranges.name_id] >= 0)
    phase = names.phase[named.name_id]
    activities = _activities(profile)
    links = link(
        activities,
        profile.calls,
        named,
        phase,
        profile.threads,
        kinds.helper_threads,
        cross_thread=cross_thread,
    )
    ranks, rank = _ranks(profile, activities)
    work = _work(profile, links, rank, named, names, kinds)
    parts, homeless = _parts(profile, named, names, work, ranks)
    operations, said = _operations(named, names, parts)
    owner = _owners(parts, work.range, work.rank, len(ranks))
    inside = launched_inside(np.flatnonzero(work.receive), links, profile.calls, named, phase)
    around = _owners(parts, inside.range, work.rank[inside.activity], len(ranks))
    operations, busy = _spans(operations, work, owner, inside.activity, around)
    loose = work.compute & ~_owned_by(operations, owner, COMPUTE)
    return Recording(
        source=profile.source,
        convention=convention.name,
        ranks=_named_ranks(ranks, profile, names, named),
        operations=operations,
        said=said,
        busy=busy,
        active=_active_time(operations, work, owner),
        unattributed=RankIntervals(
            *intervals.group_union(
                work.rank[loose], len(ranks), work.start_ns[loose], work.end_ns[loose]
            )
        ),
        coverage=measure_coverage(profile, links, work.communication, loose, rank, ranks, named),
        start_ns=int(min(profile.kernels.start_ns.min(), profile.calls.start_ns.min())),
        end_ns=int(max(profile.kernels.end_ns.max(), profile.calls.end_ns.max())),
        limitations=(*profile.limitations, *homeless, *_notes(profile, links, operations)),
    )


def _activities(profile: Profile) -> Activities:
    kernels, copies = profile.kernels, profile.copies
    return Activities(
        process=np.concatenate((kernels.process, copies.process)),
        correlation_id=np.concatenate((kernels.correlation_id, copies.correlation_id)),
        device_id=np.concatenate((kernels.device_id, copies.device_id)),
        is_kernel=np.arange(len(kernels) + len(copies)) < len(kernels),
    )


def _ranks(profile: Profile, activities: Activities) -> tuple[Ints, Ints]:
    """Return the (process, device) pairs that ran kernels or copies, and each activity's pair."""
    pairs = np.stack((activities.process, activities.device_id))
    ranks, rank = np.unique(pairs, axis=1, return_inverse=True)
    return ranks.T, rank.reshape(-1).astype(np.int64)


def _work(
    profile: Profile, links: Links, rank: Ints, named: Ranges, names: Names, kinds: Kinds
) -> _Work:
    kernels, copies = profile.kernels, profile.copies
    extra = np.zeros(len(copies), bool)
    communication = matching(kernels.names, kinds.communication)
    peer_to_peer = communication & matching(kernels.names, kinds.point_to_point)
    is_communication = np.concatenate((communication[kernels.name_id], extra))
    by_name = np.concatenate((peer_to_peer[kernels.name_id], extra))
    # A communication range says whether it receives; elsewhere the kernel's name must tell.
    held = links.range >= 0
    of_range = named.name_id[links.range[held]]
    in_communication, receives = np.zeros(len(held), bool), np.zeros(len(held), bool)
    in_communication[held] = np.isin(names.phase[of_range], COMMUNICATION)
    receives[held] = names.receives[of_range]
    return _Work(
        start_ns=np.concatenate((kernels.start_ns, copies.start_ns)),
        end_ns=np.concatenate((kernels.end_ns, copies.end_ns)),
        rank=rank,
        range=links.range,
        compute=np.concatenate((~communication[kernels.name_id], extra)),
        communication=is_communication,
        receive=is_communication & np.where(in_communication, receives, by_name),
    )


def _marks_of_parts(
    ranges: Ranges, names: Names, named: Ranges, of_range: Ints, rank: Ints
) -> Ints:
    """Return for each part the number of the iteration that a range names; -1 none.

    An iteration's range may end before its Optimizer, so it holds until the next one begins.
    A rank listens to the threads that open its own ranges.
    """
    number = np.where(names.phase < 0, names.iteration, NONE)[ranges.name_id]
    marks = np.flatnonzero(number >= 0)
    marks = marks[np.argsort(ranges.start_ns[marks], kind="stable")]
    result = np.full(len(of_range), NONE, np.int64)
    for index in np.unique(rank):
        rows = np.flatnonzero(rank == index)
        threads = np.unique(named.thread[of_range[rows]])
        held = marks[np.isin(ranges.thread[marks], threads)]
        if len(held):
            start_ns = named.start_ns[of_range[rows]]
            at = np.searchsorted(ranges.start_ns[held], start_ns, side="right") - 1
            result[rows] = np.where(at >= 0, number[held[np.maximum(at, 0)]], NONE)
    return result


def _parts(
    profile: Profile, named: Ranges, names: Names, work: _Work, ranks: Ints
) -> tuple[_Parts, tuple[Limitation, ...]]:
    """Lay the ranges on the ranks they launched on, and group them into operations."""
    count = len(ranks)
    code = work.range * count + work.rank
    ran = np.unique(code[(work.range >= 0) & ~_is_copy(work)])
    copied = np.unique(code[(work.range >= 0) & _is_copy(work)])
    # A copy to another device makes no operation there.
    copied = copied[~np.isin(copied // count, ran // count)]
    placed = np.concatenate((ran, copied))
    idle = np.setdiff1d(np.arange(len(named)), placed // count)
    home = _home_ranks(named, idle, placed, ranks)
    lost = int((home < 0).sum())
    placed = np.concatenate((placed, (idle * count + home)[home >= 0]))
    of_range, rank = placed // count, placed % count
    order = np.lexsort((of_range, named.start_ns[of_range], rank))
    of_range, rank = of_range[order], rank[order]
    name = names.take(named.name_id[of_range])
    mark = _marks_of_parts(profile.ranges, names, named, of_range, rank)
    timing = host_order(rank, name, mark)
    constant = constant_names(timing)
    iteration = number_iterations(timing, constant)
    operation = _group_parts(timing, name, iteration, constant)
    parts = _Parts(of_range, rank, mark, iteration, constant, operation)
    limits = (
        Limitation(
            "ranges without GPU work whose device is unknown",
            f"{profile.source.path}: their process uses several devices",
            lost,
        ),
    )
    return parts, limits if lost else ()


def _is_copy(work: _Work) -> Bools:
    return ~work.compute & ~work.communication


def _home_ranks(named: Ranges, idle: Ints, placed: Ints, ranks: Ints) -> Ints:
    """Return the rank of ranges that launched nothing: the only one of their process.

    Else the only one that their thread's other ranges ran on; else -1.
    """
    count = len(ranks)
    used = np.unique(np.stack((named.thread[placed // count], placed % count)), axis=1)
    result = np.full(len(idle), NONE, np.int64)
    for thread in np.unique(named.thread[idle]).tolist():
        owned = np.flatnonzero(ranks[:, 0] == thread >> 24)
        own = used[1, used[0] == thread]
        if len(owned) == 1:
            result[named.thread[idle] == thread] = owned[0]
        elif len(own) == 1:
            result[named.thread[idle] == thread] = own[0]
    return result


def _numbered(columns: tuple[Ints, ...]) -> Ints:
    """Return one number for each distinct row of the columns."""
    if len(columns[0]) == 0:
        return np.empty(0, np.int64)
    return np.unique(np.stack(columns), axis=1, return_inverse=True)[1].reshape(-1)


def host_order(rank: Ints, names: Names, mark: Ints) -> HostOrder:
    """Return what the search for iterations looks at; rows in order of (rank, host start)."""
    key = _numbered((names.chunk, names.stage, names.sequence, names.microbatch))
    whole = _numbered((key, names.phase, names.second_microbatch, names.second_chunk))
    return HostOrder(
        rank=rank.copy(),
        microbatch=names.microbatch.copy(),
        key=key,
        whole_key=whole,
        mark=mark.copy(),
        forward=np.isin(names.phase, (Phase.F, Phase.FB)),
        counted=np.isin(names.phase, COUNTED),
        optimizer=(names.phase == Phase.OPTIMIZER) & ~names.post_validation,
        post_validation=names.post_validation.copy(),
    )


def _group_parts(timing: HostOrder, names: Names, iteration: Ints, constant: Bools) -> Ints:
    """Return the operation of each part: equal keys with no other F/B/W between them.

    ::

        ranges       F0   F0   RECV   F0   B0   F0
        operation    ├─── one ──────────┤       another occurrence
    """
    alone = constant & np.isin(names.phase, WORK)
    key = _numbered((timing.rank, iteration, timing.whole_key))
    first = np.ones(len(key), bool)
    at = np.flatnonzero(timing.counted)
    first[at[1:]] = (key[at[1:]] != key[at[:-1]]) | alone[at[1:]]
    # Counted parts carry the number of their group, others how many counted parts came before.
    group = np.where(timing.counted, np.cumsum(first & timing.counted), np.cumsum(timing.counted))
    row = np.where(alone, np.arange(len(key)), NONE)
    identity = _numbered((key, timing.counted.astype(np.int64), group, row))
    _, first_row, operation = np.unique(identity, return_index=True, return_inverse=True)
    renumber = np.empty(len(first_row), np.int64)
    renumber[np.argsort(first_row, kind="stable")] = np.arange(len(first_row))
    return renumber[operation.reshape(-1)]


def _operations(named: Ranges, names: Names, parts: _Parts) -> tuple[Operations, Said]:
    """Return the operations without their spans, in order of (rank, host start)."""
    count = int(parts.operation.max(initial=-1)) + 1
    first = np.unique(parts.operation, return_index=True)[1]
    of_range, rank = parts.range[first], parts.rank[first]
    name = names.take(named.name_id[of_range])
    host_end_ns = intervals.group_extents(
        parts.operation, count, named.start_ns[parts.range], named.end_ns[parts.range]
    )[1]
    cut = np.zeros(count, np.int64)
    np.maximum.at(cut, parts.operation, named.cut[parts.range].astype(np.int64))
    iteration = parts.iteration[first]
    counted = parts.constant[first] & np.isin(name.phase, WORK)
    place = occurrences((rank, iteration, name.phase, name.chunk, name.sequence))
    microbatch = np.where(counted, place, name.microbatch)
    phase = _fused_backward(rank, name)
    key = (rank, iteration, phase, name.chunk, name.stage, name.sequence, microbatch)
    zero = np.zeros(count, np.int64)
    operations = Operations(
        rank=rank.copy(),
        iteration=iteration,
        phase=phase,
        microbatch=microbatch,
        chunk=name.chunk.copy(),
        sequence=name.sequence.copy(),
        second_microbatch=name.second_microbatch.copy(),
        second_chunk=name.second_chunk.copy(),
        occurrence=occurrences((*key, name.second_microbatch, name.second_chunk)),
        start_ns=zero + NONE,
        end_ns=zero + NONE,
        has_span=zero.copy(),
        host_start_ns=named.start_ns[of_range],
        host_end_ns=host_end_ns,
        kernels=zero.copy(),
        active_ns=zero.copy(),
        busy_ns=zero.copy(),
        cut=cut,
        name_id=named.name_id[of_range],
        names=named.names,
    )
    return operations, Said(stage=name.stage.copy(), iteration=parts.mark[first])


def _fused_backward(rank: Ints, names: Names) -> Ints:
    """Return the phases, with B made BW where that backward never gets a W on its rank.

    A ``W_clear`` (a W without a microbatch) may settle any backward of its chunk.
    """
    phase = names.phase.copy()
    if len(phase) == 0:
        return phase
    whole = np.stack((rank, names.chunk, names.stage, names.microbatch))
    number = np.unique(whole, axis=1, return_inverse=True)[1].reshape(-1)
    chunk = np.unique(whole[:3], axis=1, return_inverse=True)[1].reshape(-1)
    weights = phase == Phase.W
    clears = weights & (names.microbatch < 0)
    settled = np.isin(number, number[weights]) | np.isin(chunk, chunk[clears])
    phase[(phase == Phase.B) & ~settled] = Phase.BW
    return phase


def _owners(parts: _Parts, of_range: Ints, rank: Ints, ranks: int) -> Ints:
    """Return the operation of each activity; -1 none."""
    code = parts.range * ranks + parts.rank
    order = np.argsort(code)
    wanted = of_range * ranks + rank
    at = np.minimum(np.searchsorted(code[order], wanted), max(len(code) - 1, 0))
    if len(code) == 0:
        return np.full(len(of_range), NONE, np.int64)
    found = (of_range >= 0) & (code[order][at] == wanted)
    return np.where(found, parts.operation[order][at], NONE)


def _owned_by(operations: Operations, owner: Ints, phases: tuple[Phase, ...]) -> Bools:
    """Tell for each activity whether an operation of one of these phases owns it."""
    result = np.zeros(len(owner), bool)
    owned = owner >= 0
    result[owned] = np.isin(operations.phase[owner[owned]], phases)
    return result


def _spans(
    operations: Operations, work: _Work, owner: Ints, received: Ints, around: Ints
) -> tuple[Operations, BusyIntervals]:
    """Give operations their spans and busy intervals, and order them by (rank, start).

    Compute kernels make the span (of a communication operation: its communication kernels);
    where there are none, copies do. An operation without GPU work has no span. ``received``
    are receives, ``around`` the operation that each was launched inside of; -1 none.
    """
    count = len(operations)
    own = owner >= 0
    is_communication = _owned_by(operations, owner, COMMUNICATION)
    compute, communication = own & work.compute, own & work.communication
    first_choice = np.where(is_communication, communication, compute)
    second_choice = is_communication & compute
    spanning = np.zeros(len(own), bool)
    for choice in (first_choice, second_choice, own & _is_copy(work)):
        covered = np.zeros(count, bool)
        covered[owner[spanning]] = True
        spanning |= choice & ~np.append(covered, False)[owner]
    start_ns, end_ns = intervals.group_extents(
        owner[spanning], count, work.start_ns[spanning], work.end_ns[spanning]
    )
    has_span = end_ns >= start_ns
    active = intervals.group_union(
        owner[compute], count, work.start_ns[compute], work.end_ns[compute]
    )
    busy = _busy(start_ns, end_ns, has_span, active, work, received, around)
    kernel_ns = intervals.group_sum(active[0], count, active[2] - active[1])
    changed = Operations(
        **{
            **{name: getattr(operations, name) for name in Operations.column_names()},
            "start_ns": np.where(has_span, start_ns, NONE),
            "end_ns": np.where(has_span, end_ns, NONE),
            "has_span": has_span.astype(np.int64),
            "kernels": np.bincount(owner[compute], minlength=count).astype(np.int64),
            "active_ns": kernel_ns,
            "busy_ns": intervals.group_sum(busy[0], count, busy[2] - busy[1]),
        },
        names=operations.names,
    )
    return changed, BusyIntervals(*busy)


def _active_time(operations: Operations, work: _Work, owner: Ints) -> ActiveTime:
    rows = np.flatnonzero(work.compute & _owned_by(operations, owner, WORK))
    of = owner[rows]
    pairs = np.stack((operations.rank[of], operations.iteration[of]))
    pairs, group = np.unique(pairs, axis=1, return_inverse=True)
    active_ns = intervals.group_measure(
        group.reshape(-1), pairs.shape[1], work.start_ns[rows], work.end_ns[rows]
    )
    return ActiveTime(pairs[0], pairs[1], active_ns)


def _busy(
    start_ns: Ints,
    end_ns: Ints,
    has_span: Bools,
    active: tuple[Ints, Ints, Ints],
    work: _Work,
    received: Ints,
    around: Ints,
) -> tuple[Ints, Ints, Ints]:
    """Return (operation, start_ns, end_ns): spans less the holes in which own receives spin."""
    packing = intervals.Packing.of(np.where(has_span, start_ns, 0), np.where(has_span, end_ns, 0))
    at = np.flatnonzero(has_span)
    spans = intervals.union(packing.place(at, start_ns[at]), packing.place(at, end_ns[at]))
    told = (around >= 0) & np.append(has_span, False)[around]
    rows, spin = received[told], around[told]
    low = np.clip(work.start_ns[rows], start_ns[spin], end_ns[spin])
    high = np.clip(work.end_ns[rows], start_ns[spin], end_ns[spin])
    waiting = intervals.union(packing.place(spin, low), packing.place(spin, high))
    running = intervals.union(
        packing.place(active[0], active[1]), packing.place(active[0], active[2])
    )
    holes = intervals.difference(waiting, running)
    return packing.unpack(intervals.difference(spans, holes))


def _named_ranks(
    ranks: Ints, profile: Profile, names: Names, named: Ranges
) -> tuple[LocalRank, ...]:
    """Return the ranks with what the export and the range names tell of them."""
    uuids = {(d.pid, d.device_id): d.uuid for d in profile.devices}
    said = names.rank[profile.ranges.name_id]
    owner = process_of(profile.ranges.thread)
    found = []
    for process, device in ranks.tolist():
        pid = process & 0xFFFFFF
        numbers = np.unique(said[(owner == process) & (said >= 0)])
        found.append(
            LocalRank(
                process=process,
                device_id=device,
                uuid=uuids.get((pid, device), uuids.get((None, device))),
                global_rank=int(numbers[0]) if len(numbers) == 1 else None,
            )
        )
    return tuple(found)


def _notes(profile: Profile, links: Links, operations: Operations) -> tuple[Limitation, ...]:
    """Return what this profile could not tell."""
    kernels = links.rule[: len(profile.kernels)]
    path = profile.source.path
    compute = np.isin(operations.phase, COMPUTE)
    candidates = (
        (
            "kernels without their launching call",
            "the call is not in the profile (a capture cut to a window drops some)",
            int((kernels == Rule.UNLINKED).sum()),
        ),
        (
            "kernels that several threads' backward could own",
            "their thread opens no range, and several others had a backward range open",
            int((kernels == Rule.AMBIGUOUS).sum()),
        ),
        (
            "operations without any GPU work",
            "their ranges launched nothing that the profile shows, so they have no device time",
            int((compute & (operations.has_span == 0)).sum()),
        ),
        (
            "operations cut by the end of the capture",
            "their range was still open",
            int((operations.cut > 0).sum()),
        ),
        (
            "repeated operations",
            "the same microbatch, chunk and phase occur again in one iteration",
            int(
                (
                    np.isin(operations.phase, COUNTED)
                    & (operations.occurrence > 0)
                    & (operations.microbatch >= 0)
                ).sum()
            ),
        ),
    )
    return tuple(Limitation(w, f"{path}: {b}", n) for w, b, n in candidates if n)
