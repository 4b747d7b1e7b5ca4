"""Collectives of PyTorch in the terms of NCCL: names, bytes, communicators."""

from __future__ import annotations

import numpy as np

from bubbleviz.analyses.nccl.members import KernelOperations
from bubbleviz.conventions.launching_calls import operation_of
from bubbleviz.model.collectives import Collectives, Group
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import groups_of

#: How many bytes an element has (``ScalarType`` of c10/core/ScalarType.h).
SIZES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "QInt8", "QUInt8", "Bits8"), 1),
    **dict.fromkeys(("Float8_e5m2", "Float8_e4m3fn", "Float8_e5m2fnuz", "Float8_e4m3fnuz"), 1),
    **dict.fromkeys(("Float8_e8m0fnu", "Float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("Short", "UInt16", "Half", "BFloat16", "Bits16"), 2),
    **dict.fromkeys(("Int", "UInt32", "Float", "QInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Long", "UInt64", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
#: Operations whose count is of what a rank takes, not of what it hands in.
_TAKING = frozenset(("ReduceScatter", "Scatter", "Recv"))


def operations_of_pytorch(
    collectives: Collectives, rows: Ints, kernel_names: Ints, names: tuple[str, ...]
) -> KernelOperations:
    """Return the operations that kernels of NCCL carry out.

    Args:
        collectives: that kernels carry out.
        rows: activity of each kernel of NCCL, distinct, in the order of their table.
        kernel_names: row of ``names`` of each.
        names: operations by the kernels' names; "" unknown.
    """
    order = np.argsort(rows)
    place = np.searchsorted(rows[order], collectives.kernel)
    of_nccl = np.flatnonzero(np.isin(collectives.kernel, rows))
    collectives, kernel = collectives.take(of_nccl), order[place[of_nccl]]
    operations = groups_of(collectives.operation)
    first, last = np.full(len(operations), len(rows)), np.full(len(operations), NONE)
    np.minimum.at(first, operations.of_row, kernel)
    np.maximum.at(last, operations.of_row, kernel)
    in_time = np.argsort(first, kind="stable")
    first, last = first[in_time], last[in_time]
    collectives = collectives.take(operations.first[in_time])
    texts = [operation_of(name) for name in collectives.names]
    plain = np.array([name == "AlltoAll" for name in texts], bool)
    known = (*dict.fromkeys((*filter(None, texts), "AlltoAllv", *filter(None, names))),)
    number = {name: place for place, name in enumerate(known)}
    of_text = np.array([number.get(name, NONE) for name in texts], np.int64)
    of_kernel = np.array([number.get(name, NONE) for name in names], np.int64)
    name = of_text[collectives.name]
    name = np.where(plain[collectives.name] & (collectives.uneven > 0), number["AlltoAllv"], name)
    counted = _counted(collectives, name, known)
    size = np.array([*(SIZES.get(text, NONE) for text in collectives.names), NONE], np.int64)[
        collectives.datatype
    ]
    of_bytes = np.where((counted >= 0) & (size > 0), counted * size, NONE)
    name = np.where(name == NONE, of_kernel[kernel_names[first]], name)
    datatypes = len(known)
    return KernelOperations(
        first=first,
        last=last,
        name=np.where(name == NONE, datatypes + collectives.name, name),
        communicator=collectives.group,
        bytes=of_bytes,
        peer=collectives.peer,
        root=collectives.root,
        rank=collectives.rank,
        sequence=collectives.sequence,
        count=counted,
        datatype=np.where(collectives.datatype == NONE, NONE, datatypes + collectives.datatype),
        names=(*known, *collectives.names),
        communicators=collectives.groups,
    )


def _counted(collectives: Collectives, name: Ints, known: tuple[str, ...]) -> Ints:
    """Return the elements of each operation, as NCCL counts them; -1 unknown.

    NCCL counts one rank's part: a share of what goes to all of them.
    """
    taken = np.array([*(text in _TAKING for text in known), False], bool)[name]
    shared = np.array([*(text == "AlltoAll" for text in known), False], bool)[name]
    counted = np.where(taken, collectives.elements_out, collectives.elements_in)
    ranks = np.array([*(group.size for group in collectives.groups), 0], np.int64)[
        collectives.group
    ]
    share = np.where((ranks > 0) & (counted >= 0), counted // np.maximum(ranks, 1), NONE)
    return np.where(name == NONE, NONE, np.where(shared, share, counted))


def sizes_of(collectives: Collectives) -> tuple[tuple[Group, int], ...]:
    """Return the number of ranks of each group, where it is known."""
    return tuple((group, group.size) for group in collectives.groups if group.size)
