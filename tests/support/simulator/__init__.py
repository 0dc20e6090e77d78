# SPDX-License-Identifier: Apache-2.0
"""A simulated training that knows why it took as long as it did: the judge of what the analyzer says.

Everything that takes time is a `Task` of a lane, begun at the moment at which the last of what it needs is
over (`tasks`). Which one that was is kept, so the true critical path is no analysis: it is the chain of these
causes, from the last task back to the first. `job` says what is trained and what is wrong with it, `training`
makes the tasks, and `truth` is what a right answer must agree with; what a recorder sees of it is written by
`tests.support.telemetry`. What fixing something would bring is found by simulating the same training, with
the same random numbers, without it.

Nothing here uses the analyzer.

Typical use::

    job = Job(ranks=4, slow=(Slow(FORWARD, 2.0, rank=1),), seed=7)
    made = simulate(job)
    made.truth.path[(1, "main", "forward")]         # ns of the true critical path
    made.truth.gain(simulate(job.without_faults()).truth)
    made.write_store(tmp_path)
"""

from .job import Delay, Job, Pauses, Slow
from .training import Simulation, simulate
from .truth import Truth

__all__ = ["Delay", "Job", "Pauses", "Simulation", "Slow", "Truth", "simulate"]
