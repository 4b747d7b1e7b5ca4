"""Benchmarks: ``analyze`` against a bare scan of the same file, and runs of many ranks."""
