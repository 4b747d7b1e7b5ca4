"""Explain: why ranks were idle, what bounds an iteration, which schedule ran, what would help.

It hands on an ``Explanation`` whose causes add up to the bubble. It may import count, schedules and
the packages below.
"""
