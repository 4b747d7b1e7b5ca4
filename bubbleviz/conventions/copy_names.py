"""Names of copies: the direction and the kinds of memory that they tell.

PyTorch and XLA name a copy ``Memcpy HtoD (Pinned -> Device)`` or ``MemcpyH2D``, ROCm's tools
``CopyHostToDevice`` or ``MEMORY_COPY_HOST_TO_DEVICE``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.copies import Copies, Direction, Memory

#: Beginnings of the names of fills, which copy nothing.
_FILLS = ("memset", "fill")
#: Two ends of a copy: ``HtoD``, ``H2D``, ``HostToDevice``, ``HOST_TO_DEVICE``.
_ENDS = re.compile(
    r"(?i)(host|device|array|peer|[hdap])_?(?:to|2)_?(host|device|array|peer|[hdap])"
)
#: Two kinds of memory: ``(Pinned -> Device)``.
_MEMORY = re.compile(r"\((\w+)[\w ]* -> (\w+)[\w ]*\)")
#: Details of a copy in XLA's profiles, as pairs of a key and a value.
_DETAIL = re.compile(r"\b(?:(kind_src|kind_dst):([a-z]+)|(size):([0-9]{1,18}))\b")
#: Longest part of a name that is looked at.
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
    """Return the direction of a copy and the memory that it reads and writes.

    Args:
        name: Name of a copy or fill.

    Returns:
        What the name tells, with unknown parts as unknown, or None if it is the name of a fill.
    """
    name = name[:_MAX_LENGTH]
    if name.lower().startswith(_FILLS):
        return None
    ends, memory = _ENDS.search(name), _MEMORY.search(name)
    direction, kinds = Direction.UNKNOWN, (Memory.UNKNOWN, Memory.UNKNOWN)
    if ends is not None:
        letters = "".join(end[0].lower() for end in ends.groups())
        direction = _DIRECTIONS.get(letters, Direction.UNKNOWN)
    if memory is not None:
        source, target = (_KINDS.get(word.lower(), Memory.UNKNOWN) for word in memory.groups())
        kinds = source, target
    return direction, *kinds


def read_copy_details(text: str) -> tuple[int, Memory, Memory]:
    """Return the number of bytes of a copy, or -1, and the memory that it reads and writes.

    Args:
        text: Details that XLA records of a copy, such as
            ``kind_src:pinned kind_dst:device size:4 dest:0 async:1``, or "" for none.
    """
    found = _DETAIL.findall(text[:_MAX_LENGTH])
    words = {kind or size: memory or number for kind, memory, size, number in found}
    kinds = (_KINDS.get(words.get(f"kind_{end}", ""), Memory.UNKNOWN) for end in ("src", "dst"))
    source, target = kinds
    return int(words.get("size", NONE)), source, target


def copies_of_names(activity: Ints, name: Ints, names: Sequence[str], size: Ints) -> Copies:
    """Return copies as their names tell them, without fills.

    Args:
        activity: Row of the activities of each copy or fill, ascending.
        name: Number of its name.
        names: Names by number.
        size: Number of bytes that it moved, or -1 if unknown.
    """
    used, of_row = np.unique(name, return_inverse=True)
    told = [read_copy_name(names[number]) for number in used.tolist()]
    codes = np.array([own or (NONE, NONE, NONE) for own in told], np.int64).reshape(-1, 3)
    columns = codes[of_row]
    is_copy: Bools = columns[:, 0] != NONE
    direction, source, target = columns[is_copy].T
    return Copies(activity[is_copy], size[is_copy], direction, source, target)
