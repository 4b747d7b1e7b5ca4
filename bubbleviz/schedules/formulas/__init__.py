"""Closed forms: what a schedule takes by a formula that a paper gives, without an order.

Each module exports one ``FORMULA``, and that is all it takes to add one.
"""

from __future__ import annotations

from collections.abc import Callable

from bubbleviz.model.values import frozen
from bubbleviz.registry import discover


@frozen
class Formula:
    """A closed form of the cost, the longest of the devices' own windows.

    Attributes:
        name: what users call it.
        summary: one sentence for people.
        source: paper and section that define it.
        chunks: default number of model chunks per device.
        cost: the cost by stages p, microbatches m, chunks v, and the times of a whole stage in one
            unit: T, F and both parts of the backward of one microbatch, and c, the latency of every
            edge between two devices. It raises :class:`bubbleviz.errors.UsageError` for sizes that
            the formula does not allow.
        text: the same, as people write it.
        drawn: name of a similar schedule that has an order.
    """

    name: str
    summary: str
    source: str
    chunks: int
    cost: Callable[[int, int, int, float, float], float]
    text: str
    drawn: str


def formulas() -> tuple[Formula, ...]:
    """Return every formula, in order of the module names."""
    return discover(__name__, "FORMULA", Formula)


def formula_named(name: str) -> Formula | None:
    """Return the formula of that name, or None."""
    return next((formula for formula in formulas() if formula.name == name), None)
