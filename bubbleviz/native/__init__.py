"""The native library: C functions, loaded with ctypes if the library was built.

Without the library, numpy and SQLite do the same work. :mod:`bubbleviz.native.functions` contains a
Python function for each C function. This package does not import any other part of bubbleviz.
"""
