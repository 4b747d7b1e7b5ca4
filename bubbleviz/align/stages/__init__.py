"""Infers the virtual stage, the pipeline and the replicas of each rank."""
