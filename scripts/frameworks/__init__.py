"""What `bubbleviz.annotate` names, held against frameworks that run."""
