"""`python -m tunelab` is `tunelab`."""

from tunelab.cli import main

if __name__ == "__main__":
    main()
