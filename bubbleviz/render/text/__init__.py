"""Renders a report as text for a terminal or a file. Each module renders some of the sections."""
