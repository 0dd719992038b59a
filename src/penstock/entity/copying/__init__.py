"""Whole journals to files and back: positions, ids, times and causes are kept."""
