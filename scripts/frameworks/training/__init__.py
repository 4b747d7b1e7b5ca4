"""How each framework trains: one module per framework, named as in `bubbleviz.annotate`."""
