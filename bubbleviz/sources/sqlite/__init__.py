"""Opens SQLite files written by profilers read-only, and runs the queries in ``sql/`` on them."""
