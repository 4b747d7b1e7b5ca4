"""Closed forms: each module exports one ``FORMULA``, and that is all it takes to add one."""

from __future__ import annotations

from bubbleviz.registry import discover
from bubbleviz.schedules.formula import Formula


def formulas() -> tuple[Formula, ...]:
    """Return every formula, in order of the module names."""
    return discover(__name__, "FORMULA", Formula)


def formula_named(name: str) -> Formula | None:
    """Return the formula of that name, or None."""
    return next((one for one in formulas() if one.name == name), None)
