"""Reading: get and scan over one state (`view`), and the side of a journal that another process writes (`follower`)."""
