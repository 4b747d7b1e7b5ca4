"""Fakes of the optimizer classes that Megatron-Core exports."""

from __future__ import annotations

from megatron.core.optimizer.optimizer import ChainedOptimizer, MixedPrecisionOptimizer


class DistributedOptimizer(MixedPrecisionOptimizer):
    pass


__all__ = ["ChainedOptimizer", "DistributedOptimizer", "MixedPrecisionOptimizer"]
