"""Analyses of profiles other than the measurement of bubbles, from reading to output."""
