"""Align: profiles put together, on one clock, ranks in pipeline order, iterations paired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from bubbleviz.clocks import Clock, align, machines_of, refuse_unrelated
from bubbleviz.columns import Ints
from bubbleviz.errors import MismatchError, UsageError
from bubbleviz.grouping import distinct_rows, groups_of
from bubbleviz.interpret import LocalRank, Recording
from bubbleviz.joining import Joined, join
from bubbleviz.model import BusyIntervals, Limitation, Operations, Rank, RankIntervals
from bubbleviz.ordering import natural_key
from bubbleviz.phases import COUNTED, Phase
from bubbleviz.profile import pid_of
from bubbleviz.stages import forward_and_backward
from bubbleviz.staging import Staging, stage

#: Limitations that tell of ranges whose names were lost.
_NAMES_LOST = ("names of ranges", "names of kernels, and maybe of ranges")


@dataclass(frozen=True)
class Run:
    """All profiles as one: what the counting stage works on.

    Attributes:
        ranks: in pipeline order; the ``rank`` columns hold their places.
        clocks: of the profiles, in the order given.
        operations: in order of (rank, start), on the report's clock.
        busy: their busy intervals.
        active_ns: length of the union of an iteration's compute kernels, shape
            (iterations, ranks).
        unattributed: compute outside every compute operation.
        iteration_names: by index.
        paired: whether iterations of different ranks are known to be the same.
        stages_missing: whether names tell of virtual stages that no profile holds.
        limitations: what could not be told.
        rank_of_local: for each profile, the rank of each of its own ranks.
    """

    ranks: tuple[Rank, ...]
    clocks: tuple[Clock, ...]
    operations: Operations
    busy: BusyIntervals
    active_ns: Ints
    unattributed: RankIntervals
    iteration_names: tuple[str, ...]
    paired: bool
    stages_missing: bool
    limitations: tuple[Limitation, ...]
    rank_of_local: tuple[Ints, ...]


def put_together(
    recordings: Sequence[Recording],
    order: Sequence[int] = (),
    same_clock: Sequence[Sequence[str]] = (),
) -> Run:
    """Return the recordings as one run.

    Args:
        recordings: one a profile, in the order given.
        order: ranks in pipeline order, by the numbers that they have without it; empty to tell
            it from the data.
        same_clock: groups of hostnames that share one clock.

    Raises:
        MismatchError: the profiles are of no single run.
        UsageError: ``order`` does not name every rank once.
    """
    sources = [recording.source for recording in recordings]
    machines = machines_of(sources, same_clock)
    clocks, limitations = align(sources, machines)
    refuse_unrelated(sources, [(r.start_ns, r.end_ns) for r in recordings], clocks)
    # An export that lost names of ranges is not held to what these tell.
    named = [r for r in recordings if not any(n.what in _NAMES_LOST for n in r.limitations)]
    _refuse_other_shapes(named)
    _refuse_other_namings(named)
    _refuse_one_process_twice(recordings)
    joined = join(recordings, clocks, machines)
    staging = stage(joined)
    place = _places(joined, staging)
    if order:
        # The order names ranks by the places they would have without it.
        if sorted(order) != list(range(len(place))):
            raise UsageError(
                f"--order must name each of the ranks 0 to {len(place) - 1} once, by the numbers "
                "that the table gives them without it"
            )
        staging = stage(joined, np.argsort(place)[np.array(order)].tolist())
        place = _places(joined, staging)
    operations, busy = _sorted(
        staging.operations.changed(
            rank=place[joined.operations.rank], iteration=staging.pairing.iteration
        ),
        joined.busy,
    )
    profiles = np.array([rank.profile for rank in joined.ranks], np.int64)
    return Run(
        ranks=_ranks(joined, place, staging),
        clocks=clocks,
        operations=operations,
        busy=busy,
        active_ns=_active(joined, place, staging),
        unattributed=_moved(joined.unattributed, place),
        iteration_names=staging.pairing.names,
        paired=staging.pairing.known,
        stages_missing=staging.stages_missing,
        limitations=(*limitations, *staging.limitations, *_idle_ranks(joined)),
        rank_of_local=tuple(place[profiles == i] for i in range(len(recordings))),
    )


def _refuse_other_shapes(recordings: Sequence[Recording]) -> None:
    """Raise MismatchError where profiles ran other numbers of microbatches or chunks.

    Counted are a rank's iterations in which every forward has its backward.
    """
    shapes = [(r.source.path, _usual_shape(r.operations)) for r in recordings]
    for place, what in enumerate(("microbatches an iteration", "model chunks a rank")):
        first: dict[int, str] = {}
        for path, shape in shapes:
            if shape is not None:
                first.setdefault(shape[place], path)
        if len(first) > 1:
            (one, path), (other, second), *_ = first.items()
            raise MismatchError(
                f"{path} and {second}: {one} and {other} {what}, so they are no single run; "
                "give the profiles of one run"
            )


def _refuse_other_namings(recordings: Sequence[Recording]) -> None:
    """Raise MismatchError where two profiles share no naming of forward or backward.

    Which one leads may differ: ranks name their layers, or their transfers, more or less often.
    """
    differing = {(r.convention, r.namings): r for r in recordings}
    for one, other in combinations(differing.values(), 2):
        if one.convention != other.convention and not one.namings & other.namings:
            raise MismatchError(
                f"{one.source.path} and {other.source.path}: {one.convention} and "
                f"{other.convention} as their naming convention, so they are no single run; give "
                "the profiles of one run"
            )


def _refuse_one_process_twice(recordings: Sequence[Recording]) -> None:
    """Raise MismatchError where two profiles hold the same process of the same host.

    That is a process captured twice (``--capture-range-end=repeat``), or two runs.
    """
    held: dict[tuple[str, int], str] = {}
    for recording in recordings:
        for process in {rank.process for rank in recording.ranks}:
            path = held.setdefault((recording.source.host, process), recording.source.path)
            if path != recording.source.path and recording.source.host_known:
                raise MismatchError(
                    f"{path} and {recording.source.path}: both hold process {pid_of(process)} of "
                    "the same host, so they are two captures or two runs; analyze each by itself"
                )


def _usual_shape(own: Operations) -> tuple[int, int] | None:
    """Return microbatches and chunks of most whole iterations of most ranks; None unknown."""
    forwards, chunks = _whole_iterations(own)
    if len(forwards) == 0:
        return None
    return int(np.bincount(forwards // chunks).argmax()), int(np.bincount(chunks).argmax())


def _whole_iterations(own: Operations) -> tuple[Ints, Ints]:
    """Return forwards and chunks of the (rank, iteration) that a capture did not cut.

    These begin with microbatch 0, every forward has its backward there, and vice versa, and an
    Optimizer or another iteration follows.
    """
    first = (own.occurrence == 0) & (own.iteration >= 0)
    cell = own.rank * (int(own.iteration.max(initial=0)) + 1) + own.iteration
    cells = int(cell.max(initial=0)) + 1
    forward = np.flatnonzero(first & np.isin(own.phase, (Phase.F, Phase.FB)))
    backward = np.flatnonzero(first & np.isin(own.phase, (Phase.B, Phase.BW, Phase.FB)))
    both = np.concatenate((forward, backward))
    microbatch, chunk = forward_and_backward(own, forward, backward)
    number = groups_of(cell[both], microbatch, chunk, own.sequence[both]).of_row
    of_forward, of_backward = number[: len(forward)], number[len(forward) :]
    cut = np.zeros(cells, bool)
    cut[cell[forward[~np.isin(of_forward, of_backward)]]] = True
    cut[cell[backward[~np.isin(of_backward, of_forward)]]] = True
    begins = np.zeros(cells, bool)
    begins[cell[forward[own.microbatch[forward] == 0]]] = True
    pairs = distinct_rows(cell[forward], own.chunk[forward])
    followed = np.zeros(cells + 1, bool)
    followed[cell[first & (own.phase == Phase.OPTIMIZER)]] = True
    later = cell[forward[own.iteration[forward] > 0]] - 1
    followed[later] = True
    whole = begins & ~cut & followed[:cells]
    return (
        np.bincount(cell[forward], minlength=cells)[whole],
        np.bincount(pairs[0], minlength=cells)[whole],
    )


def _places(joined: Joined, staging: Staging) -> Ints:
    """Return each rank's place: by stage, then host, then rank number, process and device."""
    big = np.iinfo(np.int64).max
    keys = [
        (
            big if first < 0 else first,
            natural_key(rank.host),
            big if rank.local.global_rank is None else rank.local.global_rank,
            rank.local.device_id,
            pid_of(rank.local.process),
            number,
        )
        for number, (rank, first) in enumerate(
            zip(joined.ranks, staging.stage_of_rank.tolist(), strict=True)
        )
    ]
    place = np.empty(len(keys), np.int64)
    place[sorted(range(len(keys)), key=lambda i: keys[i])] = np.arange(len(keys))
    return place


def _idle_ranks(joined: Joined) -> tuple[Limitation, ...]:
    """Return a limitation for ranks that ran kernels but no forward or backward."""
    working = set(joined.operations.rank[np.isin(joined.operations.phase, COUNTED)].tolist())
    labels = _labels([(rank.host, rank.local) for rank in joined.ranks])
    idle = [label for number, label in enumerate(labels) if number not in working]
    because = "they take no part in any ratio: " + ", ".join(idle)
    return (Limitation("ranks without forward or backward", because, len(idle)),) if idle else ()


def _active(joined: Joined, place: Ints, staging: Staging) -> Ints:
    """Return the active time of each (iteration, rank)."""
    active_ns = np.zeros((len(staging.pairing.names), len(place)), np.int64)
    operations = joined.operations
    row = groups_of(operations.rank, operations.iteration).first
    rank, own = operations.rank[row], operations.iteration[row]
    paired = staging.pairing.iteration[row]
    table = joined.active
    width = int(max(own.max(initial=0), table.iteration.max(initial=0))) + 2
    code, wanted = rank * width + own + 1, table.rank * width + table.iteration + 1
    iteration = paired[np.searchsorted(code, wanted)] if len(wanted) else wanted
    known = iteration >= 0
    active_ns[iteration[known], place[table.rank[known]]] = table.active_ns[known]
    return active_ns


def _moved(intervals: RankIntervals, place: Ints) -> RankIntervals:
    rank = place[intervals.rank]
    order = np.lexsort((intervals.start_ns, rank))
    return RankIntervals(rank[order], intervals.start_ns[order], intervals.end_ns[order])


def _sorted(operations: Operations, busy: BusyIntervals) -> tuple[Operations, BusyIntervals]:
    """Order operations by (rank, start), those without a span by their host start."""
    start = np.where(operations.has_span == 1, operations.start_ns, operations.host_start_ns)
    order = np.lexsort((operations.host_start_ns, start, operations.rank))
    moved = np.empty(len(order), np.int64)
    moved[order] = np.arange(len(order))
    owner = moved[busy.operation]
    rows = np.lexsort((busy.start_ns, owner))
    return operations.take(order), BusyIntervals(
        owner[rows], busy.start_ns[rows], busy.end_ns[rows]
    )


def _ranks(joined: Joined, place: Ints, staging: Staging) -> tuple[Rank, ...]:
    """Return the ranks in pipeline order."""
    labels = _labels([(rank.host, rank.local) for rank in joined.ranks])
    found = []
    for number in np.argsort(place).tolist():
        rank, first = joined.ranks[number], int(staging.stage_of_rank[number])
        found.append(
            Rank(
                index=int(place[number]),
                label=labels[number],
                host=rank.host,
                profile=rank.profile,
                pid=pid_of(rank.local.process),
                device_id=rank.local.device_id,
                uuid=rank.local.device.uuid if rank.local.device else None,
                gpu=rank.local.device.name if rank.local.device else None,
                pci=rank.local.device.pci if rank.local.device else None,
                stage=first if first >= 0 else None,
                global_rank=rank.local.global_rank,
            )
        )
    return tuple(found)


def _labels(ranks: Sequence[tuple[str, LocalRank]]) -> list[str]:
    """Return short unique names: host and GPU, with the pid where these are not enough."""
    short = [f"{host} GPU {rank.device_id}" for host, rank in ranks]
    with_pid = [f"{host} pid {pid_of(rank.process)} GPU {rank.device_id}" for host, rank in ranks]
    longer = [a if short.count(a) == 1 else b for a, b in zip(short, with_pid, strict=True)]
    return [
        label if longer.count(label) == 1 else f"{label} #{i}" for i, label in enumerate(longer)
    ]
