"""Events by the block: appended at once (`appending`), or staged in steps and then published together (`staging`)."""
