"""Measures NCCL communication: each rank's data and time, and who waited for whom."""

from bubbleviz.analyses.nccl.analysis import measure_communication

__all__ = ["measure_communication"]
