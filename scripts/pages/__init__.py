"""The site: its pages, the gallery of synthetic runs, and the command and Python reference."""
