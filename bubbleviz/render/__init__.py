"""Renders reports as text, pictures, web pages, traces and tables.

A renderer returns text or bytes, and does not open any files. Renderers may import the packages
``report`` and ``model``, but not those for sources, conventions, linking or alignment.
"""
