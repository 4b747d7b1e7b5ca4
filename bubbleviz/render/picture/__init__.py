"""Draws pictures as SVG: rows with operations to scale, and the bubbles between the operations."""
