"""Measure the cost of stragglers over all iterations, using published what-if definitions.

The definitions are from Lin et al., "Understanding Stragglers in Large Model Training Using What-if
Analysis" (arXiv 2505.05713). The analyzer of this paper (``analyzer/wia.py``) replays a job twice,
with measured times and with ideal times. All operations of a type have the same ideal time.
"""
