"""PyTorch: what a module moves, recorded operator by operator with no GPU. Users import `iosim.torch`."""
