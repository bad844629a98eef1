"""Opening plans: streams and contexts for parts, the SM count hint of libraries, and what cannot be opened or fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from cuda_gctx._core import clock
from cuda_gctx._core.extension import CapturingError, CUDAError, Device, Stream, StreamOptions, is_capturing
from cuda_gctx.measure.loop import is_apart
from cuda_gctx.partitions import PartitionPool
from cuda_gctx.partitions.causes import MOST_CONNECTIONS
from cuda_gctx.tune._batches import Trial
from cuda_gctx.tune._guard import Sitting, sharing
from cuda_gctx.tune._measure import Runner
from cuda_gctx.tune._measurement import AS_GRAPHS, BY_ONE_HOST, Measurement, Record
from cuda_gctx.tune._objectives import TailLatency
from cuda_gctx.tune._plans import Plan
from cuda_gctx.tune._sizes import Allocation, Sizes
from cuda_gctx.tune._work import Part, PartError, Task, libraries_loaded, naming, why_not

__all__ = ["Candidate", "Openings"]

# How long a plan that starts slowly may take until it is warm.
RETRY_S, RETRY_SHARE = 0.5, 0.01


@dataclass(eq=False, kw_only=True)
class Candidate(Record):
    """A plan, or a part alone, that is open and measured.

    trial, again: the first opening, and the further ones. batch_s: how long the last batch took.
    """

    trial: Trial
    again: list[Trial] = field(default_factory=list)
    hopeless: bool = False
    batch_s: float = 0.0

    @property
    def trials(self) -> list[Trial]:
        return [self.trial, *self.again]

    def turn(self, number: int) -> int:
        """Which opening takes part in a round."""
        return number % self.openings


def _capturing(trial: Trial) -> list[str]:
    """The parts that left their stream capturing a graph."""
    found = []
    for name, stream in trial.streams.items():
        with suppress(CUDAError):  # of a device that has failed
            found += [name] if is_capturing(stream) else []
    return found


class Openings:
    """The plans of a task that are open, and what was measured of them.

    began: when the budget began. tried: the divisions of the SMs that were opened or could not be. is_full: whether no
    more contexts can be made.
    """

    def __init__(self, task: Task, held: Sitting) -> None:
        self.task, self.held, self.began = task, held, clock.now()
        self.found: Measurement[Candidate] = Measurement(
            task.names, task.objective, AS_GRAPHS if task.launch == "graphs" else BY_ONE_HOST
        )
        runner = Runner(task.objective, self.began + task.budget_s, task.launch, task.seed)
        self.runner = held.closing.enter_context(runner)
        self.runner.retry_s = min(RETRY_S, RETRY_SHARE * task.budget_s)
        self.tried: set[Allocation] = set()
        self.is_full = False
        self._library_sms = task.library_sms

    def show(self, what: str) -> None:
        """Show progress."""
        self.held.bar.show((clock.now() - self.began) / self.task.budget_s, what)

    def part(self, name: str, part: Part, stream: Stream, library_sms: bool = False) -> Trial:
        """A part alone."""
        streams = {part.name: stream}
        return Trial(name, (part,), streams, self.idle(streams), library_sms)

    def plan(
        self, plan: Plan, allocation: Allocation | None = None, where: Device | PartitionPool | None = None
    ) -> Candidate:
        """Open a plan, and run its first steps."""
        trial = self._trial(plan, where or self.task.device)
        candidate = Candidate(plan=plan, trial=trial, allocation=allocation)
        self.found.plans.append(candidate)
        self.show(f"warming up {plan}")
        self.warm(candidate)
        return candidate

    def warm(self, candidate: Candidate) -> None:
        """Run the first steps of a candidate."""
        with self.forgiving(candidate, candidate.trial):
            self.runner.warm(candidate.trial)

    def _trial(self, plan: Plan, where: Device | PartitionPool) -> Trial:
        with sharing():
            streams = self.held.closing.enter_context(plan.open(where))
        trial = Trial(plan, self.task.parts, streams, self.idle(streams), plan.library_sms)
        if plan.share is not None and (together := self.task.together) is not None:
            trial.share = share = plan.share
            trial.joint = Part("together", lambda stream: together(stream, share))
        return trial

    def idle(self, streams: Mapping[str, Stream]) -> Stream:
        """The stream by whose time calls of the critical part begin: for random arrivals one that waits for no other,
        in a closed loop that of the part, unless other parts are queued on it.
        """
        objective, device, closing = self.task.objective, self.task.device, self.held.closing
        first = next(iter(streams.values()))
        if not isinstance(objective, TailLatency):
            return first
        if objective.closed_loop:
            own = streams.get(objective.part, first)
            return closing.enter_context(device.create_stream()) if list(streams.values()).count(own) > 1 else own
        urgent = StreamOptions(priority=device.priority_range[1])
        for _ in range(MOST_CONNECTIONS):
            idle = closing.enter_context(device.create_stream(urgent))
            if is_apart(idle, set(streams.values())):
                break
        return idle

    def parts_alone(self, candidate: Candidate) -> list[Candidate]:
        """The parts alone in the partitions of a plan."""
        found: list[Candidate] = []
        for part in self.task.parts:  # not the graphs of the candidate
            if candidate.plan is not None and part.name in candidate.plan.places:
                name, stream = f"{part.name} alone in {candidate.plan}", candidate.trial.streams[part.name]
                trial = self.part(name, part, stream, candidate.trial.library_sms)
                alone = Candidate(plan=None, trial=trial, allocation=candidate.allocation)
                self.warm(alone)
                candidate.alone_here[part.name] = alone
                found.append(alone)
        return found

    def again(self, candidates: Sequence[Candidate], openings: int) -> None:
        """Open plans until each is open so many times."""
        for number in range(openings - 1):
            pool = self.held.closing.enter_context(PartitionPool(self.task.device))
            for candidate in candidates:
                if candidate.plan is None or len(candidate.again) > number:
                    continue
                self.show(f"opening {candidate.plan} again")
                try:
                    trial = self._trial(candidate.plan, pool)
                except CUDAError as error:
                    _demand_memory(error)
                    self.found.note("some plans were opened only once: no device memory is left for further contexts")
                    return
                with self.forgiving(candidate, trial):
                    self.runner.warm(trial)
                    self.runner.warm_like(trial, candidate.trial)
                    candidate.again.append(trial)
                    candidate.openings += 1

    def division(self, allocation: Allocation, sizes: Sizes) -> list[Candidate]:
        """The plans of a new division of the SMs: without the SM count hint, with it, or both."""
        if allocation in self.tried or self.is_full:
            return []
        self.tried.add(allocation)
        made: list[Candidate] = []
        for library_sms in self.library_choices():
            plan = sizes.plan(allocation, library_sms)
            if plan is None or plan.layout is None:
                break
            if not made:
                pool = self.held.closing.enter_context(PartitionPool(self.task.device))
                try:
                    with sharing():
                        pool.prepare(plan.layout)
                except CUDAError as error:
                    _demand_memory(error)
                    self.is_full, self.found.complete = True, False
                    self.found.note("more partitions were not tried: no device memory is left for their contexts")
                    break
            if library_sms and not self._can_tell_libraries(plan, pool):
                break
            made.append(self.plan(plan, allocation, pool))
        return made

    def library_choices(self) -> tuple[bool, ...]:
        """With which settings of the SM count hint a division is measured."""
        if self._library_sms == "auto":
            return (False, True) if libraries_loaded() else (False,)
        return (self._library_sms == "on",)

    def _can_tell_libraries(self, plan: Plan, pool: PartitionPool) -> bool:
        with plan.open(pool) as streams:
            reason = why_not(streams[next(iter(plan.places))])
        if reason is not None:
            if self._library_sms == "on":
                raise RuntimeError(f'library_sms="on" is not possible here: {reason}')
            self.found.note(f"the SM count hint was not measured: {reason}")
            self._library_sms = "off"
        return reason is None

    @contextmanager
    def forgiving(self, candidate: Candidate, trial: Trial) -> Iterator[None]:
        """Exclude partitions in which a part fails, if the device still works. Other errors name the plan."""
        try:
            with naming(trial.name if len(trial.parts) > 1 else f"{trial.parts[0].name} {trial.name}"):
                yield
        except PartError as error:
            if candidate.allocation is None or _capturing(trial):
                raise
            try:
                self.task.device.sync()
            except CUDAError:
                raise error from error.__cause__
            candidate.hopeless = True
            candidate.samples.clear()
            candidate.steps.clear()
            self.found.left_out.setdefault(str(error).replace(f" ({trial.name})", ""), []).append(trial.name)
        except (CUDAError, CapturingError) as error:
            capturing = _capturing(trial)
            if not capturing:
                raise
            raise RuntimeError(
                f"{' or '.join(capturing)} leaves its stream capturing a graph ({trial.name}): end the capture in the "
                f"function"
            ) from error

    def settle(self) -> None:
        """Wait for everything that was enqueued, so that streams and partitions can be closed."""
        self.runner.stop()
        for trial in (trial for one in (*self.found.alone.values(), *self.found.plans) for trial in one.trials):
            for stream in {*trial.streams.values(), trial.clock}:
                # An error of the device, or of a part that left a capture, has been raised already.
                with suppress(CUDAError, CapturingError):
                    stream.sync()


def _demand_memory(error: CUDAError) -> None:
    """Raise an error again, unless the device memory is used up."""
    if error.name != "CUDA_ERROR_OUT_OF_MEMORY":
        raise error
