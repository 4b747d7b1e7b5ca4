"""Reader for event files of NCCL's own profilers, and for dumps of PyTorch's flight recorder."""
