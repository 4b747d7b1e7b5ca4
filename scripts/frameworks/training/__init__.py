"""Training with each framework: one module per framework, named as in `bubbleviz.annotate`."""
