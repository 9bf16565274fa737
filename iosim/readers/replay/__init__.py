"""HBM traffic of a chain from the order in which its CTAs run: launches played through a model of the L2, in C."""
