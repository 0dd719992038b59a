"""Following a topic: history, then what comes; all of it, or what a reader chooses."""
