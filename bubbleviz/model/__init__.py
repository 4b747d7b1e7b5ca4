"""The data model: tables and small values that the stages exchange, and operations on columns.

Bulk data is stored in read-only columns, with times in integer nanoseconds. This package may import
only modules at the root of bubbleviz.
"""
