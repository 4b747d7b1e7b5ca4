"""The compiled part, which ctypes loads if it was built. Without it numpy or SQLite do the same.

:mod:`bubbleviz.native.functions` has a function for each compiled one. This package does not import
any other part of bubbleviz.
"""
