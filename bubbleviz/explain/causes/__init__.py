"""Causes: why ranks were idle.

A cause is a line in ``cause.py``. Its rule is in ``idle_ranks.py``, which cuts the idle time of
ranks by cause, or in ``forward_waits.py`` for runs that only go forward. ``cause_times.py`` adds up
the causes in each window, and ``bubbles.py`` lists them as a table.
"""
