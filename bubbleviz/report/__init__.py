"""The report (all results of an analysis), saved reports, and comparisons of reports.

Renderers receive a ``Report`` or a saved report, and a ``View`` that selects the part to show. This
package may import ``explain`` and the packages below it.
"""
