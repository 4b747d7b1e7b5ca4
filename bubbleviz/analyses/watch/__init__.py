"""Follows a running job, measuring its bubble while its ranks record iterations."""
