"""Collectives that PyTorch's profiler tells of, by the kernels that carry them out.

The operator ``record_param_comms`` says what it does; kernels that it launched say it again, and
share its ``External id`` (torch/csrc/distributed/c10d/ParamCommsUtils.hpp, torch/csrc/profiler/
util.cpp ``saveNcclMeta``, libkineto/src/output_json.cpp). What a kernel lacks, as older versions
write none of it and none writes the root, its operator tells. Of a batch of sends and receives
(``batch_isend_irecv``) the end launches one kernel, that belongs to no operator::

    operators   send  recv
    calls                   cudaLaunchKernelExC
    kernel                        ├─ SendRecv ─┤    of both
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import looked_up
from bubbleviz.model.process_groups import Collectives, Group
from bubbleviz.model.texts import encodable
from bubbleviz.sources.event_columns import Texts
from bubbleviz.sources.kineto.events import (
    CORRELATION,
    DEVICE,
    EXTERNAL,
    KERNEL,
    NAME,
    OPERATOR,
    OWNER,
    START,
    Collective,
    CollectiveArgs,
    Gathered,
    Rows,
)

#: More elements, or ranks, than there are.
_MOST_ELEMENTS, _MOST_RANKS = 1 << 55, 1 << 20
_NUMBER = re.compile(r"-?\d+")
_CUT = "..."
#: Operations whose ``Rank`` is that of the root, or of the peer; else it is one's own.
_ROOTED = frozenset(("broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter"))
_COLUMNS = Collectives.column_names()
#: Kernels that carry out sends and receives; AMD's say nothing.
_PASSES = re.compile(r"^(?:void )?nccl\w*?(?:SendRecv|Generic)")
_PASSING = {"send": "target", "recv": "origin"}


@dataclass(frozen=True)
class _World:
    """What the document says of the run: own rank, how many there are, and groups' ranks."""

    rank: int
    size: int
    groups: Mapping[str, tuple[int, ...]]


def collectives_of(
    work: Rows, called: Rows, gathered: Gathered, base_ns: int, facts: Mapping[str, object]
) -> Collectives:
    """Return what kernels carry out.

    Args:
        work: kernels, then copies; their rows are those of the profile's activities.
        called: CUDA API calls.
        gathered: what the events tell.
        base_ns: what ``work`` counts from.
        facts: what the document says beside its events.
    """
    own = {
        (told.correlation, told.start_ns - base_ns): told.args
        for told in gathered.collectives
        if told.kind == KERNEL
    }
    operators = {
        told.external: told.args
        for told in gathered.collectives
        if told.kind == OPERATOR and told.external != NONE
    }
    kernels = np.flatnonzero(work.kind == KERNEL)
    external = np.array([NONE, *operators], np.int64)
    ids = np.array([NONE - 1, *(correlation for correlation, _ in own)], np.int64)
    told_of = np.isin(work[CORRELATION][kernels], ids)
    told_of |= np.isin(work[EXTERNAL][kernels], external[1:])
    kernels = kernels[told_of]
    columns = (work[c][kernels].tolist() for c in (CORRELATION, START, EXTERNAL, DEVICE))
    world = _world(facts)
    table = _Table(world)
    for kernel, correlation, start_ns, number, device in zip(
        kernels.tolist(), *columns, strict=True
    ):
        args, operator = own.get((correlation, start_ns)), operators.get(number)
        first, second = args or operator, operator or args
        if first is not None and second is not None:
            table.add(kernel, (number, device), first, second)
    for kernel, told in _batched(work, called, gathered, base_ns, kernels):
        table.add(kernel, (told.external, int(work[DEVICE][kernel])), told.args, told.args)
    return table.made()


def _batched(
    work: Rows, called: Rows, gathered: Gathered, base_ns: int, told: Ints
) -> Iterator[tuple[int, Collective]]:
    """Yield kernels of batches of sends and receives, with each of these.

    Args:
        work: kernels, then copies.
        called: CUDA API calls.
        gathered: what the events tell.
        base_ns: what ``work`` counts from.
        told: kernels of which something is told.
    """
    used = {*work[EXTERNAL][told].tolist()}
    waiting = [
        own
        for own in gathered.collectives
        if own.kind == OPERATOR and own.external not in used and _is_passing(own.args)
    ]
    if not waiting:
        return
    texts = gathered.names.all()
    passing = np.array([_PASSES.search(text) is not None for text in texts], bool)
    graph = np.array(["GraphLaunch" in text for text in texts], bool)
    bare = np.flatnonzero((work.kind == KERNEL) & passing[work[NAME]])
    kernels = np.union1d(bare, told)
    calls = np.flatnonzero((called[CORRELATION] >= 0) & ~graph[called[NAME]])
    ids = called[CORRELATION][calls]
    call = looked_up([ids], calls, [work[CORRELATION][kernels]])
    kernels, call = kernels[call != NONE], call[call != NONE]
    launches = zip(called[OWNER][call].tolist(), called[START][call].tolist(), strict=True)
    events: list[tuple[int, int, int, Collective | int]] = [
        (owner, start_ns, 1, kernel)
        for (owner, start_ns), kernel in zip(launches, kernels.tolist(), strict=True)
    ]
    events += [(own.owner, own.end_ns - base_ns, 0, own) for own in waiting]
    known = {*told.tolist()}
    batch: list[Collective] = []
    for owner, _, _, own in sorted(events, key=lambda event: event[:3]):
        if isinstance(own, Collective):
            if batch and batch[0].owner != owner:
                batch = []
            batch.append(own)
            continue
        if own not in known and batch and batch[0].owner == owner:
            yield from ((own, one) for one in batch)
        # What was launched on its own ends a batch, too: none is open then.
        batch = []


def _is_passing(args: CollectiveArgs) -> bool:
    return isinstance(args.collective, str) and args.collective in _PASSING


#: The place in its group of each rank.
_Places = Mapping[int, int]


class _Table:
    """Rows of collectives, one by one: they are few."""

    def __init__(self, world: _World) -> None:
        self._world = world
        self._names = Texts()
        self._groups: dict[Group, int] = {}
        self._known: dict[str, tuple[int, _Places]] = {}
        self._operations: dict[tuple[int, int], int] = {}
        self._rows: list[tuple[int, ...]] = []

    def add(
        self, kernel: int, launched: tuple[int, int], args: CollectiveArgs, operator: CollectiveArgs
    ) -> None:
        """Add a kernel; ``launched`` is External id and device, ``operator`` what launched it."""
        name = _text(_either(args, operator, "collective"))
        datatype = _text(_either(args, operator, "datatype"))
        group, at = self._group(args, operator)
        of_operator = _whole(operator.rank, _MOST_RANKS)
        rank, peer, root = at.get(self._world.rank, NONE), NONE, NONE
        if name in _PASSING:
            other = _whole(_either(args, operator, _PASSING[name]), _MOST_RANKS)
            peer = at.get(other, of_operator)
        elif name in _ROOTED:
            root = of_operator
        elif rank == NONE:
            rank = of_operator
        number = len(self._rows)
        # A kernel that no operator launched is an operation of its own.
        if launched[0] != NONE:
            number = self._operations.setdefault(launched, number)
        self._rows.append(
            (
                kernel,
                number,
                self._names.number(name),
                group,
                _whole(_either(args, operator, "elements_in"), _MOST_ELEMENTS),
                _whole(_either(args, operator, "elements_out"), _MOST_ELEMENTS),
                self._names.number(datatype) if datatype else NONE,
                int(_uneven(_either(args, operator, "split"))),
                rank,
                peer,
                root,
                _whole(_either(args, operator, "sequence"), 1 << 62),
            )
        )

    def _group(self, args: CollectiveArgs, operator: CollectiveArgs) -> tuple[int, _Places]:
        """Return the number of a group, -1 where nothing is told of it, and its ranks' places."""
        fields = ("group", "size", "ranks", "description")
        told = [_either(args, operator, field) for field in fields]
        # Most kernels are of few groups, and a group may have thousands of ranks.
        key = repr((*told, operator.start, operator.stride))
        if key not in self._known:
            group = self._made_group(operator, *told)
            told_of = group.name or group.ranks
            number = self._groups.setdefault(group, len(self._groups)) if told_of else NONE
            self._known[key] = number, {rank: at for at, rank in enumerate(group.ranks)}
        return self._known[key]

    def _made_group(
        self, operator: CollectiveArgs, name: object, size: object, told: object, described: object
    ) -> Group:
        count = max(_whole(size, _MOST_RANKS), 0)
        ranks = _members(told, count) or self._of_document(_text(name), count)
        ranks = ranks or _stepping(operator, told, count)
        return Group(
            name=_text(name),
            told="" if ranks else _text(told),
            ranks=ranks,
            size=count or len(ranks),
            description=_text(described),
        )

    def _of_document(self, name: str, size: int) -> tuple[int, ...]:
        known = self._world.groups.get(name, ())
        if size and len(known) == size:
            return known
        return tuple(range(size)) if size == self._world.size else ()

    def made(self) -> Collectives:
        """Return the table."""
        columns = np.array(self._rows, np.int64).reshape(-1, len(_COLUMNS)).T.copy()
        named = dict(zip(_COLUMNS, columns, strict=True))
        return Collectives(**named, names=self._names.all(), groups=tuple(self._groups))


def _world(facts: Mapping[str, object]) -> _World:
    told = facts.get("distributedInfo")
    told = told if isinstance(told, dict) else {}
    groups = told.get("pg_config")
    known: dict[str, tuple[int, ...]] = {}
    for group in groups if isinstance(groups, list) else []:
        if isinstance(group, dict):
            name = _text(group.get("pg_name"))
            ranks = _members(group.get("ranks"), max(_whole(group.get("pg_size"), _MOST_RANKS), 0))
            # Of two groups of one name nothing tells which is meant.
            known[name] = () if known.get(name, ranks) != ranks else ranks
    size = _whole(told.get("world_size"), _MOST_RANKS)
    return _World(_whole(told.get("rank"), _MOST_RANKS), size, known)


def _members(told: object, size: int) -> tuple[int, ...]:
    """Return all ranks of a group; none where some are cut, or not as many as it has."""
    if isinstance(told, str) and _CUT not in told:
        ranks = [int(number) for number in _NUMBER.findall(told[: 1 << 20]) if len(number) < 9]
    elif isinstance(told, list):
        ranks = [_whole(rank, _MOST_RANKS) for rank in told]
    else:
        return ()
    sound = len(set(ranks)) == len(ranks) and min(ranks, default=0) >= 0
    return tuple(ranks) if sound and size in (0, len(ranks)) else ()


def _stepping(operator: CollectiveArgs, told: object, size: int) -> tuple[int, ...]:
    """Return a group's ranks where they are cut, but a step apart from one another.

    ``[0, 8, 16, ..., 1016]`` tells so (torch/csrc/profiler/util.cpp ``format_list``), or
    ``Global rank start`` and ``stride`` do.
    """
    start, step = (_whole(own, _MOST_RANKS) for own in (operator.start, operator.stride))
    text = told[: 1 << 20] if isinstance(told, str) else ""
    before, _, after = text.partition(_CUT)
    seen = [int(number) for number in _NUMBER.findall(before) if len(number) < 9]
    last = [int(number) for number in _NUMBER.findall(after) if len(number) < 9]
    if not (start >= 0 and step > 0) and len(seen) > 1 and last:
        start, step = seen[0], seen[1] - seen[0]
    if not (start >= 0 and step > 0 and size):
        return ()
    ranks = tuple(range(start, start + step * size, step))
    sound = tuple(seen) == ranks[: len(seen)] and tuple(last) in ((), ranks[-1:])
    return ranks if sound else ()


def _either(args: CollectiveArgs, operator: CollectiveArgs, field: str) -> object:
    """Return what a kernel tells, or else the operator that launched it."""
    own: object = getattr(args, field)
    other: object = getattr(operator, field)
    return other if own is None else own


def _whole(value: object, below: int) -> int:
    """Return a number that counts something; -1 for what is none."""
    if isinstance(value, str) and len(value) < 20 and value.isascii() and value.isdigit():
        value = int(value)
    known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below
    return value if known and isinstance(value, int) else NONE


def _text(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if abs(value) < 1 << 63 else ""
    return encodable(value) if isinstance(value, str) else ""


def _uneven(split: object) -> bool:
    """Tell whether the parts that ranks exchange differ in size."""
    numbers = _NUMBER.findall(split[: 1 << 20]) if isinstance(split, str) else split
    sizes: Sequence[object] = numbers if isinstance(numbers, list) else []
    return any(own != sizes[0] for own in sizes)
