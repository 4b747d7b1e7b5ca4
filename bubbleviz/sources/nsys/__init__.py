"""Reads exports of Nsight Systems, using the queries in ``sql/nsys``."""
