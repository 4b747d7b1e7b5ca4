"""PyTorch's profiler (Kineto): its events as tables."""
