"""Whole journals to files and back: positions, ids, times, causes and links are kept."""
