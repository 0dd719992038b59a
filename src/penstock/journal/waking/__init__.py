"""Waking readers that wait: in this process (`signal`), and in others when the store's files change (`file_watch`)."""
