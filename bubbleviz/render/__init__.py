"""Renders reports as text, pictures, web pages, traces and tables.

A renderer returns text or bytes and opens no files. Renderers may import the packages ``report``
and ``model``, but not those for sources, conventions, linking or alignment.
"""
