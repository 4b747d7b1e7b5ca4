"""Explain why ranks were idle, what limits an iteration, which schedule ran, and what would help.

The package returns an ``Explanation``, whose causes add up to the bubble. The package may import
``count``, ``schedules`` and the packages below them.
"""
