"""Assigns the layers of a measured model to stages so that an iteration is shortest."""
