"""Schedules: the orders that papers publish, searched and read from files, timed by simulation.

The package returns plans and the time that each plan takes at given times. It may import ``model``,
and does not depend on the measurements with which its results are compared.
"""
