"""Journals behind a server: read and written by tasks on any machine, over http."""
