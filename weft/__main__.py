"""`python -m weft` is the command `weft`."""

import sys

from weft.cli import main

if __name__ == "__main__":
    sys.exit(main())
