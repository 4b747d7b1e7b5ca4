"""Bounds: where clocks can stand against each other, by what happened before what."""
