"""PyTorch's profiler (Kineto): its events as columns, and these as the tables of a profile."""
