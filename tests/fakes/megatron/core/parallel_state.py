"""The pipeline rank of this process, which tests set."""

from __future__ import annotations

rank, ranks = 0, 1
initialized = True
virtual_rank: int | None = None


def model_parallel_is_initialized() -> bool:
    return initialized


def get_pipeline_model_parallel_rank() -> int:
    return rank


def get_pipeline_model_parallel_world_size() -> int:
    return ranks


def get_virtual_pipeline_model_parallel_rank() -> int | None:
    return virtual_rank
