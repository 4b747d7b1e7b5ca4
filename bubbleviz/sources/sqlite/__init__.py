"""Opens SQLite files of profilers read-only and runs the queries in ``sql/`` on them."""
