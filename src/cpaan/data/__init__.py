"""Features with labels: the set itself, readers and writers, low-shot splits, toy and bundled sets."""
