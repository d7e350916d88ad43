"""Methods that make examples for novel classes, one file each."""
