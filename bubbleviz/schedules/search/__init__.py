"""Search for schedules at given times, within a memory limit."""

from __future__ import annotations

from bubbleviz.schedules.search.climbing import search

__all__ = ["search"]
