"""Final classifiers, one file each."""
