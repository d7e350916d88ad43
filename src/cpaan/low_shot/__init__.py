"""One estimator for the whole job: base classes once, new classes whenever they come."""
