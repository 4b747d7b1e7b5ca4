"""PyTorch's profiler (Kineto): its events as columns, and the profile built from them."""
