"""Supported frameworks: one module per framework, found by its name.

A module defines ``annotate()``, which returns the :class:`~bubbleviz.annotate.Annotations` of the
framework and raises :class:`~bubbleviz.errors.AnnotationError` if the framework differs from the
expected version. The framework is only imported when ``annotate()`` is called.
"""
