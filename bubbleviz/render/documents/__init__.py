"""Documents: a report in a notebook, two reports side by side, a schedule in theory."""
