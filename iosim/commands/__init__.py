"""The commands of `iosim`, one module each: `add_parser(subparsers)` and `run(args)`. Heavy imports wait for `run`."""
