"""Search for schedules with given times within a memory limit."""
