"""Render: a report as text, pictures, pages, traces and tables.

Renderers return text and bytes, and open no file. They import the report and its types; sources,
conventions, linking and alignment are unknown to them.
"""
