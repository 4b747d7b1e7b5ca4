"""Describes the collective that each communication operation of HCCL executes.

The communicator of an operation is a text such as ``10.0.0.1%eth0_60000_0_1708156014257149``. The
ranks of communicators that PyTorch created are in ``META_DATA`` (torch_npu/profiler/profiler.py in
Ascend/pytorch)::

    {"10.0.0.1%eth0_60000_0_1708156014257149":
        {"group_name": "default_group", "group_rank": 0, "global_ranks": [0, 1]}}

HCCL counts elements as NCCL does, except that it counts all elements that a rank sends in an
all-to-all with parts of different sizes (``ReportHcclOpInfo`` of HCCL).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from bubbleviz.conventions.kinds import parse_hccl_operation
from bubbleviz.model.collectives import Collectives, Group
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, make_constant
from bubbleviz.model.grouping import find_distinct
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.texts import replace_surrogates
from bubbleviz.sources.ascend.recording import AscendRecording

#: Exclusive upper bounds on rank numbers and on numbers of elements.
_RANK_LIMIT, _ELEMENT_LIMIT = 1 << 20, 1 << 55
#: NCCL's or PyTorch's names of data types, in the order of ``HcclDataType``.
_DATATYPES = (
    *("ncclInt8", "Short", "ncclInt32", "ncclFloat16", "ncclFloat32", "ncclInt64", "ncclUint64"),
    *("ncclUint8", "UInt16", "ncclUint32", "ncclFloat64", "ncclBfloat16"),
)


@dataclass(frozen=True)
class _Membership:
    """A communicator, and the position of the recorded rank in it.

    Attributes:
        group: The communicator.
        rank: Position of the rank, or -1 if unknown.
    """

    group: Group
    rank: int = NONE


def find_collectives(recording: AscendRecording, operations: Ints, kernel: Codes) -> Collectives:
    """Describe the collective that each communication operation executes.

    Args:
        recording: The contents of the file.
        operations: Columns of the operations, as in ``recording.communication``.
        kernel: Row of each operation in the activity table.
    """
    name, text, datatype, count = operations[4:8]
    groups, ranks, group = _number_groups(recording, text)
    sizes = np.array([*(member.size for member in groups), 0], np.int64)[group]
    labels = Numbering[str](_DATATYPES)
    labels_by_name = labels.numbers(map(parse_hccl_operation, recording.names))
    is_send = _mask_operations(recording.names, ("Send", "Recv"))[name]
    is_all_to_all = _mask_operations(recording.names, ("AlltoAll",))[name]
    rank = ranks[group]
    # A rank that sends to or receives from one of two ranks communicates with the other rank.
    has_one_peer = is_send & (sizes == 2) & (rank != NONE)
    count = np.where((count >= 0) & (count < _ELEMENT_LIMIT), count, NONE)
    all_elements = np.where(count == NONE, NONE, count * np.where(is_all_to_all, sizes, 1))
    unknown = make_constant(NONE, len(name))
    is_datatype = (datatype >= 0) & (datatype < len(_DATATYPES))
    collectives = Collectives(
        kernel=kernel.astype(np.int64),
        operation=np.arange(len(name)),
        name=labels_by_name[name],
        group=group,
        elements_in=all_elements,
        elements_out=count,
        datatype=np.where(is_datatype, datatype, NONE),
        is_uneven=np.zeros(len(name), np.int64),
        rank=rank,
        peer=np.where(has_one_peer, 1 - rank, NONE),
        root=unknown,
        sequence=unknown,
        names=labels.values,
        groups=groups,
    )
    return collectives.take(np.argsort(kernel))


def _mask_operations(names: tuple[str, ...], operations: tuple[str, ...]) -> Bools:
    """Return a mask of the names of HCCL that belong to the given operations of NCCL."""
    return np.array([*(parse_hccl_operation(name) in operations for name in names), False], bool)


def _number_groups(recording: AscendRecording, text: Ints) -> tuple[tuple[Group, ...], Ints, Ints]:
    """Number the communicators.

    Args:
        recording: The contents of the file.
        text: Communicator of each operation, as an index into ``recording.names``, or -1.

    Returns:
        groups: Distinct communicators.
        ranks: Position of the recorded rank in each communicator, or -1 if unknown, followed by -1.
        group: Communicator of each operation, as an index into ``groups``, or -1 if unknown.
    """
    known = _parse_groups(recording.groups)
    groups, ranks = Numbering[Group](), {NONE: NONE}
    group_of_name = np.full(len(recording.names) + 1, NONE, np.int64)
    for number in find_distinct(text[text != NONE]).tolist():
        if name := recording.names[number]:
            # Names that HCCL generates contain an address and a time.
            unlisted = Group(_trim_address(name), has_unique_name="%" in name)
            membership = known.get(name) or _Membership(unlisted)
            group_of_name[number] = groups.number(membership.group)
            ranks[groups.number(membership.group)] = membership.rank
    of_group = [ranks[number] for number in (*range(len(groups)), NONE)]
    return groups.values, np.array(of_group, np.int64), group_of_name[text]


def _parse_groups(text: str) -> dict[str, _Membership]:
    """Parse the ranks of communicators, keyed by the text of the communicator.

    Entries with invalid ranks are left out.

    Args:
        text: JSON text, or "" if there is none.
    """
    try:
        document = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(document, dict):
        return {}
    groups: dict[str, _Membership] = {}
    for name, entry in document.items():
        ranks = entry.get("global_ranks") if isinstance(entry, dict) else None
        if not isinstance(ranks, list) or not _are_ranks(ranks):
            continue
        rank = entry.get("group_rank")
        is_member = type(rank) is int and 0 <= rank < len(ranks)
        description = replace_surrogates(str(entry.get("group_name") or ""))
        group = Group(
            _trim_address(replace_surrogates(name)),
            ranks=tuple(ranks),
            size=len(ranks),
            description=description,
        )
        groups[name] = _Membership(group, rank if is_member else NONE)
    return groups


def _are_ranks(numbers: list[object]) -> bool:
    """Return whether a list contains distinct rank numbers, at least one."""
    are_numbers = all(type(number) is int and 0 <= number < _RANK_LIMIT for number in numbers)
    return are_numbers and 0 < len(numbers) == len(set(numbers))


def _trim_address(name: str) -> str:
    """Return the name of a communicator without the network address of its first host."""
    return name.rpartition("%")[2]
