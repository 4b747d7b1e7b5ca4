"""Stages: infer each rank's virtual stages and pipeline, and the replicas of stages."""
