"""Reader for the databases that Ascend's profilers write."""
