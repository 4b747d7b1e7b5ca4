"""Event files of NCCL's own profilers, and dumps of PyTorch's flight recorder, as tables."""
