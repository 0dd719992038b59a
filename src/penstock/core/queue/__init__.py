"""Queues: leased deliveries over a topic of the same name.

A queue is a topic plus delivery state per group. Pushing writes only the event. A group's state is a *frontier*
(everything at or below it was handed out) plus the exceptions: leases in flight, and messages that are ready again,
wait for their time, are held behind another message of their ordering key, or have failed. A message at or below the
frontier and in none of these is settled: settling is forgetting.

    queue               what a `penstock.Queue` of this process stands on: pushes, takes that wait, settling
    policy              a queue's policy and its retries, as values
    registry            a journal's queues: handles, cached states, threads
    inspect             what a queue holds, without taking it
    dead_letters        the headers of a dead letter
    flow                rates and circuit breakers
    state/              rows, groups, and what the writer keeps of them in memory
    operations/         push, take, settle, groups, repair: each inside one commit
    results             outcomes for those who pushed with `reply=True`
    tasks               functions as messages
    worker, schedule    workers and their middleware; periodic messages
    metrics             the counters of queues
    upkeep              the removal of settled messages in the background

Rows (`t` is the topic's id; `g` is a group's id, which in rows `qg` follows the number of purges; everything is
big-endian):

    qr name         the queue: policy, topic, groups
    qt t c          what pushes have used so far: delays or priorities, retry budgets
    qt t d          where a queue of this name was dropped: a new one begins after that position; if over a log
    qt t x seq      a message pushed with a delay or a priority
    qt t a seq      a message's own retry budget
    qt t l name seq a dead letter that came from a queue; and without a name each of them, with that name as its value
    qc id           where the message is that answers for this id: a copy, or a call that follows; see `results`
    qj id           a join of calls, and with a number the result of one of them; see `operations.follow`
    qt t m task     how long the calls of a task took, by the hour; see `tasks.state`
    qt t s name     a periodic message
    qt t q due name the same by its next tick; and without a name the latest time at which one of them was changed
    qt t n g who    a consumer: when it was last seen, since when, on which machine
    qt t e g who    a consumer's newest failed attempt; of all that gave no name, under none
    qg t g g        the group: frontier, counters, next times
    qg t g l n      a lease: a run of positions or a list of messages, with a deadline; see `Leases.add_lease`
    qg t g i from n a stretch of neighbours in a lease with a list of messages: its end, and its index there
    qg t g r seq    a message that is ready, and not where a plain queue would have it; beside it one of
    qg t g y p seq    by priority, then position
    qg t g u lane seq in its lane, in a queue with fair share
    qg t g z n seq    the first of each lane, by the lane's turn; and those that were handed out before, by theirs
    qg t g s seq    a message that waits for its time; beside it
    qg t g w due seq  by that time
    qg t g k seq    a message that is held behind an unsettled one of its key; beside it
    qg t g h key seq  by that key
    qg t g f seq    a message that has failed
    qg t g t seq    a message's failed attempts, and the traceback of the last; see `FailureTrail`
    qg t g e seq name   what a step of a message's handler returned; see `operations.notes`
    qg t g o seq    how far a message's handler says it is
    qg t g p from   a run of held messages without rows of their own: its end and how many are left; see `state/lanes`
    qg t g b key    an ordering key that is busy
    qg t g v from   a range of positions above the frontier that are taken: handed out, or have a row, already

    qf t g q        the window of the queue's own rate; flow control goes on counting after a purge
    qf t g r key    the window of a key's rate
    qf t g k        the circuit breaker
    qf t g t lane   a lane's turn, and its first ready message
    qf t * o key    what a throttle let through last; `*`: of all groups, because pushes are for all of them
    qf t * u key    what a debounce holds back
    qf t * w text   the message that was pushed last under a text that is unique while it waits

Invariants: an unsettled position is above the frontier and not taken, or in exactly one lease, in exactly one row of
its own, or in exactly one run. No message of an ordering key is held while the key has room for one more message under
way. No untried message of a key is under way before an earlier held message; a raised `max_in_flight_per_key` counts
from the key's next settlement. Rows and the group's counters change in the same commit; `tests/queue_check.py` checks
that they agree. A power cut may lose a lease (its messages are then delivered again), but never an acknowledgement that
has returned.
"""
