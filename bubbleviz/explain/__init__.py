"""Explain: why ranks were idle, what bounds an iteration, which schedule ran, what could be won.

It hands on an ``Explanation`` whose parts add up to the bubble. It may import count, schedules and
what these stand on.
"""
