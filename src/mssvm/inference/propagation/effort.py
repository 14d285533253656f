"""The effort of propagation: which starts it tries, what they may cost, and how messages are run to convergence."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mssvm.core.arrays import Ints
from mssvm.core.errors import InputError
from mssvm.engines.messages import MessageRun, Schedule, Temperatures


@dataclass(frozen=True)
class Effort:
    """How much is tried: which starts, how often, and what merging and local search may cost.

    The decoded y of a run is judged after ``first_check`` sweeps, and again each time the number of sweeps has doubled;
    relabelled regions are judged before any sweep if ``judge_moves``. Cold starts on cycles begin with a ``warm_up`` of
    damped updates of all messages at once; sums that do not converge are repeated with damping if ``retry``. Hidden
    components are summed out into at most ``merge_entries`` table entries per instance, by ``merge_work`` operations.
    Labellings are improved by at most ``expansions`` rounds over all states.

    ``restarts`` are starts from random messages. The best outputs are polished if ``flips`` > 0: by at most this number
    of rounds of moves where hidden components have cycles, elsewhere by ascent and ``gibbs`` runs of annealed sampling,
    each of ``rounds`` over all outputs in at most ``budget`` operations.
    """

    starts: tuple[str, ...]
    sweeps: int
    merge_entries: float
    merge_work: float
    first_check: int = 2
    judge_moves: bool = True
    warm_up: int = 10
    retry: bool = True
    restarts: int = 0
    flips: int = 0
    gibbs: int = 0
    rounds: int = 0
    budget: float = 0.0
    expansions: int = 1
    schedule: Schedule = field(default_factory=Schedule)

    @classmethod
    def of(cls, level: int | str) -> Effort:
        """One of the names, or a number: 0, 1, 2 are the names, each step above 2 doubles the restarts."""
        names = list(EFFORTS)
        if isinstance(level, str) and level in EFFORTS:
            return EFFORTS[level]
        if not isinstance(level, int) or isinstance(level, bool) or level < 0:
            raise InputError(f"effort is {level!r}; it must be 'fast', 'normal', 'careful' or a whole number >= 0.")
        effort = EFFORTS[names[min(level, 2)]]
        factor = 2 ** max(0, level - 2)
        return replace(effort, restarts=effort.restarts * factor, gibbs=effort.gibbs * factor)

    def warm(self, run: MessageRun, instances: Ints, temperatures: Temperatures) -> None:
        """The damped warm-up of a cold start on graphs with cycles.

        On strongly coupled grids the first sweep in a fixed order drags the states of one corner across the whole
        graph, and messages converge there. Damped updates of all messages at once let the evidence of every region
        settle locally first.
        """
        if len(instances):
            damped_flooding = replace(self.schedule, damping=max(0.5, self.schedule.damping), flooding=True)
            run.advance(instances, temperatures, self.warm_up, damped_flooding)

    def converge(self, run: MessageRun, instances: Ints, loopy: Ints, temperatures: Temperatures) -> None:
        """Sweep from the present messages to convergence, the ``loopy`` instances after a warm-up.

        With ``retry``, instances that do not converge start once more, from uniform messages with damping.
        U- and the judgement of a y both use this method, so that the same y has the same value in both.
        """
        self.warm(run, loopy, temperatures)
        run.advance(instances, temperatures, self.sweeps, self.schedule)
        stuck = instances[~(run.residual[instances] <= self.schedule.tolerance)]
        if self.retry and len(stuck) and self.schedule.damping < 0.5:
            before = run.sweeps[stuck]
            run.start(stuck, None)
            run.sweeps[stuck] = before
            run.advance(stuck, temperatures, self.sweeps, replace(self.schedule, damping=0.5))


EFFORTS = {
    "fast": Effort(
        starts=("cut", "marginals", "regions", "expansions"),
        sweeps=12,
        merge_entries=4096.0,
        merge_work=1e5,
        first_check=12,
        judge_moves=False,
        warm_up=6,
        retry=False,
    ),
    "normal": Effort(
        starts=("cut", "sum_first", "regions", "cold", "damped", "expansions"),
        sweeps=200,
        merge_entries=65536.0,
        merge_work=2e6,
        flips=20,
        expansions=10,
    ),
    "careful": Effort(
        starts=("cut", "sum_first", "cold", "damped", "annealed", "joint", "regions", "expansions"),
        sweeps=500,
        merge_entries=1e6,
        merge_work=5e7,
        restarts=3,
        flips=100,
        gibbs=6,
        rounds=300,
        budget=2e7,
        expansions=50,
    ),
}
