"""State folded from events: declared as a class, folded, saved, rebuilt, watched."""
