"""Count the instructions of each stage of an analysis, and compare them with a budget."""
