"""Layouts: which layers each virtual stage holds, and the ones with the shortest iteration."""
