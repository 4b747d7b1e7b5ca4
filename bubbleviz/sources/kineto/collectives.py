"""Collectives that kernels carry out, as PyTorch's profiler records them.

The operator ``record_param_comms`` describes them; kernels that it launched repeat that, and share
its ``External id`` (torch/csrc/distributed/c10d/ParamCommsUtils.hpp, torch/csrc/profiler/util.cpp
``saveNcclMeta``, libkineto/src/output_json.cpp). Where a kernel lacks an argument, that of its
operator is used: older versions write none with kernels, and no version writes the root there. A
batch of sends and receives (``batch_isend_irecv``) launches one kernel at its end, which belongs to
no operator::

    operators   send  recv
    calls                   cudaLaunchKernelExC
    kernel                        ├─ SendRecv ─┤    of both
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np

from bubbleviz.model.collectives import Collectives, Group
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import find_distinct, lookup_values
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.texts import truncate_for_matching
from bubbleviz.sources.kineto import events as kineto
from bubbleviz.sources.kineto.events import EventCollector, EventRows, KinetoArgs, either

# Process groups as PyTorch's profiler writes them, with each event and in the document.

#: More ranks than there are.
MOST_RANKS = 1 << 20
_NUMBER = re.compile(r"-?\d+")
#: Stands for the ranks that are left out of a long list.
_ELLIPSIS = "..."

#: Own rank and number of ranks, -1 unknown; and ranks of groups by name, () where two share it.
World: TypeAlias = tuple[int, int, Mapping[str, tuple[int, ...]]]


def world_of(metadata: Mapping[str, object]) -> World:
    """Return what ``distributedInfo`` of the document holds."""
    info = metadata.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    configs = info.get("pg_config")
    groups: dict[str, tuple[int, ...]] = {}
    for config in configs if isinstance(configs, list) else []:
        if isinstance(config, dict):
            name = kineto.text_of(config.get("pg_name"))
            size = max(kineto.whole_number(config.get("pg_size"), MOST_RANKS), 0)
            ranks = members_of(config.get("ranks"), size)
            groups[name] = () if groups.get(name, ranks) != ranks else ranks
    rank, size = (
        kineto.whole_number(info.get(name), MOST_RANKS) for name in ("rank", "world_size")
    )
    return rank, size, groups


def members_of(ranks: object, size: int) -> tuple[int, ...]:
    """Return all ranks of a group; () where some are left out, or their number is not its size."""
    if isinstance(ranks, str) and _ELLIPSIS not in ranks:
        numbers = _numbers(ranks[: 1 << 20])
    elif isinstance(ranks, list):
        numbers = [kineto.whole_number(rank, MOST_RANKS) for rank in ranks]
    else:
        return ()
    sound = len(set(numbers)) == len(numbers) and min(numbers, default=0) >= 0
    return tuple(numbers) if sound and size in (0, len(numbers)) else ()


def _strided(operator: KinetoArgs, ranks: object, size: int) -> tuple[int, ...]:
    """Return a group's ranks where some are left out, but all lie one stride apart.

    ``[0, 8, 16, ..., 1016]`` shows the stride (torch/csrc/profiler/util.cpp ``format_list``), or
    ``Global rank start`` and ``stride`` do.
    """
    start, stride = (kineto.whole_number(n, MOST_RANKS) for n in (operator.start, operator.stride))
    text = ranks[: 1 << 20] if isinstance(ranks, str) else ""
    before, _, after = text.partition(_ELLIPSIS)
    first, last = _numbers(before), _numbers(after)
    if not (start >= 0 and stride > 0) and len(first) > 1 and last:
        start, stride = first[0], first[1] - first[0]
    if not (start >= 0 and stride > 0 and size):
        return ()
    members = tuple(range(start, start + stride * size, stride))
    sound = tuple(first) == members[: len(first)] and tuple(last) in ((), members[-1:])
    return members if sound else ()


def _numbers(text: str) -> list[int]:
    return [int(number) for number in _NUMBER.findall(text) if len(number) < 9]


def _group(args: KinetoArgs, operator: KinetoArgs, world: World) -> Group:
    """Return the group of a kernel, by its arguments and those of its operator."""
    name, description = (
        kineto.text_of(either(args, operator, field)) for field in ("group", "description")
    )
    ranks = either(args, operator, "ranks")
    count = max(kineto.whole_number(either(args, operator, "size"), MOST_RANKS), 0)
    _, world_size, groups = world
    members = members_of(ranks, count)
    if not members and count and len(groups.get(name, ())) == count:
        members = groups[name]
    elif not members and count == world_size:
        members = tuple(range(count))
    members = members or _strided(operator, ranks, count)
    return Group(
        name=name,
        ranks_text="" if members else kineto.text_of(ranks),
        ranks=members,
        size=count or len(members),
        description=description,
    )


#: More elements than there are.
_MOST_ELEMENTS = 1 << 55
#: Operations whose ``Rank`` is that of the root, or of the peer; else it is the rank's own.
_ROOTED = frozenset(("broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter"))
#: Kernels that carry out sends and receives; names of AMD's do not show it.
_PASSES = re.compile(r"^(?:void )?nccl\w*?(?:SendRecv|Generic)")
#: The argument that holds the peer.
_PEER_FIELDS = {"send": "target", "recv": "origin"}
#: What a group is told by.
_GROUP_FIELDS = ("group", "size", "ranks", "description")


def collectives_of(
    work: EventRows, calls: EventRows, collector: EventCollector, base_ns: int, world: World
) -> Collectives:
    """Return the collectives that kernels carry out.

    Args:
        work: kernels, then copies; their rows are those of the profile's activities.
        calls: CUDA API calls.
        collector: has read all events.
        base_ns: zero of the times of ``work``.
        world: ranks of the run.
    """
    names, groups = Numbering[str](), Numbering[Group]()
    #: Number of a group, -1 for an unknown one, and the place in it of each of its ranks.
    known: dict[str, tuple[int, Mapping[int, int]]] = {}
    operations: dict[tuple[int, int], int] = {}
    rows: list[tuple[int, ...]] = []
    for kernel, external, args, operator in _described(work, calls, collector, base_ns):
        # Most kernels are of few groups, and a group may have thousands of ranks.
        told = [either(args, operator, field) for field in _GROUP_FIELDS]
        key = repr((*told, operator.start, operator.stride))
        if key not in known:
            group = _group(args, operator, world)
            at = groups.number(group) if group.name or group.ranks else NONE
            known[key] = at, {rank: place for place, rank in enumerate(group.ranks)}
        of_group, places = known[key]
        name, datatype = (
            kineto.text_of(either(args, operator, field)) for field in ("collective", "datatype")
        )
        own = kineto.whole_number(operator.rank, MOST_RANKS)
        rank, peer, root = places.get(world[0], NONE), NONE, NONE
        if name in _PEER_FIELDS:
            other = kineto.whole_number(either(args, operator, _PEER_FIELDS[name]), MOST_RANKS)
            peer = places.get(other, own)
        elif name in _ROOTED:
            root = own
        elif rank == NONE:
            rank = own
        split = either(args, operator, "split")
        sizes = _NUMBER.findall(split[: 1 << 20]) if isinstance(split, str) else split
        elements = (
            kineto.whole_number(either(args, operator, field), _MOST_ELEMENTS)
            for field in ("elements_in", "elements_out")
        )
        operation = len(rows)
        # A kernel that no operator launched is an operation of its own.
        if external != NONE:
            operation = operations.setdefault((external, int(work.device[kernel])), operation)
        rows.append(
            (
                kernel,
                operation,
                names.number(name),
                of_group,
                *elements,
                names.number(datatype) if datatype else NONE,
                # Parts that ranks exchange may differ in size.
                int(isinstance(sizes, list) and any(size != sizes[0] for size in sizes)),
                rank,
                peer,
                root,
                kineto.whole_number(either(args, operator, "sequence"), 1 << 62),
            )
        )
    columns = Collectives.column_names()
    values = np.array(rows, np.int64).reshape(-1, len(columns)).T.copy()
    named = dict(zip(columns, values, strict=True))
    return Collectives(**named, names=names.values, groups=groups.values)


def _described(
    work: EventRows, calls: EventRows, collector: EventCollector, base_ns: int
) -> Iterator[tuple[int, int, KinetoArgs, KinetoArgs]]:
    """Yield kernels of collectives, external id, their arguments and those of their operators."""
    operators = {external: args for external, _, _, args in collector.operators if external != NONE}
    kernels = np.flatnonzero(work.kind == kineto.KERNEL)
    ids = np.array([correlation for _, correlation, _ in collector.kernels], np.int64)
    described = np.isin(work.correlation[kernels], ids)
    described |= np.isin(work.external[kernels], np.array([*operators], np.int64))
    kernels = kernels[described]
    thread, correlation = work.thread[kernels], work.correlation[kernels]
    columns = (thread, correlation, work.start_ns[kernels] + base_ns, work.external[kernels])
    for kernel, *key, external in zip(
        kernels.tolist(), *(column.tolist() for column in columns), strict=True
    ):
        own, operator = collector.kernels.get((key[0], key[1], key[2])), operators.get(external)
        first, second = own or operator, operator or own
        if first is not None and second is not None:
            yield kernel, external, first, second
    yield from _batched(work, calls, collector, base_ns, kernels)


def _batched(
    work: EventRows, calls: EventRows, collector: EventCollector, base_ns: int, described: Ints
) -> Iterator[tuple[int, int, KinetoArgs, KinetoArgs]]:
    """Yield kernels of batches of sends and receives, with each of these.

    Args:
        work: kernels, then copies.
        calls: CUDA API calls.
        collector: has read all events.
        base_ns: zero of the times of ``work``.
        described: kernels that a record describes.
    """
    used = {*work.external[described].tolist()}
    events: list[tuple[int, int, int, int, KinetoArgs | None]] = [
        (thread, end_ns - base_ns, 0, external, args)
        for external, thread, end_ns, args in collector.operators
        if external not in used and kineto.text_of(args.collective) in _PEER_FIELDS
    ]
    if not events:
        return
    # Launches of described kernels, sends and receives.
    names = collector.texts.values
    passing = np.array(
        [_PASSES.search(truncate_for_matching(name)) is not None for name in names], bool
    )
    graph = np.array(["GraphLaunch" in name for name in names], bool)
    bare = np.flatnonzero((work.kind == kineto.KERNEL) & passing[work.name])
    kernels = find_distinct(bare, described)
    rows = np.flatnonzero((calls.correlation >= 0) & ~graph[calls.name])
    call = lookup_values([calls.correlation[rows]], rows, [work.correlation[kernels]])
    kernels, call = kernels[call != NONE], call[call != NONE]
    columns = (calls.thread[call], calls.start_ns[call], kernels)
    launches = zip(*(column.tolist() for column in columns), strict=True)
    events += [(thread, start_ns, 1, kernel, None) for thread, start_ns, kernel in launches]
    known = {*described.tolist()}
    batch: list[tuple[int, KinetoArgs]] = []
    of_thread = NONE
    for thread, _, _, number, args in sorted(events, key=lambda event: event[:3]):
        if thread != of_thread:
            batch, of_thread = [], thread
        if args is not None:
            batch.append((number, args))
            continue
        if number not in known:
            yield from ((number, external, args, args) for external, args in batch)
        # A kernel that was launched by itself ends a batch, too: none is open then.
        batch = []
