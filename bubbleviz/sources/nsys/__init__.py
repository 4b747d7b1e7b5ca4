"""Reads Nsight Systems exports, using the queries in ``sql/nsys``."""
