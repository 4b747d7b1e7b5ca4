"""How each framework trains: one module each, named as `bubbleviz.annotate` names it."""
