"""The commands of `iosim`, each an `add_options(parser)` and a `run(args)`. Heavy imports wait for `run`."""
