"""Recording: when ranges ran, written by the training process itself, without a profiler.

``recorder`` divides ranges into iterations, ``timing_events`` times them on a GPU, ``blocks`` packs
an iteration into bytes as ``bubbleviz.recording_layout`` defines them, and ``part_files`` appends
these to files. ``place`` knows the process's rank. Only the standard library is loaded.
"""
