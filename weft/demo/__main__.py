"""`python -m weft.demo` is `weft demo`."""

import sys

from weft.cli import main

if __name__ == "__main__":
    sys.exit(main(["demo", *sys.argv[1:]]))
