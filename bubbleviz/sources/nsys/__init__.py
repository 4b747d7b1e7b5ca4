"""Nsight Systems: the tables of its SQLite exports, by the queries of ``sql/nsys``."""
