"""Fakes of Megatron-Core's optimizer classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence


class MegatronOptimizer(ABC):
    @abstractmethod
    def step(self) -> bool: ...


class MixedPrecisionOptimizer(MegatronOptimizer):
    def step(self) -> bool:
        return True


class ChainedOptimizer(MegatronOptimizer):
    def __init__(self, chained: Sequence[MegatronOptimizer]) -> None:
        self.chained = chained

    def step(self) -> bool:
        return all(one.step() for one in self.chained)
