"""What a person can do from the console: each act asks first in words and numbers, is done, and is written down.

    act.py      an act, its fields, its registry
    topics.py   publish, retention, moving consumers, trimming
    policy.py   a policy's fields, as a form has them
    queues.py   push, policies, making and dropping, groups, schedules
    messages.py sending back, editing, deleting, releasing, settling
    redriving.py sending back so many a second, in the background
    audit.py    the topic that records who did what
    route.py    POST /acts/{act}

A form sends its fields with `preview`; the answer is the question to ask, with a number in it where the act destroys or
repeats something, or nothing when the act may be done at once. Sent again without `preview` it is done; the answer says
what was done, and so does an event in `penstock.audit`.
"""

from penstock.server.acts.route import act_routes

__all__ = ["act_routes"]
