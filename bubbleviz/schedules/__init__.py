"""Schedules: the orders that papers publish, searched and read from files, timed by simulation.

It hands on plans and what each would take at given times. It may import the model, and owes
nothing to the measurement that it is compared with.
"""
