"""Profiles with any number of kernels: 1F1B on eight processes in one file."""
