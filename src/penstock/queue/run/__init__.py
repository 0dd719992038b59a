"""What runs beside a queue: workers, takes that wait, periodic messages, upkeep."""
