"""Assigns the layers of a measured model to stages so that iterations are as short as possible."""
