"""Profile analyses other than the bubble measurement, from reading files to writing output."""
