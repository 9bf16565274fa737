"""Seconds of a chain of launches from a profile's rates and the bytes that others counted."""
