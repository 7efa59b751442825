"""``python -m fastload``: the command line, where the package is not installed."""

from fastload.cli import main

main()
