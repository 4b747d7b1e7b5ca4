"""Slowdown: what stragglers cost over all iterations, by the published what-if definitions.

Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis"
(arXiv 2505.05713), whose analyzer (``analyzer/wia.py``) compares a replay of a job with that of an
ideal one, in which all operations of a type take equally long.
"""
