"""The demonstration behind `cpaan demo`."""
