"""Process groups as PyTorch's profiler writes them, with each event and in the document."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from bubbleviz.model.columns import NONE
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.process_groups import Group
from bubbleviz.model.values import frozen
from bubbleviz.sources.kineto.events import CollectiveArgs, either, text_of, whole_number

#: More ranks than there are.
MOST_RANKS = 1 << 20
_NUMBER = re.compile(r"-?\d+")
#: Stands for the ranks that are left out of a long list.
_ELLIPSIS = "..."
_FIELDS = ("group", "size", "ranks", "description")

#: Place in the group of each of its ranks.
Places: TypeAlias = Mapping[int, int]


@frozen
class World:
    """What ``distributedInfo`` of the document holds.

    Attributes:
        rank: own; -1 unknown.
        size: how many ranks there are; -1 unknown.
        groups: ranks of groups by name; () where two groups share a name.
    """

    rank: int
    size: int
    groups: Mapping[str, tuple[int, ...]]


def world_of(metadata: Mapping[str, object]) -> World:
    """Return the world that the document describes."""
    info = metadata.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    configs = info.get("pg_config")
    groups: dict[str, tuple[int, ...]] = {}
    for config in configs if isinstance(configs, list) else []:
        if isinstance(config, dict):
            name = text_of(config.get("pg_name"))
            size = max(whole_number(config.get("pg_size"), MOST_RANKS), 0)
            ranks = _members(config.get("ranks"), size)
            groups[name] = () if groups.get(name, ranks) != ranks else ranks
    return World(
        rank=whole_number(info.get("rank"), MOST_RANKS),
        size=whole_number(info.get("world_size"), MOST_RANKS),
        groups=groups,
    )


class GroupNumbering:
    """Numbers the groups that events name."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._groups: Numbering[Group] = Numbering()
        self._known: dict[str, tuple[int, Places]] = {}

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups, by number."""
        return self._groups.values

    def number(self, args: CollectiveArgs, operator: CollectiveArgs) -> tuple[int, Places]:
        """Return the number of a kernel's group, -1 for an unknown one, and its ranks' places.

        Args:
            args: of the kernel.
            operator: arguments of the operator that launched it.
        """
        values = [either(args, operator, field) for field in _FIELDS]
        # Most kernels are of few groups, and a group may have thousands of ranks.
        key = repr((*values, operator.start, operator.stride))
        if key not in self._known:
            group = self._group(operator, *values)
            number = self._groups.number(group) if group.name or group.ranks else NONE
            self._known[key] = number, {rank: at for at, rank in enumerate(group.ranks)}
        return self._known[key]

    def _group(
        self,
        operator: CollectiveArgs,
        name: object,
        size: object,
        ranks: object,
        description: object,
    ) -> Group:
        count = max(whole_number(size, MOST_RANKS), 0)
        members = (
            _members(ranks, count)
            or self._of_document(text_of(name), count)
            or _strided(operator, ranks, count)
        )
        return Group(
            name=text_of(name),
            ranks_text="" if members else text_of(ranks),
            ranks=members,
            size=count or len(members),
            description=text_of(description),
        )

    def _of_document(self, name: str, size: int) -> tuple[int, ...]:
        ranks = self._world.groups.get(name, ())
        if size and len(ranks) == size:
            return ranks
        return tuple(range(size)) if size == self._world.size else ()


def _members(ranks: object, size: int) -> tuple[int, ...]:
    """Return all ranks of a group; () where some are left out, or their number is not its size."""
    if isinstance(ranks, str) and _ELLIPSIS not in ranks:
        numbers = _numbers(ranks[: 1 << 20])
    elif isinstance(ranks, list):
        numbers = [whole_number(rank, MOST_RANKS) for rank in ranks]
    else:
        return ()
    sound = len(set(numbers)) == len(numbers) and min(numbers, default=0) >= 0
    return tuple(numbers) if sound and size in (0, len(numbers)) else ()


def _strided(operator: CollectiveArgs, ranks: object, size: int) -> tuple[int, ...]:
    """Return a group's ranks where some are left out, but all lie one stride apart.

    ``[0, 8, 16, ..., 1016]`` shows the stride (torch/csrc/profiler/util.cpp ``format_list``), or
    ``Global rank start`` and ``stride`` do.
    """
    start, stride = (whole_number(n, MOST_RANKS) for n in (operator.start, operator.stride))
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
