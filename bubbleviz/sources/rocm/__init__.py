"""Readers for AMD GPU profiles: SQLite files from ``rocprofv3`` (rocpd) and rocmProfileData."""
