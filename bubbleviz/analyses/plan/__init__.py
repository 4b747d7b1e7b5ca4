"""The best order for a measured run, compared with the order that ran."""
