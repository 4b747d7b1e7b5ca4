"""Finds the best order for a measured run, and compares it with the order that the run used."""
