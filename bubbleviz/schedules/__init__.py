"""Pipeline schedules: orders of operations from papers, searches and files, timed by simulation.

The package returns plans, and the time that each plan takes with given operation times. The package
may import ``model``, and does not depend on the measurements with which predictions are compared.
"""
