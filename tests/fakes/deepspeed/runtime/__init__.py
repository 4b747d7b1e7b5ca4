"""A fake package with the signatures that bubbleviz.annotate wraps."""
