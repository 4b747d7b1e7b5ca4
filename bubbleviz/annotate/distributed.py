"""Look up this process's rank and world size in torch.distributed."""

from __future__ import annotations

import sys


def get_torch_rank_and_size() -> tuple[int, int] | None:
    """Return (rank, world size), or None if torch.distributed is not initialized.

    The world size is -1 if unknown.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    size = getattr(distributed, "get_world_size", None)
    return int(distributed.get_rank()), -1 if size is None else int(size())
