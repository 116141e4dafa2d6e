"""The fold: whatever was read, lived through or read again, says the same; no draw is lost or doubled."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.bus import Stored
from broker.messages import (
    DroppedGroup,
    Event,
    GroupAnnotated,
    GroupRequested,
    MixtureCounters,
    PlannedGroup,
    RunEnded,
    RunStarted,
    StepCommitted,
    StepPlanned,
)
from broker.topology import Log, headers
from tests.builders import AT_US, WRITER, a_key, a_request, an_annotated
from workers.dispatcher.groups import Groups, Requested, TrainId
from workers.dispatcher.state import State

MAX_ATTEMPTS = 3


def stored(log: Log, sequence: int, event: Event) -> Stored:
    return Stored(log, sequence, "", headers(event), b"", AT_US)


def requested(group_id: str, request_seq: int) -> Requested:
    return Requested(group_id, request_seq, request_seq)


@dataclass
class History:
    """Logs as they grow, and a state that lives through every message as it comes."""

    live: State = field(default_factory=lambda: State(max_attempts=MAX_ATTEMPTS))
    requests: list[GroupRequested] = field(default_factory=list)
    annotated: list[GroupAnnotated] = field(default_factory=list)
    ledger: list[Event] = field(default_factory=list)
    undecided: list[GroupRequested] = field(default_factory=list)
    window: list[GroupRequested] = field(default_factory=list)
    windows: int = 0
    draws: int = 0

    def request(self, draw: int, attempt: int) -> None:
        identity = TrainId(draw, 0, attempt)
        number = len(self.requests) + 1
        counters = MixtureCounters(
            update_no=0, target={"math": 1.0}, owed={"math": 0.0},
            requested={"math": number}, positions={"math": self.draws},
        )  # fmt: skip
        request = a_request(
            group=a_key(str(identity), request_seq=number),
            draw=draw,
            attempt=attempt,
            mixture=counters,
        )
        self.requests.append(request)
        self.undecided.append(request)
        self.live.apply_request(stored(Log.REQUESTS, number, request))
        self.live.apply_train_request(request)

    def ask(self) -> None:
        """As the dispatcher does: the oldest retry, or else a new draw."""
        due = self.live.groups.retries()
        if due:
            self.request(due[0].draw, due[0].attempt + 1)
        else:
            self.draws += 1
            self.request(self.draws, 0)

    def decide(self, place: int, what: str) -> None:
        if not self.undecided:
            return
        request = self.undecided.pop(place % len(self.undecided))
        if what == "admit":
            self.window.append(request)
            return
        nothing = {"window": None, "window_size": None, "window_index": None, "cut": None}
        outcome = "failed" if what == "fail" else "dropped"
        self.say(
            an_annotated(request, (), **nothing).model_copy(
                update={"outcome": outcome, "reason": what, "generations": (), "annotations": ()}
            )
        )

    def close_window(self) -> None:
        self.windows += 1
        for request in self.window:
            self.say(an_annotated(request, window=self.windows, window_size=len(self.window)))

    def train(self, stale: int) -> None:
        """The open window as a step; the first `stale` groups are dropped."""
        if not self.window:
            return
        self.close_window()
        old, fresh = self.window[:stale], self.window[stale:]
        self.window = []
        planned = StepPlanned(
            writer_id=WRITER, at_us=AT_US, step=self.windows, version=self.windows - 1, cursor=1,
            groups=tuple(
                PlannedGroup(group_id=r.group.group_id, domain="math", stream_seq=1, staleness=0)
                for r in fresh
            ),
            dropped=tuple(
                DroppedGroup(group_id=r.group.group_id, stream_seq=1, reason="stale") for r in old
            ),
        )  # fmt: skip
        committed = StepCommitted(
            writer_id=WRITER, at_us=AT_US, step=self.windows, status="trained",
            version=self.windows, digest="d", metrics={"signal_groups": 1.0},
        )  # fmt: skip
        self.tell(planned)
        self.tell(committed)

    def end_and_resume(self, late: str) -> None:
        """The run ends; a group decided after it is late; the run starts again."""
        lasts = {
            "REQUESTS": len(self.requests), "GENERATED": 0, "VERIFIED": 0,
            "ANNOTATED": len(self.annotated), "LEDGER": len(self.ledger),
        }  # fmt: skip
        ended = RunEnded(
            writer_id=WRITER, at_us=AT_US, reason="", status="stopped", last_sequences=lasts
        )
        self.tell(ended)
        self.decide(0, late)
        self.undecided.clear()
        self.window.clear()
        started = RunStarted(
            writer_id=WRITER, at_us=AT_US, name="n", config="{}", config_sha256="", seed=0,
            versions={}, resumed=True,
        )  # fmt: skip
        self.tell(started)
        # What a resuming dispatcher does before anything else.
        self.live.close_ended_runs()

    def say(self, event: GroupAnnotated) -> None:
        self.annotated.append(event)
        self.live.apply_annotated(stored(Log.ANNOTATED, len(self.annotated), event))

    def tell(self, event: Event) -> None:
        self.ledger.append(event)
        self.live.apply_ledger(event, len(self.ledger))

    def folded(self) -> State:
        """What a restarted dispatcher knows."""
        state = State(max_attempts=MAX_ATTEMPTS)
        for number, request in enumerate(self.requests, start=1):
            state.apply_request(stored(Log.REQUESTS, number, request))
        if self.requests:
            state.apply_train_request(self.requests[-1])
        for number, event in enumerate(self.ledger, start=1):
            state.apply_ledger(event, number)
        for number, said in enumerate(self.annotated, start=1):
            state.apply_annotated(stored(Log.ANNOTATED, number, said))
        state.close_ended_runs()
        return state


def summary(state: State) -> dict[str, object]:
    return {
        "open": [group.group_id for group in state.groups.open_groups()],
        "retries": [(b.draw, b.attempt) for b in state.groups.retries()],
        "given_up": [(b.draw, b.attempt) for b in state.groups.given_up()],
        "windowed": state.groups.in_windows,
        "request_seq": state.request_seq,
        "positions": state.counters.positions if state.counters else None,
        "step": (state.step, state.version),
        "silence": (state.silence.dead_groups, dict(state.silence.dead_reasons)),
        "floor": state.settled_floor,
    }


FATES = ("admit", "fail", "filtered:x")
STEPS = st.one_of(
    st.just(("ask",)),
    st.tuples(st.just("decide"), st.integers(0, 20), st.sampled_from(FATES)),
    st.tuples(st.just("train"), st.integers(0, 2)),
    st.tuples(st.just("end"), st.sampled_from(FATES)),
)


def live_through(steps: list[tuple]) -> History:
    history = History()
    for step in steps:
        match step:
            case ("ask",):
                history.ask()
            case ("decide", place, what):
                history.decide(place, what)
            case ("train", stale):
                history.train(stale)
            case ("end", late):
                history.end_and_resume(late)
    return history


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_reading_the_logs_again_tells_what_living_through_them_told(steps: list[tuple]):
    history = live_through(steps)

    assert summary(history.folded()) == summary(history.live)


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, max_size=60), st.lists(STEPS, max_size=30))
def test_going_on_from_a_fold_asks_for_no_draw_twice_and_skips_none(
    before: list[tuple], after: list[tuple]
):
    history = live_through(before)
    history.live = history.folded()

    for step in after:
        if step == ("ask",):
            history.ask()
        elif step[0] == "decide":
            history.decide(*step[1:])

    ids = [request.group.group_id for request in history.requests]
    assert len(set(ids)) == len(ids)
    assert [r.draw for r in history.requests if r.attempt == 0] == list(range(1, history.draws + 1))
    for request in history.requests:
        if request.attempt:
            assert any(
                (r.draw, r.attempt) == (request.draw, request.attempt - 1) for r in history.requests
            )


def test_a_retry_is_due_once_however_often_its_end_is_told():
    groups = Groups(max_attempts=3)
    groups.requested(requested("00000001-0-0", 1))

    assert groups.ended("00000001-0-0", "failed")
    assert not groups.ended("00000001-0-0", "failed")
    groups.requested(requested("00000001-0-1", 2))

    assert groups.retries() == []
    assert [g.group_id for g in groups.open_groups()] == ["00000001-0-1"]


def test_a_bundle_is_retried_whole_when_all_its_groups_have_ended():
    groups = Groups(max_attempts=3)
    for member in (0, 1):
        groups.requested(requested(f"00000001-{member}-0", member + 1))

    groups.ended("00000001-0-0", "failed")
    assert groups.retries() == []
    assert groups.outstanding == 1
    groups.ended("00000001-1-0", "bundle")

    (bundle,) = groups.retries()
    assert sorted(bundle.groups) == ["00000001-0-0", "00000001-1-0"]
    assert groups.outstanding == 0


def test_the_end_of_a_run_does_not_use_up_a_samples_attempts():
    groups = Groups(max_attempts=1)
    groups.requested(requested("00000001-0-0", 1))

    groups.end_all(up_to=1)

    assert [bundle.attempt for bundle in groups.retries()] == [0]


def test_the_floor_stays_below_what_is_open_to_be_retried_or_to_be_reported():
    groups = Groups(max_attempts=1)
    for draw in (1, 2, 3):
        groups.requested(requested(f"{draw:08d}-0-0", draw))
    assert groups.unsettled() == 1

    groups.ended("00000001-0-0", "failed")
    assert groups.unsettled() == 1
    groups.reported("00000001-0-0")
    assert groups.unsettled() == 2
    groups.ended("00000002-0-0", "trained")
    groups.ended("00000003-0-0", "filtered:x")

    assert groups.unsettled() is None
