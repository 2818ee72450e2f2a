"""`python -m fleet`: the command where the `fleet` program is not on the path."""

from fleet.cli import main

if __name__ == "__main__":
    main()
