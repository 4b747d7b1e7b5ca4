"""Follows a running job: measures its bubble while its ranks record iterations."""
