"""Render: the report written down, as text, pictures, pages, traces and tables.

It hands on text and bytes, and opens no file. It may import report and the types that reports are
made of; it knows no source, convention, link or clock.
"""
