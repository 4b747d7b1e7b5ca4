"""Compared: what changed between reports, and whether advice kept its promise.

``pair`` decides whether two reports are of the same job, and by which ratio they are compared. The
other modules describe a pair: its ratios (``comparison``), its times (``differences``,
``spent_time``), and the advice of the earlier report (``followed``, ``remedies``).
"""
