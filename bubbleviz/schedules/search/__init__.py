"""Search for schedules at given times, within a memory limit."""
