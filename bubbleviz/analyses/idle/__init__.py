"""Measures device idle time in any profile, and what the hosts did during that time."""

from bubbleviz.analyses.idle.analysis import idle

__all__ = ["idle"]
