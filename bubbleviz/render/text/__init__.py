"""Text: the tables of the terminal, one module per section."""
