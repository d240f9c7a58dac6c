"""Where trials run while nodes come and go. No cluster is asked: what fits is said by the tests."""

from __future__ import annotations

from tunelab.engine.ray.cluster import fit
from tunelab.engine.ray.slots import Slots
from tunelab.engine.ray.trainers import Shape

ONE, TWO = Shape(((("CPU", 1.0),),)), Shape(((("CPU", 1.0),),) * 2)


class Cache:
    """Tune's, as far as it is used."""

    def __init__(self):
        self.room = {}

    def increase_max(self, key):
        self.room[key] = self.room.get(key, 0) + 1

    def decrease_max(self, key):
        self.room[key] -= 1


class Ground:
    """Slots on nodes of so many CPUs each."""

    def __init__(self, *nodes):
        self.nodes, self.cache = list(nodes), Cache()
        self.slots = Slots(lambda shapes: fit(shapes, [{"CPU": float(count)} for count in self.nodes]))

    def take(self, shape=ONE):
        slot = self.slots.take(shape)
        self.slots.keep_actors(self.cache)
        return slot

    def kept(self):
        return [key for key, room in self.cache.room.items() if room]


def test_a_slot_is_used_again_and_again():
    ground = Ground(2)
    first = ground.take()
    ground.slots.release(first, dead=False)
    assert ground.take() is first and ground.kept() == [first.request]


def test_no_more_slots_than_fit_and_those_of_another_shape_give_way():
    ground = Ground(2)
    first, second = ground.take(), ground.take()
    assert ground.take() is None and not ground.slots.may_have_room(ONE)
    ground.slots.release(first, dead=False)
    assert ground.take(TWO) is None
    ground.slots.release(second, dead=False)
    wide = ground.take(TWO)
    assert ground.kept() == [wide.request]


def test_the_slot_of_a_dead_actor_is_given_up():
    ground = Ground(2)
    first = ground.take()
    ground.slots.release(first, dead=True)
    assert ground.kept() == []
    assert ground.take().request != first.request


def test_a_slot_that_a_node_is_missing_of_is_given_up_once_its_trial_is_over():
    ground = Ground(1, 1)
    first, second = ground.take(), ground.take()
    ground.slots.mark_broken({first.name: {"a"}, second.name: {"b"}}, {"a"})
    assert not first.broken and second.broken
    ground.nodes = [1]
    ground.slots.release(second, dead=False)
    assert ground.take() is None, "there is room for one trial only"
    ground.slots.release(first, dead=False)
    assert ground.take() is first


def test_idle_slots_on_a_node_that_is_gone_are_given_up_at_once():
    ground = Ground(1, 1)
    first, second = ground.take(), ground.take()
    for slot in (first, second):
        ground.slots.release(slot, dead=False)
    ground.nodes = [1]
    ground.slots.mark_broken({first.name: {"a"}, second.name: {"b", ""}}, {"a", "b"})
    assert ground.kept() == [first.request]


def test_a_trial_that_waits_for_its_place_on_a_cluster_that_has_shrunk_gets_the_next_one_that_is_free():
    ground = Ground(1, 1)
    runs, waits = ground.take(), ground.take()
    ground.nodes = [1]  # before `waits` had its placement group
    ground.slots.mark_broken({runs.name: {"a"}}, {"a"})
    ground.slots.release(runs, dead=False)
    assert ground.kept() == [waits.request], "else its idle actor would hold the place for ever"


def test_new_nodes_are_used():
    ground = Ground(1)
    ground.take()
    assert ground.take() is None
    ground.nodes.append(1)
    assert ground.slots.may_have_room(ONE) and ground.take()


def test_a_cluster_without_room_for_a_single_trial_is_told_from_one_that_is_full():
    ground = Ground(1)
    ground.take()
    assert not ground.slots.may_have_room(ONE) and ground.slots.may_ever_have_room(ONE)
    ground.nodes = []
    assert not ground.slots.may_ever_have_room(ONE)
