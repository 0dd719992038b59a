"""Writing to a buffer: entries become batches, batches become objects, objects enter the manifest in order."""
