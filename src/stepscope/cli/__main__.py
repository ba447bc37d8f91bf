"""`python -m stepscope.cli` is `stepscope`."""

import sys

from stepscope.cli import main

if __name__ == "__main__":
    sys.exit(main())
