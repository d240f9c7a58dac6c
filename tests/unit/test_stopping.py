"""`tunelab stop`: a request reaches the session it is meant for, and no other."""

from __future__ import annotations

import fcntl
import signal
from types import SimpleNamespace

import pytest

from tests.unit import histories as h
from tunelab.engine.stopping import APPEARS_WITHIN_S, FILE_NAME, LOOKS_EVERY_S, Interruptions, Request, Requests, ask, stop
from tunelab.errors import BadInputError
from tunelab.journal import Journal, events


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_the_driver_hears_a_request_once(tmp_path, clock):
    requests = Requests(tmp_path, 3, clock)
    assert requests.news() is None
    ask(tmp_path, Request(3))
    clock.now = 1.0
    assert requests.news() == Request(3)
    clock.now = 2.0
    assert requests.news() is None
    ask(tmp_path, Request(3, now=True))
    clock.now = 3.0
    assert requests.news() == Request(3, now=True)


def test_it_looks_at_most_every_so_often(tmp_path, clock):
    requests = Requests(tmp_path, 1, clock)
    requests.news()
    ask(tmp_path, Request(1))
    clock.now = LOOKS_EVERY_S / 2
    assert requests.news() is None
    clock.now = LOOKS_EVERY_S
    assert requests.news() == Request(1)


@pytest.mark.parametrize("session", [1, 2, 4])
def test_a_request_for_another_session_stops_nobody(tmp_path, clock, session):
    ask(tmp_path, Request(session))
    requests = Requests(tmp_path, 3, clock)
    assert requests.news() is None
    requests.close()
    assert (tmp_path / FILE_NAME).exists() == (session > 3)  # one for a session to come is that one's


@pytest.mark.parametrize("content", ["", "{", '{"session": "x"}', "[]", "null"])
def test_a_broken_file_is_no_request(tmp_path, clock, content):
    (tmp_path / FILE_NAME).write_text(content)
    assert Requests(tmp_path, 1, clock).news() is None


class Conductor:
    """Knows whether it was told to stop."""

    asked: tuple[str, str] | None = None

    def stop(self, outcome, reason):
        first, self.asked = self.asked is None, self.asked or (outcome, reason)
        return first


class TestTheDriversLoop:
    @pytest.fixture
    def loop(self, tmp_path, clock):
        said = []
        made = Interruptions(Conductor(), said.append, Requests(tmp_path, 2, clock))
        made.binding, made.said = SimpleNamespace(hurry=False), said
        return made

    def round_after(self, loop, clock, tmp_path, request):
        ask(tmp_path, request)
        clock.now += 1.0
        loop.each_round()

    def test_a_request_stops_as_ctrl_c_does_and_a_second_one_does_not_wait(self, loop, clock, tmp_path):
        self.round_after(loop, clock, tmp_path, Request(2))
        assert loop._conductor.asked == ("interrupted", "tunelab stop") and not loop.binding.hurry
        self.round_after(loop, clock, tmp_path, Request(2, now=True))
        assert loop.binding.hurry and loop.said == ["tunelab stop: stopping at the next report"]

    def test_now_does_not_wait_from_the_start(self, loop, clock, tmp_path):
        self.round_after(loop, clock, tmp_path, Request(2, now=True))
        assert loop.binding.hurry and loop.said == ["tunelab stop: stopping now"]

    def test_an_old_request_does_nothing_and_is_gone_at_the_end(self, loop, clock, tmp_path):
        with loop:
            self.round_after(loop, clock, tmp_path, Request(1))
            assert loop._conductor.asked is None and loop.said == []
        assert not (tmp_path / FILE_NAME).exists()

    def test_ctrl_c_and_then_a_request_that_waits_no_longer(self, loop, clock, tmp_path):
        with loop:
            signal.raise_signal(signal.SIGINT)
            loop.each_round()
            assert loop._conductor.asked == ("interrupted", "Ctrl-C")
            self.round_after(loop, clock, tmp_path, Request(2, now=True))
            assert loop.binding.hurry
        assert loop.said == ["Ctrl-C: stopping at the next report, or in 10 s; again to stop now"]


def test_a_sweep_that_nobody_runs_is_said_to_be_so_and_gets_no_request(tmp_path):
    folder = h.write(tmp_path, h.created())
    with pytest.raises(BadInputError, match="No driver runs digits-mlp.1"):
        stop(folder)
    assert not (folder.path / FILE_NAME).exists()


class Driver:
    """Holds the lock and, step by step as `stop` waits, does what a driver would."""

    def __init__(self, folder, *steps):
        self.folder, self.steps = folder, list(steps)
        self.file = folder.lock.open("wb")
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def sleep(self, seconds):
        if self.steps:
            self.steps.pop(0)(self)
        else:
            self.file.close()

    def write(self, *told):
        journal = Journal(self.folder.journal)
        for event in told:
            journal.append(event)
        journal.close()


def obey(driver):
    assert Requests(driver.folder.path, len(driver.folder.load().sessions), Clock()).news() == Request(1)
    driver.write(events.session_ended(outcome="interrupted", reason="tunelab stop"))


def test_it_waits_until_the_driver_has_ended(tmp_path):
    folder = h.write(tmp_path, [*h.created(), *h.trial(0, [0.5], end=None)])
    driver, told = Driver(folder, lambda driver: None, obey), []
    state = stop(folder, told=told.append, sleep=driver.sleep)
    assert told == [Request(1)]
    assert state.outcome == "interrupted" and [trial.number for trial in state.unfinished()] == [0]
    assert not (folder.path / FILE_NAME).exists()


def test_a_driver_that_has_not_begun_its_session_is_asked_for_that_one(tmp_path):
    folder = h.write(tmp_path, [*h.created(), events.session_ended(outcome="interrupted", reason="Ctrl-C")])

    def begin(driver):
        driver.write(h.session())
        assert Requests(driver.folder.path, 2, Clock()).news() == Request(2)
        driver.write(events.session_ended(outcome="interrupted", reason="tunelab stop"))

    stop(folder, sleep=Driver(folder, begin).sleep)


def test_after_a_driver_that_was_killed_the_next_one_is_asked_itself(tmp_path):
    """Its journal shows a session that never ended: the request is for that one until the next has begun."""
    folder = h.write(tmp_path, h.created())
    told = []

    def begin(driver):
        driver.write(h.session())

    def obey_second(driver):
        assert Requests(driver.folder.path, 2, Clock()).news() == Request(2)
        driver.write(events.session_ended(outcome="interrupted", reason="tunelab stop"))

    stop(folder, told=told.append, sleep=Driver(folder, begin, lambda driver: None, obey_second).sleep)
    assert told == [Request(1), Request(2)]


def test_a_driver_that_is_killed_leaves_no_request_behind(tmp_path):
    folder = h.write(tmp_path, h.created())
    assert stop(folder, now=True, sleep=Driver(folder).sleep).outcome is None
    assert not (folder.path / FILE_NAME).exists()


def test_ctrl_c_while_waiting_takes_the_request_back(tmp_path):
    folder = h.write(tmp_path, h.created())

    def interrupt(driver):
        assert (folder.path / FILE_NAME).exists()
        driver.file.close()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop(folder, sleep=Driver(folder, interrupt).sleep)
    assert not (folder.path / FILE_NAME).exists()


def test_a_session_that_begins_after_the_one_that_was_asked_is_left_alone(tmp_path):
    folder = h.write(tmp_path, h.created())

    def end_and_begin_another(driver):
        driver.write(events.session_ended(outcome="interrupted", reason="tunelab stop"), h.session())

    driver, told = Driver(folder, end_and_begin_another), []
    state = stop(folder, told=told.append, sleep=driver.sleep)
    assert told == [Request(1)] and folder.is_running()
    assert (len(state.sessions), state.outcome) == (1, "interrupted")
    assert not (folder.path / FILE_NAME).exists()
    driver.file.close()


class TestAnotherVerb:
    """`gc` and `doctor` hold the sweep too, and run no session."""

    @pytest.fixture
    def folder(self, tmp_path):
        return h.write(tmp_path, [*h.created(), events.session_ended(outcome="finished", reason="")])

    def test_there_is_nothing_to_stop_and_it_does_not_wait_for_its_end(self, folder, clock):
        driver = Driver(folder)

        def sleep(seconds):
            clock.now += seconds

        with pytest.raises(BadInputError, match="another verb"):
            stop(folder, sleep=sleep, clock=clock)
        assert APPEARS_WITHIN_S <= clock.now < APPEARS_WITHIN_S + 1 and folder.is_running()
        assert not (folder.path / FILE_NAME).exists()
        driver.file.close()

    def test_nor_is_an_old_session_told_of_when_it_has_ended(self, folder):
        with pytest.raises(BadInputError, match="another verb"):
            stop(folder, sleep=Driver(folder).sleep)
