"""What an operator tells a queue: stop, go on, run this now."""
