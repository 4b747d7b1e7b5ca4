"""Finds out which layers of a measured model each stage should have."""
