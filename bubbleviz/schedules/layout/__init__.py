"""Layouts: ways to divide the layers of a model into virtual stages, and a search for the best."""
