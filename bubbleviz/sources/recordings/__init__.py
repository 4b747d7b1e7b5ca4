"""Recordings: files that ``bubbleviz.annotate`` writes in a training process.

``parts`` reads a file, whole or as it grows; ``sessions`` knows which files are parts of one
recording, and which recordings are of one run; ``operations`` makes a table of operations of one.
:mod:`bubbleviz.recording_layout` defines the bytes.
"""
