"""``bubbleviz schedules``: the schedules that are built in."""

from __future__ import annotations

from bubbleviz.cli.terminal import show


def schedules() -> None:
    """List the schedules that simulate knows, with their sources."""
    from bubbleviz.render.ideal import list_schedules

    show(list_schedules())
