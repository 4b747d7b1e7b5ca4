"""Reads traces of PyTorch's profiler (Kineto) as columns, and builds profiles from them."""
