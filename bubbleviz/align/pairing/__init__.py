"""Pairing: find which iterations on different ranks are the same iteration of the run."""
