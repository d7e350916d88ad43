"""Estimates of class centres from a few shots."""
