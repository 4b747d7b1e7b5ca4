"""NCCL's own profilers: the event files that they write, as tables of operations."""
