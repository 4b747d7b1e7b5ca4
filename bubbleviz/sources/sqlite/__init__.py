"""SQLite files of profilers: opened read-only, probed, and read by the queries of ``sql/``."""
