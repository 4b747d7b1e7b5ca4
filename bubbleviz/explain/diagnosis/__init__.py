"""Diagnosis: which slowness makes iterations long, by its shape and by what a replay saves.

``effects.py`` splits the times of operations into what ranks, stages, microbatches and iterations
share. Each function in the ``SHAPES`` of ``faults.py`` finds faults of one shape in them, and
``findings.py`` replays the iterations without each fault: the fault that saves most is named first.
"""
