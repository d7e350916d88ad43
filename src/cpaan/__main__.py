"""Runs the command line as `python -m cpaan`."""

from cpaan.cli.app import main

main()
