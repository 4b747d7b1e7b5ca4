"""A fake package that has the signatures wrapped by bubbleviz.annotate."""
