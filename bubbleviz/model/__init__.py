"""Model: the tables and small values that the stages hand on, and the algebra of their columns.

It hands on types only, whose bulk data is read-only columns of integer nanoseconds. It may import
the modules at the root of the package that everything stands on, and nothing else.
"""
