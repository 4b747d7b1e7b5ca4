"""Stages: infer the virtual stages and the pipeline of each rank, and the replicas of stages."""
