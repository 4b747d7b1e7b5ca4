"""Measure bubbleviz: profiles of a given size, a bare scan as yardstick, peers, and a table."""
