"""Watch: the bubble of a run that runs, iteration by iteration, as its ranks record them."""
