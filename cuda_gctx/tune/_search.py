"""The search: which plans are measured, in which order, and which one is chosen.

Plans are measured in rounds, in random order, so that what changes with time (clocks, temperature, neighbours)
affects all of them. Plans that cannot win any more are left out of later rounds. The finalists then meet in separate
rounds, which alone decide: the fastest of many plans is partly a lucky one, and fresh samples remove the luck.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from cuda_gctx._core.device import Device
from cuda_gctx._core.errors import CapturingError, CUDAError, FeatureNotSupported, ResourceOverlapWarning
from cuda_gctx._core.loan import is_capturing
from cuda_gctx._core.stream import Stream
from cuda_gctx.measure import clock
from cuda_gctx.measure.loop import in_rounds
from cuda_gctx.measure.progress import Progress
from cuda_gctx.measure.statistics import LEAST_PAIRS, Ratio, median, ratio_of_rounds
from cuda_gctx.partitions import PartitionPool
from cuda_gctx.tune._measure import Intervals, OutOfTime, Runner, Sample, Trial
from cuda_gctx.tune._objectives import Objective, TailLatency, Throughput
from cuda_gctx.tune._plans import KINDS, Plan
from cuda_gctx.tune._sizes import Allocation, Sizes
from cuda_gctx.tune._work import Part, PartFacts, PartFailed, examine, libraries_loaded, naming, why_not

__all__ = ["Candidate", "Search"]

COARSE_ROUNDS, REFINING_ROUNDS = 3, 2
# Final rounds, and their number if the first ones leave it open whether the choice is the best. There is no look in
# between, because each further look is another chance of a wrong answer.
FINAL_ROUNDS, MOST_FINAL_ROUNDS = 15, 60
# The share of the budget after which each phase has to end.
SEARCH_UNTIL, REFINE_UNTIL = 0.45, 0.65
# A plan that is so much slower than the best of each of its rounds is left out of later ones, after two rounds or at
# once; and partitions that are so much slower are not refined.
HOPELESS, HOPELESS_AT_ONCE, NOT_REFINED = 1.15, 1.5, 1.25
MOST_FINALISTS = 8
MARGINS = (1.0, 1.05, 1.1, HOPELESS)
# A context takes 5 MiB of device memory (docs/hardware-facts.md, "Lifetime"). A quarter is reserved for sizes near the
# best.
MOST_CONTEXTS = 96
COARSE_SHARE = 0.75


@dataclass(eq=False)
class Candidate:
    """What is measured: a plan, or a part alone (`plan` is None), with its samples by round.

    steps: when the parts ran in some joined steps, also by round. alone_here: the parts alone on the SMs that the plan
    gives them.
    """

    trial: Trial
    plan: Plan | None
    sm_counts: dict[str, int]
    allocation: Allocation | None = None
    samples: dict[int, Sample] = field(default_factory=dict)
    steps: dict[int, list[Intervals]] = field(default_factory=dict)
    alone_here: dict[str, Candidate] = field(default_factory=dict)
    hopeless: bool = False
    batch_s: float = 0.0  # how long the last batch took

    def measured(self, final: int | None) -> dict[int, Sample]:
        """The samples; only those of the final rounds, which begin with `final`, if there are enough."""
        fresh = {number: sample for number, sample in self.samples.items() if final is not None and number >= final}
        return fresh if len(fresh) >= LEAST_PAIRS else self.samples

    def seconds(self, final: int | None = None) -> float:
        return median([sample.seconds for sample in self.measured(final).values()])

    def profiled(self, final: int | None) -> list[Intervals]:
        """The profiled steps; only those of the final rounds if there are any."""
        fresh = [
            step for number, steps in self.steps.items() if final is not None and number >= final for step in steps
        ]
        return fresh or [step for steps in self.steps.values() for step in steps]

    def spent(self, name: str, final: int | None) -> list[float]:
        """How long a part took in the profiled steps, from when it could begin to its end."""
        return [step[name][1] - step[name][0] for step in self.profiled(final)]

    @property
    def is_sequence(self) -> bool:
        return self.plan is not None and self.plan.kind == "sequence"

    @property
    def complexity(self) -> tuple[int, bool]:
        """The smaller, the simpler the plan."""
        assert self.plan is not None
        return KINDS.index(self.plan.kind), self.plan.library_sms


def _capturing(trial: Trial) -> list[str]:
    """The parts that left their stream capturing a graph."""
    found = []
    for name, stream in trial.streams.items():
        with suppress(CUDAError):  # of a device that has failed
            found += [name] if is_capturing(stream) else []
    return found


class Search:
    """Measures plans for some parts. Results are available at any time, also after an interruption."""

    def __init__(
        self,
        device: Device,
        parts: Sequence[Part],
        objective: Objective,
        wanted_sizes: Iterable[int] | None,
        library_sms: str,
        budget_s: float,
        seed: int,
        progress: Progress,
        closing: ExitStack,
    ) -> None:
        self.device = device
        self.parts = tuple(parts)
        self.objective = objective
        self.facts: dict[str, PartFacts] = {}
        self.alone: dict[str, Candidate] = {}
        self.candidates: list[Candidate] = []
        self.notes: list[str] = []
        self.left_out: dict[str, list[object]] = {}  # plans that could not be measured, by the reason
        self.complete = False
        self.final: int | None = None  # the number of the first final round
        self._library_sms = library_sms
        self._began = clock.now()
        self._budget_s = budget_s
        self._random = random.Random(seed)
        self._progress = progress
        self._closing = closing
        self._round = 0
        self._fair_rounds: set[int] = set()  # those in which every plan that was not left out took part
        self._contexts = 0
        self._allocations: set[Allocation] = set()
        self._pool = closing.enter_context(PartitionPool(device))
        self._sizes: Sizes | None = None
        self._is_full = False  # no more contexts can be made
        try:
            self._sizes = Sizes(device, [part.name for part in parts], wanted_sizes)
        except FeatureNotSupported as error:
            self.notes.append(f"partitions were not measured: {error}")
        self._runner = Runner(objective, self._began + budget_s)

    # ---- the phases

    def run(self) -> None:
        """Run all phases. Ends early, and notes that, when the budget is used up."""
        self.complete = True
        for phase, share in (
            (self._first, SEARCH_UNTIL),
            (self._refine, REFINE_UNTIL),
            (self._compare, 1.0),
        ):
            # Without the first phase there is nothing to compare, so it may take all of the time.
            until = 1.0 if not self.can_answer else share
            self._runner.deadline = self._began + until * self._budget_s
            try:
                phase()
            except OutOfTime:
                self.complete = False
            if not self.can_answer:
                break

    @property
    def can_answer(self) -> bool:
        """Whether enough is known for an answer: the parts alone, and the sequence."""
        return (
            len(self.alone) == len(self.parts)
            and all(candidate.samples for candidate in self.alone.values())
            and any(candidate.is_sequence for candidate in self.known())
        )

    def settle(self) -> None:
        """Wait for everything that was enqueued, so that streams and partitions can be closed."""
        for trial in self._trials():
            for stream in {*trial.streams.values(), trial.clock}:
                # An error of the device, or of a part that left a capture, has been raised already.
                with suppress(CUDAError, CapturingError):
                    stream.sync()

    def _first(self) -> None:
        self._show("calling each part for the first time")
        first = self._closing.enter_context(self.device.create_stream())
        whole = dict.fromkeys((part.name for part in self.parts), self.device.sm_count)
        for part in self.parts:
            trial = Trial("alone", (part,), {part.name: first}, first)
            candidate = Candidate(trial, None, whole)
            with self._forgiving(candidate):
                facts = examine(part, first, self._runner.demand_time)
                self.facts[part.name] = facts
                self._runner.call_s[part.name] = facts.host_s
                self._runner.warm(trial)
            self._runner.alone_s[part.name] = trial.step_s
            self.alone[part.name] = candidate
        names = tuple(part.name for part in self.parts)
        plans = [Plan("sequence", names), Plan("streams", names)]
        plans += [Plan("priority", names, first=name) for name in names]
        for plan in plans:
            self._open(plan, whole)
        self._show("waiting for stable clocks")
        with self._forgiving(self.candidates[0]):
            self._runner.settle_clocks(self.candidates[0].trial)
        self._rounds([*self.alone.values(), *self.candidates], 1, drop=False)
        self._runner.deadline = self._began + SEARCH_UNTIL * self._budget_s
        self._divide()
        self._rounds([*self.alone.values(), *self.candidates], COARSE_ROUNDS)

    def _divide(self) -> None:
        """Open partitions of sizes that are far apart."""
        sizes = self._sizes
        if sizes is None:
            return
        for count in sizes.too_large():
            self.note(f"{count} SMs were not tried: no layout for these parts fits with a partition of that size")
        durations = {name: trial_s * self.weight(name) for name, trial_s in self._runner.alone_s.items()}
        plans = [(allocation, sizes.plan(allocation, False)) for allocation in sizes.coarse(durations)]
        coarse = [(allocation, found[0]) for allocation, found in plans if found is not None]
        most = MOST_CONTEXTS if sizes.coarse_is_all else COARSE_SHARE * MOST_CONTEXTS
        for number, (allocation, plan) in enumerate(coarse):
            if self._contexts + len(self.parts) > most:
                self.complete = False
                self.note(
                    f"{len(coarse) - number} of {len(coarse)} divisions of the SMs were not tried, such as {plan}: the "
                    f"limit is {MOST_CONTEXTS} contexts; choose sizes with sizes=[...]"
                )
                return
            self._open_allocation(allocation)

    def _refine(self) -> None:
        if self._sizes is None:
            return
        stride = self._sizes.first_stride()
        while stride >= 1 and not self._is_full:
            best = self._best_partitions()
            overall = min(candidate.seconds() for candidate in self.acceptable())
            if best is None or best.allocation is None or best.seconds() > NOT_REFINED * overall:
                return
            made = [
                candidate
                for allocation in self._sizes.around(best.allocation, stride)
                for candidate in self._open_allocation(allocation)
            ]
            if made:
                self._rounds([best, *made], REFINING_ROUNDS)
            if self._best_partitions() is best:
                stride //= 2

    def _compare(self) -> None:
        finalists = self.finalists()
        self.final = self._round
        for candidate in finalists:
            candidate.hopeless = False
        competing = [*self.alone.values(), *finalists]
        round_s = sum(candidate.batch_s for candidate in competing)

        def affordable() -> int:
            return max(0, int((self._runner.deadline - clock.now()) / max(round_s, 1e-6)))

        # Profiling the parts takes about as long as the rounds in which it is done.
        placed = self._placed(finalists) if affordable() >= FINAL_ROUNDS + LEAST_PAIRS else []
        self._rounds([*dict.fromkeys([*competing, *placed])], LEAST_PAIRS, drop=False, look=placed)
        self._rounds(competing, min(FINAL_ROUNDS - LEAST_PAIRS, affordable()), drop=False)
        further = min(MOST_FINAL_ROUNDS - FINAL_ROUNDS, affordable())
        if further > 0 and not self.choose()[1]:
            self._rounds(competing, further, drop=False)

    def _placed(self, finalists: Sequence[Candidate]) -> list[Candidate]:
        """The finalists in partitions, or the best partitions, and their parts alone in these partitions."""
        best = self._best_partitions()
        if best is None:
            return []
        placed = [candidate for candidate in finalists if candidate.allocation is not None] or [best]
        for candidate in placed:
            for part in self.parts:
                hint, stream = candidate.trial.library_sms, candidate.trial.streams[part.name]
                trial = Trial(f"{part.name} alone in {candidate.plan}", (part,), {part.name: stream}, stream, hint)
                alone = Candidate(trial, None, candidate.sm_counts, candidate.allocation)
                with self._forgiving(alone):
                    self._runner.warm(trial)
                candidate.alone_here[part.name] = alone
        # The same sizes with and without the SM count hint.
        placed += [c for c in self.known() if c.allocation == best.allocation and c not in placed]
        for candidate in placed:
            candidate.hopeless = False
        return [*placed, *(alone for candidate in placed for alone in candidate.alone_here.values())]

    # ---- candidates

    def known(self) -> list[Candidate]:
        """The plans that have been measured."""
        return [candidate for candidate in self.candidates if candidate.samples]

    def sequence(self) -> Candidate:
        return next(candidate for candidate in self.known() if candidate.is_sequence)

    def _trials(self) -> list[Trial]:
        return [candidate.trial for candidate in (*self.alone.values(), *self.candidates)]

    def weight(self, name: str) -> int:
        """How many calls of a part are one step."""
        return self.objective.weights[name] if isinstance(self.objective, Throughput) else 1

    def _open(self, plan: Plan, sm_counts: dict[str, int], allocation: Allocation | None = None) -> Candidate:
        streams = self._closing.enter_context(plan.open(self._pool))
        if isinstance(self.objective, TailLatency) and plan.kind != "sequence":
            clock: Stream = streams[self.objective.part]
        else:
            clock = self._closing.enter_context(self.device.create_stream())
        candidate = Candidate(Trial.of(plan, self.parts, streams, clock), plan, sm_counts, allocation)
        self.candidates.append(candidate)
        self._show(f"warming up {plan}")
        with self._forgiving(candidate):
            self._runner.warm(candidate.trial)
        return candidate

    @contextmanager
    def _forgiving(self, candidate: Candidate) -> Iterator[None]:
        """Exclude partitions in which a part fails, if the device still works. Other errors name the plan."""
        trial = candidate.trial
        try:
            with naming(trial.name if len(trial.parts) > 1 else f"{trial.parts[0].name} {trial.name}"):
                yield
        except PartFailed as error:
            if candidate.allocation is None or _capturing(trial):
                raise
            try:
                self.device.sync()
            except CUDAError:
                raise error from error.__cause__
            candidate.hopeless = True
            candidate.samples.clear()
            candidate.steps.clear()
            self.left_out.setdefault(str(error).replace(f" ({trial.name})", ""), []).append(trial.name)
        except (CUDAError, CapturingError) as error:
            capturing = _capturing(trial)
            if not capturing:
                raise
            raise RuntimeError(
                f"{' or '.join(capturing)} leaves its stream capturing a graph ({trial.name}): end the capture in the "
                f"function"
            ) from error

    def _open_allocation(self, allocation: Allocation) -> list[Candidate]:
        """The plans of a new allocation: without the SM count hint, with it, or both."""
        if allocation in self._allocations or self._sizes is None or self._is_full:
            return []
        self._allocations.add(allocation)
        made: list[Candidate] = []
        for library_sms in self._library_choices():
            found = self._sizes.plan(allocation, library_sms)
            if found is None:
                break
            plan, sm_counts = found
            assert plan.layout is not None
            if not made:
                if self._contexts + len(self.parts) > MOST_CONTEXTS:
                    self._stop_opening(
                        f"some sizes near the best were not tried: the limit is {MOST_CONTEXTS} contexts"
                    )
                    break
                self._contexts += len(self.parts)
                try:
                    # The caller does not need a warning that contexts of the tuner share SMs.
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", ResourceOverlapWarning)
                        self._pool.get(plan.layout)
                except CUDAError as error:
                    if error.name != "CUDA_ERROR_OUT_OF_MEMORY":
                        raise
                    self._stop_opening("more partitions were not tried: no device memory is left for their contexts")
                    break
            if library_sms and not self._can_tell_libraries(plan):
                break
            made.append(self._open(plan, sm_counts, allocation))
        return made

    def _stop_opening(self, why: str) -> None:
        self._is_full = True
        self.complete = False
        self.note(why)

    def _library_choices(self) -> tuple[bool, ...]:
        if self._library_sms == "auto":
            return (False, True) if libraries_loaded() else (False,)
        return (self._library_sms == "on",)

    def _can_tell_libraries(self, plan: Plan) -> bool:
        with plan.open(self._pool) as streams:
            reason = why_not(streams[plan.parts[0]])
        if reason is None:
            return True
        if self._library_sms == "on":
            raise RuntimeError(f'library_sms="on" is not possible here: {reason}')
        self.note(f"the SM count hint was not measured: {reason}")
        self._library_sms = "off"
        return False

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    # ---- rounds

    def _show(self, what: str) -> None:
        self._progress.show((clock.now() - self._began) / self._budget_s, what)

    def _rounds(
        self, candidates: Sequence[Candidate], number: int, drop: bool = True, look: Sequence[Candidate] = ()
    ) -> None:
        """Measure each candidate in each round, in random order.

        drop: leave out those that cannot win any more. look: those that are profiled in each round, not only once.
        """
        for _ in range(number):
            current = self._round
            self._round += 1
            taking_part = [candidate for candidate in candidates if not candidate.hopeless]
            shape = self._runner.shape([candidate.trial for candidate in taking_part])
            for _, candidate in in_rounds(taking_part, 1, self._random):
                self._show(f"measuring {candidate.plan or 'each part alone'}")
                began = clock.now()
                with self._forgiving(candidate):
                    candidate.samples[current] = self._runner.batch(candidate.trial, shape)
                    candidate.batch_s = clock.now() - began
                    if self.objective == "makespan" and (not candidate.steps or candidate in look):
                        candidate.steps[current] = self._runner.profile(candidate.trial)
            if drop:
                self._fair_rounds.add(current)
                self._drop()

    def _behind(self, candidate: Candidate) -> float:
        """How many times as long a plan took as the best of the same round, in its best round.

        If the objective demands a rate of the others, only plans that leave them as much are rivals.
        """
        rivals = self.known()
        if isinstance(self.objective, TailLatency) and self.objective.others:
            share = self.others_share(candidate)
            rivals = [rival for rival in rivals if self.others_share(rival) >= share]
        return min(
            (
                candidate.samples[number].seconds
                / min(rival.samples[number].seconds for rival in rivals if number in rival.samples)
                for number in candidate.samples.keys() & self._fair_rounds
            ),
            default=1.0,
        )

    def _drop(self) -> None:
        for candidate in self.known():
            # The sequence and the plain streams stay, because the report compares with them.
            if candidate.plan is not None and candidate.plan.kind not in ("sequence", "streams"):
                limit = HOPELESS if len(candidate.samples) > 1 else HOPELESS_AT_ONCE
                accepted = self.accepts(candidate, leniently=True)
                candidate.hopeless = self._behind(candidate) > limit or not accepted

    # ---- the decision

    def _best_partitions(self) -> Candidate | None:
        found = [c for c in self.known() if c.allocation is not None]
        return min(found, key=lambda c: (not self.accepts(c), c.seconds(self.final)), default=None)

    def others_share(self, candidate: Candidate) -> float:
        """The rate of the parts that are not critical, as a share of their rate alone; the smallest of them."""
        shares = []
        for name, alone in self.alone.items():
            calls = sum(sample.calls[name][0] for sample in candidate.samples.values() if name in sample.calls)
            seconds = sum(sample.calls[name][1] for sample in candidate.samples.values() if name in sample.calls)
            if seconds > 0:
                shares.append(calls / seconds * alone.seconds(self.final))
        return min(shares, default=0.0)

    def accepts(self, candidate: Candidate, *, leniently: bool = False) -> bool:
        """Whether a plan leaves the others what the objective demands. The sequence always does.

        leniently: or nearly as much, while there are few samples.
        """
        objective = self.objective
        return (
            not isinstance(objective, TailLatency)
            or candidate.is_sequence
            or self.others_share(candidate) >= objective.others / (HOPELESS if leniently else 1)
        )

    def acceptable(self, *, leniently: bool = False) -> list[Candidate]:
        """The plans that can be chosen."""
        return [candidate for candidate in self.known() if self.accepts(candidate, leniently=leniently)]

    def best_of_kinds(self) -> list[Candidate]:
        """The fastest plan of each kind, of those that can be chosen."""
        found: dict[str, Candidate] = {}
        for candidate in sorted(self.acceptable(), key=lambda candidate: candidate.seconds(self.final)):
            if candidate.plan is not None:
                found.setdefault(candidate.plan.kind, candidate)
        return list(found.values())

    def finalists(self) -> list[Candidate]:
        """The sequence, the best of each kind that is not hopeless, and those next to the best."""
        ordered = sorted(self.acceptable(leniently=True), key=lambda candidate: candidate.seconds())
        close = [candidate for candidate in ordered if self._behind(candidate) <= HOPELESS]
        chosen = [self.sequence(), *(candidate for candidate in self.best_of_kinds() if candidate in close)]
        if isinstance(self.objective, TailLatency):
            # The share of the others is measured too, with an error: keep plans that leave them just enough, and those
            # that leave them a little more.
            shares = [self.objective.others * margin for margin in MARGINS]
            partitions = [candidate for candidate in ordered if candidate.allocation is not None]
            chosen += [c for share in shares for c in [c for c in partitions if self.others_share(c) >= share][:1]]
            # Of plans with equal latencies, the one in which the others achieve most.
            chosen += sorted(close, key=self.others_share, reverse=True)[:1]
        chosen += close[:3]
        return list(dict.fromkeys(chosen))[:MOST_FINALISTS]

    def ratio(self, slow: Candidate, fast: Candidate) -> Ratio:
        """How many times as long one takes as the other, over the rounds in which both were measured."""
        for theirs, ours in ((slow.measured(self.final), fast.measured(self.final)), (slow.samples, fast.samples)):
            found = ratio_of_rounds(*({n: sample.seconds for n, sample in side.items()} for side in (theirs, ours)))
            if found is not None:
                return found
        ratio = slow.seconds(self.final) / fast.seconds(self.final)
        return Ratio(ratio, ratio, ratio, 0)

    def _compared(self) -> list[Candidate]:
        """The plans among which the choice is made: those of the final rounds, if there are enough of these."""
        found = [c for c in self.acceptable() if self.final is None or c.measured(self.final) is not c.samples]
        return found if self.sequence() in found else self.acceptable()

    def choose(self) -> tuple[Candidate, bool]:
        """The simplest plan that no other beats by more than noise, and whether it is certain that none does."""
        sequence, compared = self.sequence(), self._compared()
        better = [c for c in compared if c is not sequence and self.ratio(sequence, c).is_slower]
        if not better:
            return sequence, len(compared) > 1 and not self.undecided(sequence)
        tail = isinstance(self.objective, TailLatency)
        better.sort(
            key=lambda c: (c.complexity[0], -self.others_share(c) if tail else 0, c.complexity, c.seconds(self.final))
        )
        unbeaten = (c for c in better if not any(self.ratio(c, other).is_slower for other in better if other is not c))
        chosen = next(unbeaten, None) or min(better, key=lambda candidate: candidate.seconds(self.final))
        return chosen, not self.undecided(chosen)

    def undecided(self, chosen: Candidate) -> list[Candidate]:
        """The plans of which it is not certain that the chosen one is not slower by more than noise."""
        others = [candidate for candidate in self._compared() if candidate is not chosen]
        return [other for other in others if not self.ratio(chosen, other).is_not_slower]
