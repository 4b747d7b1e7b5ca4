"""Gaps: how long devices of any profile were idle, and what their hosts did meanwhile."""
