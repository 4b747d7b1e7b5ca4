"""The data model: the tables and small values that analysis stages exchange, and column operations.

Bulk data is stored in read-only columns, with times in integer nanoseconds. This package may import
only modules at the root of bubbleviz.
"""
