"""Recordings: files that ``bubbleviz.annotate`` writes in a training process.

``part_reader`` reads one file, whole or as it grows, and ``followed_folder`` those of a folder;
``sessions`` knows which files are parts of one recording, and which recordings are of one run;
``operations`` makes a table of operations of one, and ``file`` is an open one.
:mod:`bubbleviz.recording_layout` defines the bytes.
"""
