"""`python -m iosim`: the command line."""

import sys

from iosim.commands.cli import main

sys.exit(main())
