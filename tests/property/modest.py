"""Settings for all property tests: no deadline (machines are busy), and examples by the dozen."""

from hypothesis import HealthCheck, settings

modest = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
many = settings(deadline=None, max_examples=250, suppress_health_check=[HealthCheck.too_slow])
