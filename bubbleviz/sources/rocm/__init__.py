"""AMD's ROCm: the SQLite files of ``rocprofv3`` (rocpd) and of rocmProfileData (``.rpd``)."""
