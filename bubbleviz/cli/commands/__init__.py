"""Commands that stand in modules of their own; :mod:`bubbleviz.cli` registers them."""
