"""The commands, one per module of the same name, which :mod:`bubbleviz.cli.app` registers."""
