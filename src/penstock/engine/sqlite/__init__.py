"""The default engine: one SQLite database in write-ahead mode, through apsw."""
