"""Text: the tables of the terminal, a section a module."""
