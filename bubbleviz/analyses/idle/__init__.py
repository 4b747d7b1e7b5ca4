"""Idle: how long devices of any profile were idle, and what their hosts did meanwhile."""

from bubbleviz.analyses.idle.analysis import idle

__all__ = ["idle"]
