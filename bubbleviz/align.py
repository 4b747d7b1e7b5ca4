"""Align: profiles put together, on one clock, ranks in pipeline order, iterations paired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.clocks import Clock, align, machines_of, refuse_unrelated
from bubbleviz.columns import NONE, Ints
from bubbleviz.errors import MismatchError, UsageError
from bubbleviz.interpret import LocalRank, Recording
from bubbleviz.model import BusyIntervals, Limitation, Operations, Rank, RankIntervals
from bubbleviz.pairing import pair_iterations
from bubbleviz.phases import COUNTED, Phase
from bubbleviz.profile import pid_of
from bubbleviz.stages import VirtualStages, contradicted, order_virtual_stages

UNPAIRED = Limitation(
    "which iterations of the ranks belong together",
    "neither names nor counts and dependencies tell; ratios over ranks are left out",
)
CONTRADICTED = Limitation(
    "stages of ranks",
    "the order that the waiting times give contradicts the data dependencies, as copies of one "
    "stage (data or tensor parallel) do; say the order with --order",
)


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
        order: ranks in pipeline order, as numbers in the order in which the profiles hold them;
            empty to tell it from the data.
        same_clock: groups of hostnames that share one clock.

    Raises:
        MismatchError: the profiles are of no single run.
        UsageError: ``order`` does not name every rank once.
    """
    sources = [recording.source for recording in recordings]
    machines = machines_of(sources, same_clock)
    clocks, limitations = align(sources, machines)
    refuse_unrelated(sources, [(r.start_ns, r.end_ns) for r in recordings], clocks)
    _refuse_other_shapes(recordings)
    bases = np.cumsum([0, *(len(r.ranks) for r in recordings)]).astype(np.int64)
    operations = _joined_operations(recordings, clocks, bases)
    named = np.concatenate([r.said.iteration for r in recordings])
    said = np.concatenate([r.said.stage for r in recordings])
    stages = _said_stages(operations, said) or order_virtual_stages(operations)
    place, notes = _pipeline_order(recordings, operations, stages, order)
    operations, virtual_stage = _renamed_chunks(operations, stages)
    ranked = np.argsort(place)
    pairing = pair_iterations(operations, named, virtual_stage, ranked)
    if not pairing.known:
        notes = (*notes, UNPAIRED)
    if not order and _is_contradicted(
        recordings, operations, virtual_stage, pairing.iteration, machines
    ):
        stages = VirtualStages(stages.rank, stages.chunk, np.full(len(stages.rank), NONE))
        notes = (*notes, CONTRADICTED)
    active_ns = _active(recordings, bases, place, operations, pairing.iteration, len(pairing.names))
    operations = replace_columns(
        operations, rank=place[operations.rank], iteration=pairing.iteration
    )
    operations, busy = _sorted(operations, _joined_busy(recordings, clocks))
    return Run(
        ranks=_ranks(recordings, place, stages, order),
        clocks=clocks,
        operations=operations,
        busy=busy,
        active_ns=active_ns,
        unattributed=_joined_unattributed(recordings, clocks, bases, place),
        iteration_names=pairing.names,
        paired=pairing.known,
        limitations=(*limitations, *notes),
        rank_of_local=tuple(
            place[base : base + len(r.ranks)] for base, r in zip(bases, recordings, strict=False)
        ),
    )


def _refuse_other_shapes(recordings: Sequence[Recording]) -> None:
    """Raise MismatchError where profiles ran other numbers of microbatches or chunks, or names.

    Counted are a rank's iterations in which every forward has its backward.
    """
    for what, values in (
        ("microbatches an iteration", [_usual_microbatches(r.operations) for r in recordings]),
        ("model chunks a rank", [_usual_chunks(r.operations) for r in recordings]),
        ("as their naming convention", [r.convention for r in recordings]),
    ):
        first: dict[int | str, str] = {}
        for value, recording in zip(values, recordings, strict=True):
            if value is not None:
                first.setdefault(value, recording.source.path)
        if len(first) > 1:
            (one, path), (other, second), *_ = first.items()
            raise MismatchError(
                f"{path} and {second}: {one} and {other} {what}, so they are no single run; "
                "give the profiles of one run"
            )


def _usual_microbatches(own: Operations) -> int | None:
    """Return how many microbatches most whole iterations of most ranks have; None unknown."""
    first = (own.occurrence == 0) & (own.iteration >= 0)
    cell = own.rank * (int(own.iteration.max(initial=0)) + 1) + own.iteration
    cells = int(cell.max(initial=0)) + 1
    forward = np.bincount(cell[first & (own.phase == Phase.F)], minlength=cells)
    gradient = first & np.isin(own.phase, (Phase.B, Phase.BW))
    backward = np.bincount(cell[gradient], minlength=cells)
    whole = forward[(forward == backward) & (forward > 0)]
    chunks = _usual_chunks(own)
    return int(np.bincount(whole).argmax()) // chunks if len(whole) and chunks else None


def _usual_chunks(own: Operations) -> int | None:
    """Return how many chunks most ranks run forward; None where none does."""
    forward = own.phase == Phase.F
    pairs = np.unique(np.stack((own.rank[forward], own.chunk[forward])), axis=1)
    counts = np.unique(pairs[0], return_counts=True)[1]
    return int(np.bincount(counts).argmax()) if len(counts) else None


def _is_contradicted(
    recordings: Sequence[Recording],
    operations: Operations,
    virtual_stage: Ints,
    iteration: Ints,
    machines: Sequence[str],
) -> bool:
    numbers = {machine: i for i, machine in enumerate(dict.fromkeys(machines))}
    machine_of_rank = np.concatenate(
        [
            np.full(len(r.ranks), numbers[machine])
            for r, machine in zip(recordings, machines, strict=True)
        ]
    )
    return contradicted(operations, virtual_stage, iteration, machine_of_rank) > 0


def replace_columns(operations: Operations, **columns: Ints) -> Operations:
    """Return the operations with some columns exchanged."""
    kept = {name: getattr(operations, name) for name in Operations.column_names()}
    return Operations(**{**kept, **columns}, names=operations.names)


def _joined_operations(
    recordings: Sequence[Recording], clocks: Sequence[Clock], bases: Ints
) -> Operations:
    """Return all operations, ranks numbered through, on the report's clock."""
    names: list[str] = []
    tables = []
    for recording, clock, base in zip(recordings, clocks, bases, strict=False):
        own = recording.operations
        spanned = own.has_span == 1
        tables.append(
            replace_columns(
                own,
                rank=own.rank + base,
                start_ns=np.where(spanned, own.start_ns + clock.offset_ns, NONE),
                end_ns=np.where(spanned, own.end_ns + clock.offset_ns, NONE),
                host_start_ns=own.host_start_ns + clock.offset_ns,
                host_end_ns=own.host_end_ns + clock.offset_ns,
                name_id=own.name_id + len(names),
            )
        )
        names.extend(own.names)
    columns = {
        name: np.concatenate([getattr(table, name) for table in tables])
        for name in Operations.column_names()
    }
    return Operations(**columns, names=tuple(names))


def _joined_busy(recordings: Sequence[Recording], clocks: Sequence[Clock]) -> BusyIntervals:
    base, columns = 0, []
    for recording, clock in zip(recordings, clocks, strict=True):
        busy = recording.busy
        columns.append(
            (busy.operation + base, busy.start_ns + clock.offset_ns, busy.end_ns + clock.offset_ns)
        )
        base += len(recording.operations)
    return BusyIntervals(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def _joined_unattributed(
    recordings: Sequence[Recording], clocks: Sequence[Clock], bases: Ints, place: Ints
) -> RankIntervals:
    columns = []
    for recording, clock, base in zip(recordings, clocks, bases, strict=False):
        loose = recording.unattributed
        columns.append(
            (
                place[loose.rank + base],
                loose.start_ns + clock.offset_ns,
                loose.end_ns + clock.offset_ns,
            )
        )
    rank, start, end = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.lexsort((start, rank))
    return RankIntervals(rank[order], start[order], end[order])


def _said_stages(operations: Operations, said: Ints) -> VirtualStages | None:
    """Return the virtual stages that names give, if they give them for all work."""
    work = np.isin(operations.phase, COUNTED)
    if not work.any() or (said[work] < 0).any():
        return None
    chunk = np.where(operations.chunk >= 0, operations.chunk, said)
    rows = np.unique(np.stack((operations.rank, chunk, said))[:, work], axis=1)
    return VirtualStages(rows[0], rows[1], rows[2])


def _pipeline_order(
    recordings: Sequence[Recording],
    operations: Operations,
    stages: VirtualStages,
    order: Sequence[int],
) -> tuple[Ints, tuple[Limitation, ...]]:
    """Return each rank's place in pipeline order; ranks of unknown stage come last."""
    ranks = [rank for recording in recordings for rank in recording.ranks]
    count = len(ranks)
    if order:
        if sorted(order) != list(range(count)):
            raise UsageError(
                f"--order must name each of the ranks 0 to {count - 1} once, separated by commas"
            )
        place = np.empty(count, np.int64)
        place[np.array(order)] = np.arange(count)
        return place, ()
    stage = _first_stages(stages, count)
    known = stage >= 0
    stage = np.where(known, stage, np.iinfo(np.int64).max)
    number = np.array([NONE if r.global_rank is None else r.global_rank for r in ranks], np.int64)
    # Profiles hold their ranks by (process, device); a stable sort keeps that, host by host.
    ranked = np.lexsort((np.arange(count), number, stage))
    place = np.empty(count, np.int64)
    place[ranked] = np.arange(count)
    working = np.zeros(count, bool)
    working[operations.rank[np.isin(operations.phase, COUNTED)]] = True
    unknown = int((working & ~known).sum())
    note = Limitation(
        "stages of ranks",
        "they ran no microbatch both forward and backward that the others ran too; "
        "say the order with --order",
        unknown,
    )
    return place, (note,) if unknown else ()


def _first_stages(stages: VirtualStages, count: int) -> Ints:
    """Return the smallest virtual stage of each rank; -1 unknown."""
    big = np.iinfo(np.int64).max
    first = np.full(count, big)
    told = stages.virtual_stage >= 0
    np.minimum.at(first, stages.rank[told], stages.virtual_stage[told])
    return np.where(first == big, NONE, first)


def _renamed_chunks(operations: Operations, stages: VirtualStages) -> tuple[Operations, Ints]:
    """Return the operations with chunks counted in the model's order, and virtual stages."""
    virtual_stage = np.full(len(operations), NONE, np.int64)
    chunk = operations.chunk.copy()
    for rank in np.unique(stages.rank).tolist():
        own = np.flatnonzero(stages.rank == rank)
        own = own[np.argsort(stages.virtual_stage[own], kind="stable")]
        own = own[stages.virtual_stage[own] >= 0]
        rows = operations.rank == rank
        # Names that count the chunks in the model's order are kept, gaps and all.
        in_order = bool((np.diff(stages.chunk[own]) > 0).all())
        for index, at in enumerate(own.tolist()):
            same = rows & (operations.chunk == stages.chunk[at])
            virtual_stage[same] = stages.virtual_stage[at]
            chunk[same] = stages.chunk[at] if in_order else index
    return replace_columns(operations, chunk=chunk), virtual_stage


def _active(
    recordings: Sequence[Recording],
    bases: Ints,
    place: Ints,
    operations: Operations,
    iteration: Ints,
    iterations: int,
) -> Ints:
    """Return the active time of each (iteration, rank)."""
    active_ns = np.zeros((iterations, len(place)), np.int64)
    own = np.stack((operations.rank, operations.iteration, iteration))
    rank, before, after = np.unique(own, axis=1)
    final = {
        (r, b): a for r, b, a in zip(rank.tolist(), before.tolist(), after.tolist(), strict=True)
    }
    for recording, base in zip(recordings, bases.tolist(), strict=False):
        table = recording.active
        for r, b, ns in zip(
            table.rank.tolist(), table.iteration.tolist(), table.active_ns.tolist(), strict=True
        ):
            after_index = final.get((r + base, b), NONE)
            if after_index >= 0:
                active_ns[after_index, place[r + base]] = ns
    return active_ns


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


def _ranks(
    recordings: Sequence[Recording], place: Ints, stages: VirtualStages, order: Sequence[int]
) -> tuple[Rank, ...]:
    """Return the ranks in pipeline order."""
    stage = _first_stages(stages, len(place))
    if order:
        stage = place.copy()
    found = []
    local = [(i, rank) for i, recording in enumerate(recordings) for rank in recording.ranks]
    labels = _labels([(recordings[i].source.host, rank) for i, rank in local])
    for index in np.argsort(place).tolist():
        profile, rank = local[index]
        found.append(
            Rank(
                index=int(place[index]),
                label=labels[index],
                host=recordings[profile].source.host,
                profile=profile,
                pid=pid_of(rank.process),
                device_id=rank.device_id,
                uuid=rank.uuid,
                stage=int(stage[index]) if stage[index] >= 0 else None,
                global_rank=rank.global_rank,
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
