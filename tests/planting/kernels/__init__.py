"""Profiles of many kernels: 1F1B of eight processes in one file, of any number of kernels."""
