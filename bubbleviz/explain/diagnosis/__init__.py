"""Diagnose which faults make iterations long, and how much time each fault costs.

``effects.py`` splits the times of operations into effects of ranks, stages, microbatches and
iterations. ``fits.py`` finds trends and jumps in series of values. Each function in ``SHAPES`` of
``faults.py`` finds faults of one kind in these effects. ``findings.py`` replays the iterations
without each fault, and sorts faults by the time they save.
"""
