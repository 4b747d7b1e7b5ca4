"""Finds the collective that each kernel in a trace of PyTorch's profiler executes.

The operator ``record_param_comms`` describes a collective. The kernels that it launches repeat the
description and share its ``External id`` (torch/csrc/distributed/c10d/ParamCommsUtils.hpp,
torch/csrc/profiler/util.cpp ``saveNcclMeta``, libkineto/src/output_json.cpp). If a kernel lacks an
argument, the argument of its operator is used. Older versions do not write arguments with kernels,
and no version writes the root with kernels. A batch of sends and receives (``batch_isend_irecv``)
launches a single kernel at its end. This kernel does not belong to an operator::

    operators   send  recv
    calls                   cudaLaunchKernelExC
    kernel                        ├─ SendRecv ─┤    executes both
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from bubbleviz.model.collectives import Collectives, Group
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import find_distinct, lookup_values
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.texts import truncate_for_matching
from bubbleviz.sources.kineto import events as kineto
from bubbleviz.sources.kineto.events import EventCollector, EventRows, KinetoArgs, get_argument

#: Exclusive upper bound on valid rank numbers and group sizes.
RANK_LIMIT = 1 << 20
_NUMBER = re.compile(r"-?\d+")
#: Text that PyTorch writes in place of the omitted ranks in a long list.
_ELLIPSIS = "..."

#: The rank of the process, the world size, and the ranks of process groups, keyed by group name.
#: Unknown numbers are -1. The ranks of a group are () if they are unknown or ambiguous.
World: TypeAlias = tuple[int, int, Mapping[str, tuple[int, ...]]]


def parse_world(metadata: Mapping[str, object]) -> World:
    """Read the rank, world size and process groups from a trace's metadata.

    The field ``distributedInfo`` contains the rank and world size, and its ``pg_config`` lists the
    groups. Missing or malformed numbers are -1. The ranks of a group are () if their list is
    incomplete or invalid, or if two groups with the same name have different ranks.
    """
    info = metadata.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    configs = info.get("pg_config")
    groups: dict[str, tuple[int, ...]] = {}
    for config in configs if isinstance(configs, list) else []:
        if isinstance(config, dict):
            name = kineto.to_text(config.get("pg_name"))
            size = max(kineto.parse_number(config.get("pg_size"), RANK_LIMIT), 0)
            ranks = parse_members(config.get("ranks"), size)
            groups[name] = () if groups.get(name, ranks) != ranks else ranks
    rank, size = (
        kineto.parse_number(info.get(name), RANK_LIMIT) for name in ("rank", "world_size")
    )
    return rank, size, groups


def parse_members(ranks: object, size: int) -> tuple[int, ...]:
    """Parse a list of all ranks in a process group. Return () if it is incomplete or invalid.

    A list that is stored as text is incomplete if it contains an ellipsis. A list is invalid if an
    entry is not a rank number, if a rank occurs twice, or if the number of ranks differs from
    ``size``.

    Args:
        ranks: A list of ranks, or a text that contains such a list.
        size: Expected number of ranks, or 0 if unknown.
    """
    if isinstance(ranks, str) and _ELLIPSIS not in ranks:
        numbers = _parse_numbers(ranks[: 1 << 20])
    elif isinstance(ranks, list):
        numbers = [kineto.parse_number(rank, RANK_LIMIT) for rank in ranks]
    else:
        return ()
    is_valid = len(set(numbers)) == len(numbers) and min(numbers, default=0) >= 0
    return tuple(numbers) if is_valid and size in (0, len(numbers)) else ()


def _expand_stride(operator: KinetoArgs, ranks: object, size: int) -> tuple[int, ...]:
    """Return all ranks in a process group with equally spaced ranks.

    The first rank and the stride are the arguments ``Global rank start`` and ``Global rank
    stride``. If either is missing, both are inferred from an abbreviated list, such as
    ``[0, 8, 16, ..., 1016]`` (torch/csrc/profiler/util.cpp ``format_list``).

    Args:
        operator: Arguments of the operator.
        ranks: List of ranks as text, which may be abbreviated.
        size: Number of ranks in the group, or 0 if unknown.

    Returns:
        The ranks in ascending order. The result is () if the start, stride or size is unknown, or
        if the list contradicts them.
    """
    start, stride = (kineto.parse_number(n, RANK_LIMIT) for n in (operator.start, operator.stride))
    text = ranks[: 1 << 20] if isinstance(ranks, str) else ""
    head, _, tail = text.partition(_ELLIPSIS)
    first, last = _parse_numbers(head), _parse_numbers(tail)
    if not (start >= 0 and stride > 0) and len(first) > 1 and last:
        start, stride = first[0], first[1] - first[0]
    if not (start >= 0 and stride > 0 and size):
        return ()
    members = tuple(range(start, start + stride * size, stride))
    is_consistent = tuple(first) == members[: len(first)] and tuple(last) in ((), members[-1:])
    return members if is_consistent else ()


def _parse_numbers(text: str) -> list[int]:
    """Return all integers with at most eight characters in a text, in order."""
    return [int(number) for number in _NUMBER.findall(text) if len(number) < 9]


def _make_group(args: KinetoArgs, operator: KinetoArgs, world: World) -> Group:
    """Build the process group for the collective that a kernel executes.

    The group's ranks come from the first available source:

    1. a complete list of ranks in the arguments;
    2. the ranks in ``world`` for a group with the same name and size;
    3. all ranks of the run, if the group size equals the number of ranks in the run;
    4. equally spaced ranks, see :func:`_expand_stride`.

    Args:
        args: The kernel's arguments.
        operator: Arguments of the operator that launched the kernel.
        world: Rank, world size and groups, as returned by :func:`parse_world`.
    """
    name, description = (
        kineto.to_text(get_argument(args, operator, field)) for field in ("group", "description")
    )
    ranks = get_argument(args, operator, "ranks")
    count = max(kineto.parse_number(get_argument(args, operator, "size"), RANK_LIMIT), 0)
    _, world_size, groups = world
    members = parse_members(ranks, count)
    if not members and count and len(groups.get(name, ())) == count:
        members = groups[name]
    elif not members and count == world_size:
        members = tuple(range(count))
    members = members or _expand_stride(operator, ranks, count)
    return Group(
        name=name,
        ranks_text="" if members else kineto.to_text(ranks),
        ranks=members,
        size=count or len(members),
        description=description,
    )


#: Exclusive upper bound on valid element counts.
_ELEMENT_LIMIT = 1 << 55
#: Collectives whose argument ``Rank`` is the root. For sends and receives, ``Rank`` is the peer.
#: For other collectives, it is the calling rank.
_ROOTED = frozenset(("broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter"))
#: Matches kernels that may execute sends and receives. AMD's kernels have generic names.
_POINT_TO_POINT_KERNEL = re.compile(r"^(?:void )?nccl\w*?(?:SendRecv|Generic)")
#: Name of the argument that gives the peer of a send or receive.
_PEER_FIELDS = {"send": "target", "recv": "origin"}
#: Names of the arguments that identify a process group.
_GROUP_FIELDS = ("group", "size", "ranks", "description")


def find_collectives(
    work: EventRows, calls: EventRows, collector: EventCollector, base_ns: int, world: World
) -> Collectives:
    """Return the collectives in a recording, one row per kernel that executes a collective.

    Kernels with the same external id on the same device execute the same operation. A kernel that
    executes a batch of sends and receives has one row for each send or receive.

    Args:
        work: Kernels followed by copies, in the order of the profile's activities.
        calls: CUDA or HIP API calls.
        collector: All events in the recording.
        base_ns: Absolute time in ns to which the times in ``work`` and ``calls`` are relative.
        world: Rank, world size and groups, as returned by :func:`parse_world`.
    """
    names, groups = Numbering[str](), _Groups(world)
    operations: dict[tuple[int, int], int] = {}
    rows: list[tuple[int, ...]] = []
    for kernel, external, args, operator in _describe_kernels(work, calls, collector, base_ns):
        group, index_of_rank = groups.find(args, operator)
        name = kineto.to_text(get_argument(args, operator, "collective"))
        operation = len(rows)
        # A kernel without an operator counts as a separate operation.
        if external != NONE:
            operation = operations.setdefault((external, int(work.device[kernel])), operation)
        rows.append(
            (
                kernel,
                operation,
                names.number(name),
                group,
                *_parse_element_counts(args, operator),
                _number_datatype(args, operator, names),
                int(_is_uneven(get_argument(args, operator, "split"))),
                *_find_ranks(name, args, operator, world[0], index_of_rank),
                kineto.parse_number(get_argument(args, operator, "sequence"), 1 << 62),
            )
        )
    return _make_collectives(rows, names.values, groups.values)


def _parse_element_counts(args: KinetoArgs, operator: KinetoArgs) -> list[int]:
    """Return the numbers of elements that a collective reads and writes.

    Unknown numbers are -1.

    Args:
        args: The kernel's arguments.
        operator: Arguments of the operator that launched the kernel.
    """
    return [
        kineto.parse_number(get_argument(args, operator, field), _ELEMENT_LIMIT)
        for field in ("elements_in", "elements_out")
    ]


def _number_datatype(args: KinetoArgs, operator: KinetoArgs, names: Numbering[str]) -> int:
    """Return the index of a collective's data type in ``names``, or -1 if it is unknown.

    Args:
        args: The kernel's arguments.
        operator: Arguments of the operator that launched the kernel.
        names: Numbering of names and data types. A new data type is added to the numbering.
    """
    datatype = kineto.to_text(get_argument(args, operator, "datatype"))
    return names.number(datatype) if datatype else NONE


def _make_collectives(
    rows: Sequence[tuple[int, ...]], names: tuple[str, ...], groups: tuple[Group, ...]
) -> Collectives:
    """Build the table of collectives from a list of rows.

    Args:
        rows: Rows with one number for each column of :class:`Collectives`, in column order.
        names: Names and data types. The rows contain indices into this list.
        groups: Process groups. The rows contain indices into this list.
    """
    columns = Collectives.column_names()
    values = np.array(rows, np.int64).reshape(-1, len(columns)).T.copy()
    by_column = dict(zip(columns, values, strict=True))
    return Collectives(**by_column, names=names, groups=groups)


class _Groups:
    """Numbers process groups, parsing each distinct description once.

    A trace has many kernels but few groups, and a group may have thousands of ranks, so the cache
    saves a lot of time.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._numbers = Numbering[Group]()
        self._cache: dict[str, tuple[int, Mapping[int, int]]] = {}

    @property
    def values(self) -> tuple[Group, ...]:
        """The process groups, indexed by group number."""
        return self._numbers.values

    def find(self, args: KinetoArgs, operator: KinetoArgs) -> tuple[int, Mapping[int, int]]:
        """Return the number of a kernel's process group, and each global rank's index in it.

        The number is -1 if the group has neither a name nor known ranks.

        Args:
            args: The kernel's arguments.
            operator: Arguments of the operator that launched the kernel.
        """
        described = [get_argument(args, operator, field) for field in _GROUP_FIELDS]
        key = repr((*described, operator.start, operator.stride))
        if key not in self._cache:
            group = _make_group(args, operator, self._world)
            number = self._numbers.number(group) if group.name or group.ranks else NONE
            self._cache[key] = number, {rank: index for index, rank in enumerate(group.ranks)}
        return self._cache[key]


def _find_ranks(
    name: str,
    args: KinetoArgs,
    operator: KinetoArgs,
    global_rank: int,
    index_of_rank: Mapping[int, int],
) -> tuple[int, int, int]:
    """Return an operation's calling rank, peer and root, as indices into its process group.

    - The calling rank is the index of ``global_rank`` in the group. If it is unknown and the
      operation has neither peer nor root, the argument ``Rank`` is used.
    - Only sends and receives have a peer. The peer is the index of the argument ``Dst Rank`` or
      ``Src Rank`` in the group. If that rank is not in the group, the argument ``Rank`` is used.
    - Only the collectives in ``_ROOTED`` have a root, which is the argument ``Rank``.

    Unknown and missing indices are -1.

    Args:
        name: Name of the operation, such as ``send`` or ``broadcast``.
        args: The kernel's arguments.
        operator: Arguments of the operator that launched the kernel.
        global_rank: Global rank of the process, or -1 if unknown.
        index_of_rank: Maps each global rank of the group to its index in the group.
    """
    argument = kineto.parse_number(operator.rank, RANK_LIMIT)
    rank = index_of_rank.get(global_rank, NONE)
    if name in _PEER_FIELDS:
        peer = kineto.parse_number(get_argument(args, operator, _PEER_FIELDS[name]), RANK_LIMIT)
        return rank, index_of_rank.get(peer, argument), NONE
    if name in _ROOTED:
        return rank, NONE, argument
    return (argument if rank == NONE else rank), NONE, NONE


def _is_uneven(split: object) -> bool:
    """Return whether a collective's split sizes differ.

    Args:
        split: List of split sizes, or its text form. For any other value, the result is False.
    """
    sizes = _NUMBER.findall(split[: 1 << 20]) if isinstance(split, str) else split
    return isinstance(sizes, list) and any(size != sizes[0] for size in sizes)


def _describe_kernels(
    work: EventRows, calls: EventRows, collector: EventCollector, base_ns: int
) -> Iterator[tuple[int, int, KinetoArgs, KinetoArgs]]:
    """Yield each kernel that executes a collective, along with the arguments that describe it.

    Kernels that execute batches of sends and receives come last, see :func:`_describe_batches`.

    Args:
        work: Kernels followed by copies.
        calls: CUDA or HIP API calls.
        collector: All events in the recording.
        base_ns: Absolute time in ns to which the times in ``work`` and ``calls`` are relative.

    Yields:
        (kernel row, external id or -1, kernel arguments, operator arguments). If only one of the
        kernel and the operator has arguments, the same arguments appear twice.
    """
    operators = {external: args for external, _, _, args in collector.operators if external != NONE}
    kernels = _find_described_kernels(work, collector, operators)
    thread, correlation = work.thread[kernels], work.correlation[kernels]
    columns = (thread, correlation, work.start_ns[kernels] + base_ns, work.external[kernels])
    for kernel, *key, external in zip(
        kernels.tolist(), *(column.tolist() for column in columns), strict=True
    ):
        kernel_args = collector.kernels.get((key[0], key[1], key[2]))
        operator = operators.get(external)
        first, second = kernel_args or operator, operator or kernel_args
        if first is not None and second is not None:
            yield kernel, external, first, second
    yield from _describe_batches(work, calls, collector, base_ns, kernels)


def _find_described_kernels(
    work: EventRows, collector: EventCollector, operators: Collection[int]
) -> Ints:
    """Return the rows of the kernels that may have collective arguments, in ascending order.

    A kernel qualifies if a kernel with the same correlation id, or an operator with the same
    external id, has collective arguments.

    Args:
        work: Kernels followed by copies.
        collector: All events in the recording.
        operators: External ids of the operators with collective arguments.
    """
    kernels = np.flatnonzero(work.kind == kineto.KERNEL)
    ids = np.array([correlation for _, correlation, _ in collector.kernels], np.int64)
    is_described = np.isin(work.correlation[kernels], ids)
    is_described |= np.isin(work.external[kernels], np.array([*operators], np.int64))
    return kernels[is_described]


def _describe_batches(
    work: EventRows, calls: EventRows, collector: EventCollector, base_ns: int, described: Ints
) -> Iterator[tuple[int, int, KinetoArgs, KinetoArgs]]:
    """Yield the kernels that execute batches of sends and receives, once per send or receive.

    A batch consists of the sends and receives on one thread that end before the thread launches a
    kernel for them. No kernel arguments describe the batch, so each thread is searched in time
    order:

    1. When a send or receive ends, it joins the thread's current batch. A send or receive is
       skipped if a described kernel has the same external id.
    2. When a launch from :func:`_list_ending_launches` starts, the current batch ends. The launched
       kernel executes the batch. If the kernel is described, the batch is discarded instead.

    If an operator ends exactly when a launch starts, the operator is processed first. A batch that
    is still open at the end of its thread is discarded.

    Args:
        work: Kernels followed by copies.
        calls: CUDA or HIP API calls.
        collector: All events in the recording.
        base_ns: Absolute time in ns to which the times in ``work`` and ``calls`` are relative.
        described: Rows of the kernels whose own arguments describe a collective.

    Yields:
        (kernel row, external id, operator arguments, operator arguments) for each send or receive.
        The operator arguments appear twice because they replace the missing kernel arguments.
    """
    used_external = {*work.external[described].tolist()}
    events: list[tuple[int, int, int, int, KinetoArgs | None]] = [
        (thread, end_ns - base_ns, 0, external, args)
        for external, thread, end_ns, args in collector.operators
        if external not in used_external and kineto.to_text(args.collective) in _PEER_FIELDS
    ]
    if not events:
        return
    launches = _list_ending_launches(work, calls, collector.texts.values, described)
    events += [(thread, start_ns, 1, kernel, None) for thread, start_ns, kernel in launches]
    described_kernels = {*described.tolist()}
    batch: list[tuple[int, KinetoArgs]] = []
    batch_thread = NONE
    for thread, _, _, number, args in sorted(events, key=lambda event: event[:3]):
        if thread != batch_thread:
            batch, batch_thread = [], thread
        if args is not None:
            batch.append((number, args))
            continue
        if number not in described_kernels:
            yield from ((number, external, args, args) for external, args in batch)
        # Every launch ends the batch, whether the kernel is described or not.
        batch = []


def _list_ending_launches(
    work: EventRows, calls: EventRows, names: Sequence[str], described: Ints
) -> list[tuple[int, int, int]]:
    """Return the launches that end a batch of sends and receives.

    A launch ends a batch if its kernel is in ``described``, or if the kernel's name matches
    ``_POINT_TO_POINT_KERNEL``. Kernels in CUDA graphs and kernels without a launching call are left
    out.

    Args:
        work: Kernels followed by copies.
        calls: CUDA or HIP API calls.
        names: Event names, indexed by name number.
        described: Rows of the kernels whose own arguments describe a collective.

    Returns:
        (thread, start of the call in ns, kernel row) for each launch.
    """
    is_point_to_point = np.array(
        [_POINT_TO_POINT_KERNEL.search(truncate_for_matching(name)) is not None for name in names],
        bool,
    )
    is_graph_launch = np.array(["GraphLaunch" in name for name in names], bool)
    candidates = np.flatnonzero((work.kind == kineto.KERNEL) & is_point_to_point[work.name])
    kernels = find_distinct(candidates, described)
    rows = np.flatnonzero((calls.correlation >= 0) & ~is_graph_launch[calls.name])
    call = lookup_values([calls.correlation[rows]], rows, [work.correlation[kernels]])
    kernels, call = kernels[call != NONE], call[call != NONE]
    columns = (calls.thread[call], calls.start_ns[call], kernels)
    return list(zip(*(column.tolist() for column in columns), strict=True))
