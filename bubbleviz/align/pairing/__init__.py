"""Matches the iterations of all ranks."""
