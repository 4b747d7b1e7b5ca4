"""The supported frameworks. Each framework has a module named after it.

Every module defines a function ``annotate()``, which returns the
:class:`~bubbleviz.annotate.Annotations` of the framework. The function raises
:class:`~bubbleviz.errors.AnnotationError` if the framework differs from the expected version. The
framework is only imported when ``annotate()`` is called.
"""
