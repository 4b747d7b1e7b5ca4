"""Converts PyTorch's collectives to NCCL operations: names, bytes and communicators."""

from __future__ import annotations

import numpy as np

from bubbleviz.analyses.nccl.communications import SIZES, Communications
from bubbleviz.analyses.nccl.kernels import Kernels, list_operations, parse_kernel_name
from bubbleviz.conventions import kinds as naming
from bubbleviz.model.collectives import Collectives
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import group_rows

#: Operations for which NCCL counts the elements in a rank's output rather than in its input.
_OUTPUT_COUNTED = frozenset(("ReduceScatter", "Scatter", "Recv"))


def collect_pytorch_operations(
    collectives: Collectives, kernels: Kernels, rows: Ints
) -> Communications:
    """Convert the collectives that PyTorch recorded to NCCL operations.

    Bytes and element counts are converted to NCCL's definitions. An AlltoAll with parts of
    different sizes is renamed to AlltoAllv.

    Args:
        collectives: Recorded collectives, one row per kernel.
        kernels: Communication kernels in the profile.
        rows: For each of ``kernels``, its row in the profile's activities.

    Returns:
        One row per operation, sorted by first kernel, followed by one row for each kernel that does
        not belong to a collective.
    """
    order = np.argsort(rows)
    is_listed = np.isin(collectives.kernel, rows)
    collectives = collectives.take(np.flatnonzero(is_listed))
    kernel = order[np.searchsorted(rows[order], collectives.kernel)]
    operation_row, first, last = _merge_by_operation(collectives.operation, kernel, len(rows))
    collectives = collectives.take(operation_row)
    name, names = _name_operations(collectives, kernels, first)
    n_names = len(names)
    count = _count_elements(collectives, name, names)
    # The operation names are followed by datatype names and by names of unknown operations.
    columns = {
        "name": np.where(name == NONE, n_names + collectives.name, name),
        "communicator": collectives.group,
        "bytes": _count_bytes(collectives, count),
        "peer": collectives.peer,
        "root": collectives.root,
        "rank": collectives.rank,
        "sequence": collectives.sequence,
        "count": count,
        "datatype": np.where(collectives.datatype == NONE, NONE, n_names + collectives.datatype),
    }
    return list_operations(
        kernels, first, last, columns, [*names, *collectives.names], collectives.groups
    )


def _merge_by_operation(operation: Ints, kernel: Ints, n_kernels: int) -> tuple[Ints, Ints, Ints]:
    """Merge the rows of each operation, one per kernel, into one row.

    Args:
        operation: Operation of each row.
        kernel: Kernel of each row.
        n_kernels: Number of kernels.

    Returns:
        row: First row of each operation, sorted by the first kernel of the operation.
        first: First kernel of each operation.
        last: Last kernel of each operation.
    """
    operations = group_rows(operation)
    first, last = np.full(len(operations), n_kernels), np.full(len(operations), NONE)
    np.minimum.at(first, operations.of_row, kernel)
    np.maximum.at(last, operations.of_row, kernel)
    in_time = np.argsort(first, kind="stable")
    return operations.first[in_time], first[in_time], last[in_time]


def _count_bytes(collectives: Collectives, count: Ints) -> Ints:
    """Return each operation's size in bytes, or -1 if the count or element size is unknown.

    Args:
        collectives: Collectives that PyTorch recorded, one row per operation.
        count: Number of elements of each operation, or -1 if unknown.
    """
    sizes = np.array([*(SIZES.get(text, NONE) for text in collectives.names), NONE], np.int64)
    element_size = sizes[collectives.datatype]
    has_size = (count >= 0) & (element_size > 0)
    return np.where(has_size, count * element_size, NONE)


def _count_elements(collectives: Collectives, name: Ints, names: tuple[str, ...]) -> Ints:
    """Return the number of elements of each operation as NCCL counts them, or -1 if unknown.

    - Operations in ``_OUTPUT_COUNTED``: the elements in a rank's output.
    - AlltoAll: PyTorch counts the parts for all ranks, whereas NCCL counts only one part. The input
      elements are therefore divided by the number of ranks, rounded down.
    - Other operations: the elements in a rank's input.

    Args:
        collectives: Collectives that PyTorch recorded, one row per operation.
        name: For each operation, the index of its name in ``names``, or -1 if unknown.
        names: Operation names.
    """
    counts_output = np.array([*(text in _OUTPUT_COUNTED for text in names), False], bool)[name]
    is_all_to_all = np.array([*(text == "AlltoAll" for text in names), False], bool)[name]
    count = np.where(counts_output, collectives.elements_out, collectives.elements_in)
    sizes = np.array([*(group.size for group in collectives.groups), 0], np.int64)
    n_ranks = sizes[collectives.group]
    is_known = (n_ranks > 0) & (count >= 0)
    part = np.where(is_known, count // np.maximum(n_ranks, 1), NONE)
    return np.where(name == NONE, NONE, np.where(is_all_to_all, part, count))


def _name_operations(
    collectives: Collectives, kernels: Kernels, kernel: Ints
) -> tuple[Ints, tuple[str, ...]]:
    """Name each operation after its collective, or its kernel if the collective is unknown.

    An AlltoAll whose parts differ in size is called AlltoAllv.

    Args:
        collectives: Collectives that PyTorch recorded, one row per operation.
        kernels: Communication kernels.
        kernel: First kernel of each operation.

    Returns:
        name: For each operation, the index of its name in ``names``, or -1 if unknown.
        names: Distinct names of operations.
    """
    kernel_names = [parse_kernel_name(name)[0] for name in kernels.names]
    collective_names = [naming.get_nccl_operation(name) for name in collectives.names]
    names = tuple(
        dict.fromkeys((*filter(None, collective_names), "AlltoAllv", *filter(None, kernel_names)))
    )
    index = {name: number for number, name in enumerate(names)}
    name_of_collective, name_of_kernel = (
        np.array([index.get(name, NONE) for name in texts], np.int64)
        for texts in (collective_names, kernel_names)
    )
    name = name_of_collective[collectives.name]
    is_all_to_all = np.array([name == "AlltoAll" for name in collective_names], bool)
    is_uneven = is_all_to_all[collectives.name] & (collectives.is_uneven > 0)
    name = np.where(is_uneven, index["AlltoAllv"], name)
    return np.where(name == NONE, name_of_kernel[kernels.name[kernel]], name), names
