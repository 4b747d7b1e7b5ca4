"""Analyses other than pipeline bubbles, from profile to output."""
