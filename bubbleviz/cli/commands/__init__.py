"""The commands, each in the module of its name; :mod:`bubbleviz.cli.app` registers them."""
