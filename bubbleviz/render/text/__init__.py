"""Text: tables for a terminal."""
