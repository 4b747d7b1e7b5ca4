"""The site: pages, gallery of planted runs, reference of commands and of Python."""
