"""`python -m lab`: runs jobs with faults on hosts in a box, and scores what is said about them."""

from __future__ import annotations

import sys

from lab.run import main

if __name__ == "__main__":
    sys.exit(main())
