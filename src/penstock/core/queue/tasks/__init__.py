"""Tasks: functions that a program calls at once, or pushes to a queue for a worker to call.

A call is a message: the task's name is its kind, its arguments are its payload.

    arguments   what a call is made with: checked against the function when it is pushed, and again when it is made
    plan        how calls are made: retries, time limits, what is kept
    task        a function that can be pushed, and its calls by the clock
    tasks       all tasks of a program, and how a worker makes a call
    chain       calls that follow each other, and calls whose results are joined
    running     a call while it runs: what its function may ask, and for how long it may
    processes   workers of a program's tasks, in this process or in several
    state       what became of a call, and how long the calls of a task take: as values
    looking     how a call is found by its id
"""
