"""The report, which contains all results of an analysis, saved reports, and their comparison.

Renderers receive a ``Report`` or a saved report, and a ``View`` of the part to show. This package
may import ``explain`` and the packages below it.
"""
