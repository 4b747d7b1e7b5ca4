"""Count the instructions of each stage of an analysis, and hold them against a budget."""
