"""NCCL's own profilers: the event files that they write."""
