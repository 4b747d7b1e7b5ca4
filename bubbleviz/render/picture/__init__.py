"""Picture: operations to scale on rows, with the bubbles between them, as SVG."""
