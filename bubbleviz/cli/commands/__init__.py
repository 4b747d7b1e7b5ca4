"""Commands that stand in modules of their own; :mod:`bubbleviz.cli.app` registers them."""
