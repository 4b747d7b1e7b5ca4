"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# A busy machine is slow, which is no defect: no example has a deadline.
settings.register_profile("bubbleviz", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("bubbleviz")
