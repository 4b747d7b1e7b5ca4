"""Layouts: which layers of a measured model go on which stage."""
