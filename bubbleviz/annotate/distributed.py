"""Distributed: the numbers of this process in the run, where torch.distributed knows them."""

from __future__ import annotations

import sys


def numbers_in_torch() -> tuple[int, int] | None:
    """Return the rank of this process and how many there are (-1 unknown); None without PyTorch."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    size = getattr(distributed, "get_world_size", None)
    return int(distributed.get_rank()), -1 if size is None else int(size())
