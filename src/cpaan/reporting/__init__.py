"""Tables and figures; the only place where plotting is imported."""
