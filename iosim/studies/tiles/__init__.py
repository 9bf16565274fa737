"""Tile sizes for a GPU: which fit, and which are fastest."""
