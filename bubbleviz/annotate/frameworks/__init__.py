"""Frameworks that can be annotated: one module each, found by its name.

A module defines ``annotate()``, which returns the :class:`~bubbleviz.annotate.Annotations` of the
framework and raises :class:`~bubbleviz.errors.AnnotationError` where it is not as expected. It
imports the framework when that is called, never before.
"""
