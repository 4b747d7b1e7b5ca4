"""The compiled library, which ctypes loads if it was built; otherwise numpy and SQLite do the work.

:mod:`bubbleviz.native.functions` has a function for each compiled one. This package does not import
any other part of bubbleviz.
"""
