"""`python -m tunelab.trackers`: the tracker process."""

import sys

from tunelab.trackers.run import main

if __name__ == "__main__":
    sys.exit(main())
