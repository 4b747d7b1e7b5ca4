"""The commands. Each is in a module of the same name, and :mod:`bubbleviz.cli.app` adds them."""
