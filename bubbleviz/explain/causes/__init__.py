"""Causes: why ranks were idle.

A cause is a line in ``cause.py`` and a rule in ``idle.py``, which cuts idle intervals by cause;
``cause_times.py`` adds up causes in each window, and lists them as bubbles.
"""
