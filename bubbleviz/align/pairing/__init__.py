"""Pairing: find which iterations of different ranks are the same iteration of the run."""
