"""Plan: the best order for a measured run, beside the order that ran."""
