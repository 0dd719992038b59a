"""Commands for who operates a journal: watching, serving, this machine."""
