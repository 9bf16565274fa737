"""Nsight Compute: its reports read by its own Python module, and a rule that sets predictions on its page."""
