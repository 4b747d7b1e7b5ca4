"""Reads copy sizes, directions and memory kinds from an nsys export."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bubbleviz.model.columns import NONE, Codes, Ints
from bubbleviz.model.copies import Copies, Direction, Memory
from bubbleviz.model.grouping import invert_permutation, sort_columns_by_group
from bubbleviz.model.profile import Activities
from bubbleviz.sources.activities import has_times
from bubbleviz.sources.nsys.export import Export

#: Copy kinds for page migrations by the driver: ``CUDA_MEMCPY_KIND_UVM_HTOD``, ``_DTOH``,
#: ``_DTOD``.
KINDS_OF_MIGRATION = (11, 12, 13)
#: Copy directions, keyed by id in ``ENUM_CUDA_MEMCPY_OPER``.
_DIRECTIONS = {
    **dict.fromkeys((1, 3, 11), Direction.HOST_TO_DEVICE),
    **dict.fromkeys((2, 4, 12), Direction.DEVICE_TO_HOST),
    **dict.fromkeys((5, 6, 7, 8, 13), Direction.DEVICE_TO_DEVICE),
    9: Direction.HOST_TO_HOST,
    10: Direction.PEER_TO_PEER,
}
#: Memory kinds, keyed by id in ``ENUM_CUDA_MEM_KIND``.
_MEMORY = {
    0: Memory.PAGEABLE,
    1: Memory.PINNED,
    2: Memory.DEVICE,
    3: Memory.ARRAY,
    4: Memory.MANAGED,
    5: Memory.DEVICE,
    6: Memory.MANAGED,
}
#: Upper bound on the ids in both tables.
_MAX_ID = 15


def read_copies(export: Export, activities: Activities, group: Codes | None) -> Copies:
    """Read the size, direction and memory kinds of each copy, excluding memsets.

    Values missing in the export are unknown. Page migrations are an exception: their memory kind is
    managed memory unless the export contains a different kind.

    Args:
        export: The open export.
        activities: Activities in the export.
        group: Sort key used for each activity, in the order of the export. None if the
            activities still have the order of the export.

    Raises:
        ProfileError: The export is damaged.
    """
    start_ns, end_ns, *_ = export.query_columns("gpu_work/copies")
    n_copies = int(has_times(start_ns, end_ns).sum())
    # The activities contain all kernels, followed by all copies and then all memsets.
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
        # Only managed memory is migrated, so the memory kind is known even if the export lacks it.
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
    """Translate ids to codes. Ids that are not in ``codes`` become 0 (unknown)."""
    by_id = np.array([codes.get(number, 0) for number in range(_MAX_ID + 1)], np.int64)
    return np.where((ids >= 0) & (ids <= _MAX_ID), by_id[np.clip(ids, 0, _MAX_ID)], 0)
