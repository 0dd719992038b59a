"""Looking into a queue without taking: one snapshot, nothing changed."""
