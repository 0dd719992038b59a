"""Reading a buffer: one fenced consumer, batches fetched in parallel, acknowledged in order; garbage collection."""
