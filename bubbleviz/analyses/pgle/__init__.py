"""XLA instruction costs for XLA's profile-guided latency estimation (PGLE)."""

from bubbleviz.analyses.pgle.analysis import measure_costs

__all__ = ["measure_costs"]
