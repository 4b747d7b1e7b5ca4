"""Web: the interactive report, one page that needs no network."""
