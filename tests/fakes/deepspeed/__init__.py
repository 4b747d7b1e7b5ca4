"""A stand-in with the signatures that bubbleviz.annotate wraps."""
