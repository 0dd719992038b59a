"""Functions as messages: `Tasks` makes a function pushable, and runs what was pushed.

task      one function: pushing its arguments, calling it with those of a message
registry  the tasks of a program, and their workers
"""
