"""``bubbleviz schedules``: the built-in schedules."""

from __future__ import annotations

from bubbleviz.cli.terminal import show


def schedules() -> None:
    """List the schedules that simulate supports, with references."""
    from bubbleviz.render.ideal import list_schedules

    show(list_schedules())
