"""Measures the idle time of the devices in any profile, and what their hosts did meanwhile."""

from bubbleviz.analyses.idle.analysis import idle

__all__ = ["idle"]
