"""Parsing of copy names: direction of a copy, and kinds of memory of its source and target.

PyTorch and XLA name a copy ``Memcpy HtoD (Pinned -> Device)`` or ``MemcpyH2D``; ROCm tools name it
``CopyHostToDevice`` or ``MEMORY_COPY_HOST_TO_DEVICE``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.copies import Copies, Direction, Memory

#: Prefixes of the names of fills, which are not copies.
_FILLS = ("memset", "fill")
#: Source and target of a copy: ``HtoD``, ``H2D``, ``HostToDevice``, ``HOST_TO_DEVICE``.
_ENDS = re.compile(
    r"(?i)(host|device|array|peer|[hdap])_?(?:to|2)_?(host|device|array|peer|[hdap])"
)
#: Kinds of memory of source and target: ``(Pinned -> Device)``.
_MEMORY = re.compile(r"\((\w+)[\w ]* -> (\w+)[\w ]*\)")
#: A key and its value in the details of a copy in XLA's profiles.
_DETAIL = re.compile(r"\b(?:(kind_src|kind_dst):([a-z]+)|(size):([0-9]{1,18}))\b")
#: Maximum number of characters of a name that are parsed.
_MAX_LENGTH = 200
_DIRECTIONS = {
    "hd": Direction.HOST_TO_DEVICE,
    "ha": Direction.HOST_TO_DEVICE,
    "dh": Direction.DEVICE_TO_HOST,
    "ah": Direction.DEVICE_TO_HOST,
    "dd": Direction.DEVICE_TO_DEVICE,
    "da": Direction.DEVICE_TO_DEVICE,
    "ad": Direction.DEVICE_TO_DEVICE,
    "aa": Direction.DEVICE_TO_DEVICE,
    "pp": Direction.PEER_TO_PEER,
    "hh": Direction.HOST_TO_HOST,
}
_KINDS = {
    "pageable": Memory.PAGEABLE,
    "pinned": Memory.PINNED,
    "device": Memory.DEVICE,
    "array": Memory.ARRAY,
    "managed": Memory.MANAGED,
    "unified": Memory.MANAGED,
}


def read_copy_name(name: str) -> tuple[Direction, Memory, Memory] | None:
    """Read the direction of a copy and the memory that it reads and writes from its name.

    Args:
        name: Name of a copy or fill.

    Returns:
        Direction, source and target, each UNKNOWN if not in the name, or None if it names a
        fill.
    """
    name = name[:_MAX_LENGTH]
    if name.lower().startswith(_FILLS):
        return None
    match, memory = _ENDS.search(name), _MEMORY.search(name)
    direction, kinds = Direction.UNKNOWN, (Memory.UNKNOWN, Memory.UNKNOWN)
    if match is not None:
        letters = "".join(end[0].lower() for end in match.groups())
        direction = _DIRECTIONS.get(letters, Direction.UNKNOWN)
    if memory is not None:
        source, target = (_KINDS.get(word.lower(), Memory.UNKNOWN) for word in memory.groups())
        kinds = source, target
    return direction, *kinds


def read_copy_details(text: str) -> tuple[int, Memory, Memory]:
    """Read the size of a copy and the memory that it reads and writes from XLA's details.

    Args:
        text: Details such as ``kind_src:pinned kind_dst:device size:4 dest:0 async:1``, or "" if
            none were recorded.

    Returns:
        Number of bytes, or -1 if unknown, source and target.
    """
    details = {
        key or size_key: memory or size
        for key, memory, size_key, size in _DETAIL.findall(text[:_MAX_LENGTH])
    }
    source = _KINDS.get(details.get("kind_src", ""), Memory.UNKNOWN)
    target = _KINDS.get(details.get("kind_dst", ""), Memory.UNKNOWN)
    return int(details.get("size", NONE)), source, target


def read_copies(activity: Ints, name: Ints, names: Sequence[str], size: Ints) -> Copies:
    """Return a table of copies with the direction and memory in their names, without fills.

    Args:
        activity: Row of each copy or fill in the activities, ascending.
        name: Index of its name in ``names``.
        names: Names of copies and fills.
        size: Number of bytes that it moved, or -1 if unknown.
    """
    used, used_index = np.unique(name, return_inverse=True)
    fill = (NONE, NONE, NONE)
    codes = [read_copy_name(names[number]) or fill for number in used.tolist()]
    columns = np.array(codes, np.int64).reshape(-1, 3)[used_index]
    is_copy: Bools = columns[:, 0] != NONE
    direction, source, target = columns[is_copy].T
    return Copies(activity[is_copy], size[is_copy], direction, source, target)
