"""The version of iosim, in one place for its API and its command line."""

__version__ = "0.1.0"
