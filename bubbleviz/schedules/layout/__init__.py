"""Layouts: divisions of the layers of a model into virtual stages, and the fastest of them."""
