"""XLA's profiler: the protobuf file it writes, and its planes as tables."""
