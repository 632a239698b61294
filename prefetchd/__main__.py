"""Runs the command as `python -m prefetchd`."""

from prefetchd.cli.main import main

if __name__ == "__main__":
    main()
