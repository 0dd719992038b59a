"""Projections folded at scale by the class that also runs in-process."""
