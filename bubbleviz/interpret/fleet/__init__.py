"""The fleet: profiles interpreted one after another, by many processes, or by a Dask cluster."""
