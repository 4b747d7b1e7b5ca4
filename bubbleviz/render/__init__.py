"""Rendering of a report as text, pictures, pages, traces and tables.

Renderers return text or bytes and open no files. They import ``report`` and ``model``, but not
sources, conventions, linking or alignment.
"""
