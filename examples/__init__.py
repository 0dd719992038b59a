"""The code a user would write, short; `make run` runs `examples.main_job`."""
