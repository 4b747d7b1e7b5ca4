"""The site: its pages, the gallery of planted runs, and the reference of commands and of Python."""
