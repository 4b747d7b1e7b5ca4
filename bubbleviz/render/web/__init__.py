"""Renders the interactive report: a single HTML page that does not need a network."""
