"""Parses copy names, which contain the direction of a copy and its source and target memory.

PyTorch and XLA name a copy ``Memcpy HtoD (Pinned -> Device)`` or ``MemcpyH2D``. ROCm tools name it
``CopyHostToDevice`` or ``MEMORY_COPY_HOST_TO_DEVICE``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.copies import Copies, Direction, Memory

#: Name prefixes of memory fills, which are not copies. Case is ignored.
_FILLS = ("memset", "fill")
#: Matches the source and target in a copy name, such as ``HtoD``, ``H2D`` or ``HOST_TO_DEVICE``.
_ENDS = re.compile(
    r"(?i)(host|device|array|peer|[hdap])_?(?:to|2)_?(host|device|array|peer|[hdap])"
)
#: Matches the source and target memory in a copy name, such as ``(Pinned -> Device)``.
_MEMORY = re.compile(r"\((\w+)[\w ]* -> (\w+)[\w ]*\)")
#: Matches one key and its value in the details that XLA profiles record for a copy.
_DETAIL = re.compile(r"\b(?:(kind_src|kind_dst):([a-z]+)|(size):([0-9]{1,18}))\b")
#: Number of leading characters of a name or a details text that are parsed.
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
    """Parse the direction, source memory and target memory from the name of a copy.

    Args:
        name: Name of a copy or memory fill.

    Returns:
        The direction, the source memory and the target memory, or None if the name starts with
        "memset" or "fill" in any case. Values missing from the name are UNKNOWN.
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
    """Parse a copy's size, source memory and target memory from XLA's details text.

    Args:
        text: Details such as ``kind_src:pinned kind_dst:device size:4 dest:0 async:1``, or "" if
            none were recorded.

    Returns:
        The size in bytes, the source memory and the target memory. An unknown size is -1, and
        unknown memory is UNKNOWN.
    """
    details = {
        key or size_key: memory or size
        for key, memory, size_key, size in _DETAIL.findall(text[:_MAX_LENGTH])
    }
    source = _KINDS.get(details.get("kind_src", ""), Memory.UNKNOWN)
    target = _KINDS.get(details.get("kind_dst", ""), Memory.UNKNOWN)
    return int(details.get("size", NONE)), source, target


def read_copies(activity: Ints, name: Ints, names: Sequence[str], size: Ints) -> Copies:
    """Build the table of copies, with directions and memory kinds parsed from the names.

    Memory fills are left out.

    Args:
        activity: Activity rows of the copies and fills, in ascending order.
        name: For each copy or fill, the index of its name in ``names``.
        names: Names of copies and fills.
        size: Size of each copy or fill in bytes, or -1 if unknown.
    """
    used, used_index = np.unique(name, return_inverse=True)
    fill = (NONE, NONE, NONE)
    codes = [read_copy_name(names[number]) or fill for number in used.tolist()]
    columns = np.array(codes, np.int64).reshape(-1, 3)[used_index]
    is_copy: Bools = columns[:, 0] != NONE
    direction, source, target = columns[is_copy].T
    return Copies(activity[is_copy], size[is_copy], direction, source, target)
