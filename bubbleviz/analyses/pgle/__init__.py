"""PGLE: what each XLA instruction takes, for XLA's profile-guided latency estimator."""

from bubbleviz.analyses.pgle.analysis import measure_costs

__all__ = ["measure_costs"]
