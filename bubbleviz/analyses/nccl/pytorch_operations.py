"""Collectives of PyTorch in the terms of NCCL: names, bytes, communicators."""

from __future__ import annotations

import numpy as np

from bubbleviz.analyses.nccl.communications import SIZES, Communications
from bubbleviz.analyses.nccl.kernels import Kernels, list_operations, parse_kernel_name
from bubbleviz.conventions import kinds as naming
from bubbleviz.model.collectives import Collectives
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import group_rows

#: Operations whose count is of what a rank takes, not of what it hands in.
_TAKING = frozenset(("ReduceScatter", "Scatter", "Recv"))


def operations_of_pytorch(collectives: Collectives, kernels: Kernels, rows: Ints) -> Communications:
    """Return the operations that kernels of NCCL carry out.

    Args:
        collectives: that kernels carry out.
        kernels: of NCCL.
        rows: activity of each.
    """
    names = [parse_kernel_name(name)[0] for name in kernels.names]
    order = np.argsort(rows)
    place = np.searchsorted(rows[order], collectives.kernel)
    of_nccl = np.flatnonzero(np.isin(collectives.kernel, rows))
    collectives, kernel = collectives.take(of_nccl), order[place[of_nccl]]
    operations = group_rows(collectives.operation)
    first, last = np.full(len(operations), len(rows)), np.full(len(operations), NONE)
    np.minimum.at(first, operations.of_row, kernel)
    np.maximum.at(last, operations.of_row, kernel)
    in_time = np.argsort(first, kind="stable")
    first, last = first[in_time], last[in_time]
    collectives = collectives.take(operations.first[in_time])
    texts = [naming.get_nccl_operation(name) for name in collectives.names]
    plain = np.array([name == "AlltoAll" for name in texts], bool)
    known = (*dict.fromkeys((*filter(None, texts), "AlltoAllv", *filter(None, names))),)
    number = {name: place for place, name in enumerate(known)}
    of_text = np.array([number.get(name, NONE) for name in texts], np.int64)
    of_kernel = np.array([number.get(name, NONE) for name in names], np.int64)
    name = of_text[collectives.name]
    name = np.where(
        plain[collectives.name] & (collectives.is_uneven > 0), number["AlltoAllv"], name
    )
    counted = _counted(collectives, name, known)
    size = np.array([*(SIZES.get(text, NONE) for text in collectives.names), NONE], np.int64)[
        collectives.datatype
    ]
    of_bytes = np.where((counted >= 0) & (size > 0), counted * size, NONE)
    name = np.where(name == NONE, of_kernel[kernels.name[first]], name)
    datatypes = len(known)
    columns = {
        "name": np.where(name == NONE, datatypes + collectives.name, name),
        "communicator": collectives.group,
        "bytes": of_bytes,
        "peer": collectives.peer,
        "root": collectives.root,
        "rank": collectives.rank,
        "sequence": collectives.sequence,
        "count": counted,
        "datatype": np.where(collectives.datatype == NONE, NONE, datatypes + collectives.datatype),
    }
    texts = [*known, *collectives.names]
    return list_operations(kernels, first, last, columns, texts, collectives.groups)


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
