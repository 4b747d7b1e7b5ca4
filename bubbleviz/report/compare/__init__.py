"""Compare: reports against each other, and against limits."""
