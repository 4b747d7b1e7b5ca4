"""Overlays: what ``--causes``, ``--critical-path`` and ``--heat-map`` add to a picture."""
