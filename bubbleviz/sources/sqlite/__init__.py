"""Opens profilers' SQLite files read-only, and runs the queries in ``sql/`` on them."""
