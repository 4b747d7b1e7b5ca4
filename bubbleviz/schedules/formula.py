"""A formula: what a schedule takes by a closed form that a paper gives, without an order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """What a formula is about; times of a whole stage, in one unit.

    Attributes:
        stages: p.
        microbatches: m.
        chunks: v.
        work: T, F and both parts of the backward of one microbatch.
        transfer: c, the latency of every edge between two devices.
    """

    stages: int
    microbatches: int
    chunks: int
    work: float
    transfer: float


@dataclass(frozen=True)
class Formula:
    """A closed form of the cost, the longest of the devices' own windows.

    Attributes:
        name: what users call it.
        summary: one sentence for people.
        source: paper and section that define it.
        chunks: model chunks a device where the caller has no wish.
        cost: the cost, in the unit of the times. It raises
            :class:`bubbleviz.errors.UsageError` for sizes that the formula does not allow.
        text: the same, as people write it.
        drawn: name of a schedule near it that has an order.
    """

    name: str
    summary: str
    source: str
    chunks: int
    cost: Callable[[Sizes], float]
    text: str
    drawn: str
