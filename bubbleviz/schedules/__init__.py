"""Pipeline schedules: orders of operations from papers, searches and files, timed by simulation.

The package returns plans, and the time that each plan takes with given operation times. It may
import ``model``. It does not depend on the measurements with which its results are compared.
"""
