"""Compare reports: what changed between two runs, and whether advice kept its promise.

``pair`` decides whether two reports describe the same job, and which ratio is used to compare them.
The other modules compare the ratios of a pair (``comparison``), its times (``differences``,
``spent_time``), and the results of the earlier advice (``followed``, ``remedies``).
"""
