"""The compiled part: pages of SQLite tables decoded in C, loaded by ctypes where it was built.

It hands on columns and names, or None: then the caller takes the way that needs no compiler, which
gives the same. It imports nothing of bubbleviz but the ground.
"""
