"""Commands about buffers in object storage."""
