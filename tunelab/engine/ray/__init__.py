"""The only code that touches Ray's private modules.

versions.py   the Ray versions this was tested with, and every private name it uses
cluster.py    connect; what fits; what can never fit
tune.py       Tune's search and scheduler seams, bound to the conductor; slots
actor.py      the trial actor: one slot, trial after trial
attempt.py    one attempt inside the actor: a worker group, or a plain function
group.py      Ray Train's controller and worker group, with workers that outlive a trial
worker.py     a worker process: lock-step reports, a clean start for each trial
trainers.py   the user's trainer, prepared for one trial
"""

from tunelab.engine.ray.versions import check_ray

check_ray()  # before anything here imports a private module
