"""PGLE: what each XLA instruction takes, for XLA's profile-guided latency estimator."""
