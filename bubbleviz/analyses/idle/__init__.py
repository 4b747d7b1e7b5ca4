"""Idle time of the devices of any profile, and what their hosts did meanwhile."""

from bubbleviz.analyses.idle.analysis import idle

__all__ = ["idle"]
