"""Drafts that become events together: outboxes, fences, gates, reactors."""
