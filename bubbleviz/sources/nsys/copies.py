"""Copies of an nsys export: their sizes, directions and kinds of memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bubbleviz.model.columns import NONE, Codes, Ints
from bubbleviz.model.copies import Copies, Direction, Memory
from bubbleviz.model.grouping import invert_permutation, sort_columns_by_group
from bubbleviz.model.profile import Activities
from bubbleviz.sources.activities import has_times
from bubbleviz.sources.nsys.export import Export

#: Kinds of copies with which the driver migrates pages (CUDA_MEMCPY_KIND_UVM_HTOD, _DTOH, _DTOD).
KINDS_OF_MIGRATION = (11, 12, 13)
#: Directions by their ids in ENUM_CUDA_MEMCPY_OPER.
_DIRECTIONS = {
    **dict.fromkeys((1, 3, 11), Direction.HOST_TO_DEVICE),
    **dict.fromkeys((2, 4, 12), Direction.DEVICE_TO_HOST),
    **dict.fromkeys((5, 6, 7, 8, 13), Direction.DEVICE_TO_DEVICE),
    9: Direction.HOST_TO_HOST,
    10: Direction.PEER_TO_PEER,
}
#: Kinds of memory by their ids in ENUM_CUDA_MEM_KIND.
_MEMORY = {
    0: Memory.PAGEABLE,
    1: Memory.PINNED,
    2: Memory.DEVICE,
    3: Memory.ARRAY,
    4: Memory.MANAGED,
    5: Memory.DEVICE,
    6: Memory.MANAGED,
}
#: Largest id of either table.
_MAX_ID = 15


def read_copies(export: Export, activities: Activities, group: Codes | None) -> Copies:
    """Read the sizes, directions and kinds of memory of the copies of an export, without memsets.

    Details that the export lacks are unknown. Migrated pages are managed memory, unless the export
    gives another kind.

    Args:
        export: The open export.
        activities: Activities of the export.
        group: Group that each activity was sorted by, in the order of the export, or None if the
            activities still have that order.

    Raises:
        ProfileError: The export is damaged.
    """
    start_ns, end_ns, *_ = export.query_columns("gpu_work/copies")
    n_copies = int(has_times(start_ns, end_ns).sum())
    # Copies come after all kernels, and before all memsets.
    copies = Copies.unknown(activities.kernels + np.arange(n_copies))
    if export.has("gpu_work/copy_memory"):
        start_ns, end_ns, source, target = export.query_columns("gpu_work/copy_memory")
        timed = has_times(start_ns, end_ns)
        source, target = (_translate_ids(ids[timed], _MEMORY) for ids in (source, target))
        copies = copies.replace_columns(source=source, target=target)
    if export.has("gpu_work/copy_sizes"):
        start_ns, end_ns, size, kind = export.query_columns("gpu_work/copy_sizes")
        timed = has_times(start_ns, end_ns)
        size, kind = size[timed], kind[timed]
        # Only pages of managed memory are migrated, even if the kind of memory is unknown.
        is_managed = np.isin(kind, KINDS_OF_MIGRATION)
        source, target = (
            np.where(is_managed & (memory == Memory.UNKNOWN), Memory.MANAGED, memory)
            for memory in (copies.source, copies.target)
        )
        copies = copies.replace_columns(
            size=np.maximum(size, NONE),
            direction=_translate_ids(kind, _DIRECTIONS),
            source=source,
            target=target,
        )
    if group is None:
        return copies
    (order,) = sort_columns_by_group(group, (np.arange(len(activities), dtype=np.int32),))
    return copies.reorder(invert_permutation(order))


def _translate_ids(ids: Ints, codes: Mapping[int, int]) -> Ints:
    """Return the code of each id, or 0 for ids without a code."""
    by_id = np.array([codes.get(number, 0) for number in range(_MAX_ID + 1)], np.int64)
    return np.where((ids >= 0) & (ids <= _MAX_ID), by_id[np.clip(ids, 0, _MAX_ID)], 0)
