"""Queues at the other end of a url: pushing, deliveries, workers."""
