"""Recognition: which schedule ran, by the order in which ranks ran their operations."""
