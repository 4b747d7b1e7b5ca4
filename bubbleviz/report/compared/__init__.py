"""Compare reports: what changed between two runs, and whether the advice saved what it promised.

``pair`` determines whether two reports describe the same job, and which ratio is used to compare
them. The other modules compare a pair's ratios (``comparison``) and times (``differences``,
``spent_time``), and check the results of the earlier advice (``followed``, ``remedies``).
"""
