"""Recordings: files that ``bubbleviz.annotate`` writes in a training process.

``lines`` decodes and checks single lines; ``parts`` reads a file, whole or as it grows;
``operations`` knows which files are parts of one recording and which recordings are of one run, and
makes a table of the operations of a recording.
"""
