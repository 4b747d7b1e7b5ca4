"""Measure the cost of stragglers over all iterations with published what-if definitions.

The definitions are from Lin et al., "Understanding Stragglers in Large Model Training Using What-if
Analysis" (arXiv 2505.05713). Their analyzer (``analyzer/wia.py``) replays a job twice, with its own
times and with ideal times, in which all operations of a type take equally long.
"""
