"""The paper's networks, and how they are trained."""
