"""Reader for profiles of AMD GPUs: SQLite files of ``rocprofv3`` (rocpd) and rocmProfileData."""
