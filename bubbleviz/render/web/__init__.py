"""Renders the interactive report: a single HTML page that needs no network."""
