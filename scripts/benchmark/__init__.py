"""Benchmarks: ``analyze`` compared with a bare scan of the same file, and runs with many ranks."""
