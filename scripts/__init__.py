"""The repository's tools; a package so that tests can import what they share."""
