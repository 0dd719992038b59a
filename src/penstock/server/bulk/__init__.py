"""Events by the block: what Spark's tasks read and write."""
