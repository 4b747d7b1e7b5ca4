"""Draws pictures as SVG: rows of operations drawn to scale, with the bubbles between them."""
