"""Readers for event files from NCCL's own profilers, and for PyTorch's flight recorder dumps."""
