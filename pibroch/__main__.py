"""`python -m pibroch` is the same as `pibroch`."""

from pibroch.cli import main

main()
