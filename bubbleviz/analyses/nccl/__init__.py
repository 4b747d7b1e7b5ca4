"""Measures NCCL communication operations: data and time of each rank, and who waited for whom."""

from bubbleviz.analyses.nccl.analysis import measure_communication

__all__ = ["measure_communication"]
