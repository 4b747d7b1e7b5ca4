"""NCCL: what each rank did in each communication operation, and who waited for whom."""

from bubbleviz.analyses.nccl.analysis import measure_communication

__all__ = ["measure_communication"]
