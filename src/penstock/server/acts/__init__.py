"""What a person can do from the console: each act asks first in words and numbers, is done, and is written down.

    table.py    every act: the operation it stands for, its question, what it does
    act.py      an act, and a request to do one
    forms.py    what a person typed, as the fields of a request
    policy.py   a queue's policy as a form
    route.py    POST /acts/{act}, and the topic that records who did what

A form sends its fields with `preview`; the answer is the question to ask, with a number in it where the act destroys or
repeats something, or nothing when the act may be done at once. Sent again without `preview` it is done; the answer says
what was done, and so does an event in `penstock.audit`.
"""

from penstock.server.acts.route import act_routes

__all__ = ["act_routes"]
