"""Recorded tables: their slowdowns, with meetings and order as the published analyzer has them."""

from __future__ import annotations

from bubbleviz.explain.slowdown.replay import Order, Work
from bubbleviz.explain.slowdown.scenarios import scenarios_of
from bubbleviz.explain.slowdown.slowdowns import Slowdowns, slowdowns_of
from tests.support.recorded_meetings import with_meetings
from tests.support.recorded_messages import point_to_point_of
from tests.support.recorded_order import recorded_order


def recorded(work: Work) -> tuple[Work, Order]:
    """Return recorded work with its meetings, and what each of its rows follows.

    Args:
        work: of all ranks; meetings that it has are dropped.
    """
    messages = point_to_point_of(work)
    return with_meetings(work, messages), recorded_order(work, messages)


def recorded_slowdowns(work: Work) -> Slowdowns | None:
    """Return the slowdowns of recorded work; None where none of it can be replayed.

    Args:
        work: of all ranks; meetings that it has are dropped.
    """
    work, order = recorded(work)
    scenarios = scenarios_of(work, order)
    return None if scenarios is None else slowdowns_of(scenarios, order)
