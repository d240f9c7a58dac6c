"""Spaces: ranges, conditions, constraints, and every refusal."""

import json
import math
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tunelab.core.constraints import Constraint
from tunelab.core.space import ABSENT, Choice, Float, Int, Space
from tunelab.errors import InvalidExperimentError, UnknownNameError

BERT = Space(
    {
        "lr": Float(1e-5, 3e-4, log=True),
        "warmup_ratio": Float(0.0, 0.2, step=0.05),
        "batch_size": Choice([8, 16, 32]),
        "accumulate": Choice([1, 2]),
        "freeze": Choice(["none", "embeddings", "layers"]),
        "frozen_layers": Int(1, 5, when={"freeze": "layers"}, otherwise=0),
    },
    require=["batch_size * accumulate <= 32"],
)
GOOD = {"lr": 1e-4, "warmup_ratio": 0.1, "batch_size": 16, "accumulate": 2, "freeze": "none", "frozen_layers": 0}
CHAIN = Space(  # children before their parents on purpose
    {
        "damping": Float(0.0, 1.0, when={"nesterov": True}),
        "nesterov": Choice([True, False], when={"optimizer": "sgd"}),
        "optimizer": Choice(["adam", "sgd"]),
    }
)


def problems(parameters, require=()):
    with pytest.raises(InvalidExperimentError) as caught:
        Space(parameters, require)
    assert caught.value.subject == "Space"
    return list(caught.value.problems)


def one(parameters, require=()):
    (problem,) = problems(parameters, require)
    return problem


# --- parameters -----------------------------------------------------------------------------------------------------


def test_stepped_floats_carry_no_rounding_noise():
    assert list(Float(0.0, 0.2, step=0.05).values()) == [0.0, 0.05, 0.1, 0.15, 0.2]
    assert list(Float(0.1, 0.7, step=0.1).values()) == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    assert list(Float(-1e-3, 1e-3, step=5e-4).values()) == [-1e-3, -5e-4, 0.0, 5e-4, 1e-3]
    assert Float(0.0, 0.2, step=0.05).contains(0.15000000000000002) and not Float(0.0, 0.2, step=0.05).contains(0.16)


@pytest.mark.parametrize(
    "parameter",
    [
        Float(-1.0, 2.0),
        Float(1e-5, 1e-1, log=True),
        Float(0.1, 0.7, step=0.1),
        Int(-3, 3),
        Int(1, 9, step=4),
        Int(1, 500, log=True),
        Choice(["a", None, True, 1, 2.5, [1, 2]]),
    ],
    ids=repr,
)
def test_draws_lie_in_the_range_and_are_plain_python(parameter):
    rng = np.random.default_rng(0)
    drawn = [parameter.sample(rng) for _ in range(500)]
    assert all(parameter.contains(value) for value in drawn)
    assert {type(value) for value in drawn} <= {float, int, str, bool, list, type(None)}
    if (size := parameter.size()) is not None and size < 10:
        assert len({repr(value) for value in drawn}) == size, "every value is drawn sometimes"


def test_log_draws_are_even_on_the_logarithmic_scale():
    rng = np.random.default_rng(0)
    floats = [Float(1e-4, 1.0, log=True).sample(rng) for _ in range(4000)]
    assert abs(np.mean(np.array(floats) < 1e-2) - 0.5) < 0.03
    ints = [Int(1, 256, log=True).sample(rng) for _ in range(4000)]
    expected = math.log(16.5 / 0.5) / math.log(256.5 / 0.5)
    assert abs(np.mean(np.array(ints) <= 16) - expected) < 0.03 and min(ints) == 1 and max(ints) > 200


def test_numpy_numbers_become_plain_ones():
    assert type(Float(np.float64(0.5), np.float32(1)).low) is float and type(Int(np.int64(1), np.int32(4)).high) is int
    assert [type(option) for option in Choice([np.int64(1), np.float64(2.5), np.bool_(True)]).options] == [int, float, bool]
    assert Float(0, 1).contains(np.float32(0.5)) and Int(0, 4).contains(np.int64(3)) and Choice([3]).contains(np.int64(3))


def test_contains_is_strict_about_types():
    assert Float(0, 1).contains(1) and not Float(0, 1).contains(True) and not Float(0, 1).contains("0.5")
    assert not Float(0, 1).contains(math.nan) and not Float(0, 1).contains(None)
    assert not Int(0, 4).contains(3.0) and not Int(0, 4).contains(True) and not Int(0, 8, step=2).contains(3)
    assert Choice([True]).contains(True) and not Choice([True]).contains(1) and not Choice([1]).contains(True)
    assert Choice([1]).contains(1.0) and Choice([[1, 2]]).contains((1, 2)) and not Choice([1]).contains({})
    assert not Choice(["a"]).contains(np.array([1, 2]))


def test_largest_and_describe():
    assert (
        Float(1e-4, 1e-1, log=True).describe() == "1e-4..1e-1 log"
        and Float(1e-4, 0.25, log=True).describe() == "1e-4..2.5e-1 log"
    )
    assert Float(0, 0.2, step=0.05).describe() == "0..0.2 step 0.05"
    assert Int(16, 256, log=True).describe() == "16..256 log"
    assert Choice([16, "a", None, True]).describe() == "16, a, null, true"
    assert (Float(0, 2.5).largest(), Int(1, 7).largest(), Choice([3, 9, 4]).largest()) == (2.5, 7, 9)
    assert Choice(["a", 1]).largest() is None and Choice([True]).largest() is None
    assert Int(1, 5, when={"x": 1}, otherwise=8).largest() == 8
    assert BERT.describe()["frozen_layers"] == "1..5 with freeze = layers, else 0"


def test_parts_report_problems_and_do_not_raise():
    assert Float("a", None, log=1).problems() and Int(1.5, 2).problems() and Choice(None).problems() and Choice("ab").problems()
    assert Float(0, 1).problems() == Int(0, 1).problems() == Choice([1]).problems() == []
    with pytest.raises(TypeError):
        Float(0, 1, True)


@pytest.mark.parametrize(
    ("parameter", "says"),
    [
        (Float(1, 0), "low < high"),
        (Float(1, 1), r"Choice\(\[1\]\)"),
        (Float(0, 1, log=True), "low > 0"),
        (Float(math.nan, 1), "low to be a finite number"),
        (Float(0, math.inf), "high to be a finite number"),
        (Float(False, 1), "low to be a finite number, got False"),
        (Int(0, 1.5), "whole number, got 1.5"),
        (Int(0, True), "whole number, got True"),
        (Float(0, 1, step=0), "step to be a finite number > 0"),
        (Float(0, 1, step=0.3), r"whole number of steps.*high=0.9 or 1.2"),
        (Float(0, 1, step=2), "whole number of steps"),
        (Int(1, 10, step=2), r"high=9 or 11"),
        (Int(1, 9, step=2, log=True), "log or step, not both"),
        (Choice([]), "at least one option"),
        (Choice([1, 2, 1.0]), "1.0 twice"),
        (Choice({"a", "b"}), "list of options"),
        (Choice([math.nan]), "finite numbers, got nan"),
        (Choice([{"name": "adam", "lr": 1}]), "no nested option"),
        (Choice([[1, [2]]]), "no nested option"),
        (Choice([Float(0, 1)]), "no range inside an option"),
        (Choice([object]), "name it and look it up"),
        (Int(1, 2, otherwise=0), "otherwise only together with when"),
        (Int(1, 2, when={}), "dictionary such as"),
        (Int(1, 2, when="x"), "dictionary such as"),
        (Int(1, 2, when={"b": 1}, otherwise=math.nan), "otherwise to be a string"),
    ],
)
def test_a_bad_parameter_is_refused_with_the_reason(parameter, says):
    problem = one({"a": parameter, "b": Choice([1, 2])})
    assert problem.startswith("a: ")
    with pytest.raises(InvalidExperimentError, match=says):
        Space({"a": parameter, "b": Choice([1, 2])})


def test_all_problems_are_listed_at_once():
    found = problems(
        {
            "a": Float(1, 0),
            "b": Choice([]),
            "c": 32,
            "d": Int(1, 5, when={"optimiser": 1}),
            "": Int(1, 2),
            3: Int(1, 2),
            "optimizer": Choice(["sgd"]),
            "e": Int(1, 5, when={"optimizer": "adam"}),
            "f": Int(1, 5, when={"f": 1}),
            "g": Choice([1, 2], when={"h": 1}),
            "h": Choice([1, 2], when={"g": 1}),
            "i": Float(0.0, 1.0),
            "j": Int(1, 2, when={"i": 0.5}),
        },
        require=["a +", "b < batch", "optimizer.x"],
    )
    texts = [
        "a: Float needs low < high",
        "b: Choice needs at least one option",
        "c is the constant 32; put constants in train_loop_config or use Choice([32]).",
        "non-empty string, got ''",
        "non-empty string, got 3",
        "d is conditioned on 'optimiser'. No parameter is called 'optimiser'. Did you mean 'optimizer'?",
        "e is conditioned on optimizer = adam, which is outside optimizer's sgd.",
        "f is conditioned on itself.",
        "j is conditioned on i, which is continuous",
        "the conditions of g, h depend on each other in a circle.",
        "require 'a +' is not an expression: invalid syntax.",
        "require 'b < batch' names 'batch', which is no parameter.",
        "require 'optimizer.x' has 'optimizer.x'; allowed are",
    ]
    assert len(found) == len(texts)
    for text in texts:
        assert any(text in problem for problem in found), text


def test_an_empty_space_and_no_space():
    assert "parameters is empty" in one({})
    assert "needs a dictionary" in one([Float(0, 1)])
    assert "list of expressions" in one({"a": Int(1, 2)}, "a < 2")
    assert Space({"seed": Choice([1, 2])}).contains({"seed": 1})


# --- conditions -----------------------------------------------------------------------------------------------------


def test_an_off_parameter_is_absent_or_has_its_otherwise_value():
    rng = np.random.default_rng(0)
    for _ in range(200):
        config = BERT.sample(rng)
        assert list(config) == list(BERT.parameters)
        assert (config["frozen_layers"] == 0) == (config["freeze"] != "layers")
        config = CHAIN.sample(rng)
        assert ("nesterov" in config) == (config["optimizer"] == "sgd")
        assert ("damping" in config) == (config.get("nesterov") is True)


def test_any_of_several_values_and_all_of_several_parents():
    space = Space(
        {"a": Choice(["x", "y", "z"]), "n": Int(1, 3), "both": Choice([1], when={"a": ["x", "y"], "n": [2, 3]}),
         "lists": Choice([[1, 2], [3]]), "on_list": Choice([1], when={"lists": [[1, 2]]})}
    )  # fmt: skip
    for config in space.enumerate():
        assert ("both" in config) == (config["a"] in "xy" and config["n"] >= 2)
        assert ("on_list" in config) == (config["lists"] == [1, 2])
    found = problems({"lists": Choice([[1, 2]]), "b": Choice([1], when={"lists": [1, 2]})})
    assert len(found) == 2 and "b is conditioned on lists = 1, which is outside" in found[0], "a list means any of its entries"


def test_a_parent_that_is_off_switches_its_children_off():
    assert CHAIN.contains({"optimizer": "adam"})
    assert CHAIN.why_not({"optimizer": "adam", "damping": 0.5}) == [
        "damping = 0.5 is given but off: it counts only with nesterov = true."
    ]
    fixed = Space({"a": Choice([1, 2]), "b": Choice([5, 6], when={"a": 1}, otherwise=5), "c": Choice([7], when={"b": 5})})
    assert fixed.contains({"a": 2, "b": 5}) and not fixed.contains({"a": 2, "b": 5, "c": 7})
    assert fixed.contains({"a": 1, "b": 5, "c": 7})


def test_active_drops_and_fills():
    assert BERT.active({**GOOD, "frozen_layers": 3, "epochs": 2}) == {**GOOD, "epochs": 2}
    assert CHAIN.active({"optimizer": "adam", "nesterov": True, "damping": 0.1}) == {"optimizer": "adam"}
    given = {"optimizer": "adam", "nesterov": True}
    CHAIN.active(given)
    assert given == {"optimizer": "adam", "nesterov": True}, "the argument is not changed"


def test_complete_takes_the_spaces_own_part():
    defaults = {
        "epochs": 20,
        "lr": 1e-4,
        "warmup_ratio": 0,
        "batch_size": 16,
        "accumulate": 1,
        "freeze": "none",
        "frozen_layers": 3,
    }
    config = BERT.complete(defaults)
    assert config == {**GOOD, "accumulate": 1, "warmup_ratio": 0.0} and type(config["warmup_ratio"]) is float
    assert list(config) == list(BERT.parameters)
    assert BERT.complete({"lr": np.float64(1e-4), "freeze": "layers"}) == {"lr": 1e-4, "freeze": "layers"}


# --- membership -----------------------------------------------------------------------------------------------------


def test_why_not_names_every_problem():
    assert BERT.why_not(GOOD) == [] and BERT.contains(GOOD)
    assert BERT.why_not({**GOOD, "lr": 1, "batch_sise": 3}) == [
        "batch_sise is not a parameter of the space. Did you mean 'batch_size'? Known: lr, warmup_ratio, batch_size, "
        "accumulate, freeze, frozen_layers.",
        "lr = 1 is outside 1e-5..3e-4 log.",
    ]
    assert BERT.why_not({**GOOD, "batch_size": 32}) == [
        "accumulate = 2, batch_size = 32 breaks 'batch_size * accumulate <= 32'."
    ]
    assert BERT.why_not({**GOOD, "frozen_layers": 2}) == [
        "frozen_layers = 2 is given but off, where it is 0: it counts only with freeze = layers."
    ]
    assert BERT.why_not({**GOOD, "freeze": "layers"}) == ["frozen_layers = 0 is outside 1..5."]
    missing = {name: value for name, value in GOOD.items() if name != "freeze"}
    assert BERT.why_not(missing) == ["freeze is missing; it takes none, embeddings, layers."], "the child is not the problem"
    without = {name: value for name, value in GOOD.items() if name != "frozen_layers"}
    assert len(BERT.why_not(without)) == 1 and "frozen_layers is missing" in BERT.why_not(without)[0]


def test_baseline_problems():
    defaults = {"epochs": 3, "batch_size": 16, "accumulate": 1, "warmup_ratio": 0.1, "freeze": "layers", "frozen_layers": 2}
    assert BERT.baseline_problems({"lr": 1e-4}, defaults) == []
    assert BERT.baseline_problems({"lr": 1e-4, "freeze": "none"}, defaults) == [], (
        "what defaults say of an off parameter is dropped"
    )
    (off,) = BERT.baseline_problems({"lr": 1e-4, "freeze": "none", "frozen_layers": 2}, defaults)
    assert off.startswith("baseline: frozen_layers = 2 is given but off")
    assert BERT.baseline_problems({}, defaults) == [
        "baseline: lr is missing, in the baseline and in train_loop_config; it takes 1e-5..3e-4 log."
    ]
    found = BERT.baseline_problems({"lr": 5, "batch": 3}, defaults)
    assert len(found) == 2 and all(problem.startswith("baseline: ") for problem in found)
    assert BERT.baseline_problems([1], {}) == ["baseline needs a dictionary of parameter -> value, got [1]."]


# --- counting and order ---------------------------------------------------------------------------------------------


def test_enumeration_and_count_agree_with_brute_force():
    space = Space(
        {"a": Int(1, 4), "b": Choice([1, 2, 3], when={"a": [2, 3]}), "c": Float(0.0, 1.0, step=0.5)},
        ["a * b <= 6", "c < 1 or a == 1"],
    )
    expected = []
    for a in (1, 2, 3, 4):
        for b in (1, 2, 3) if a in (2, 3) else (None,):
            for c in (0.0, 0.5, 1.0):
                if (b is None or a * b <= 6) and (c < 1 or a == 1):
                    expected.append({"a": a, **({} if b is None else {"b": b}), "c": c})
    assert list(space.enumerate()) == expected
    assert space.count() == len(expected)
    assert all(space.contains(config) for config in expected)
    assert len({space.key(config) for config in expected}) == len(expected)


def test_counts_without_listing_where_nothing_depends():
    assert Space({"a": Int(1, 10**6), "b": Int(1, 10**6)}).count() == 10**12
    assert Space({"a": Int(1, 10**6), "b": Int(1, 10**6)}, ["a < b"]).count() is None
    assert Space({"a": Float(0, 1)}).count() is None
    assert BERT.count() is None
    with pytest.raises(InvalidExperimentError, match="lr is continuous"):
        BERT.enumerate()
    assert len({BERT.key(config) for config in BERT.enumerate(points=2)}) == 2 * 5 * 5 * 7


def test_keys_identify_configurations():
    assert BERT.key(GOOD) == BERT.key({**dict(reversed(GOOD.items())), "warmup_ratio": 0.1, "batch_size": 16.0, "epochs": 9})
    assert BERT.key(GOOD) != BERT.key({**GOOD, "batch_size": 8})
    space = Space({"a": Choice([True, 1, "1", None])})
    assert len({space.key(config) for config in space.enumerate()}) == 4


# --- constraints ----------------------------------------------------------------------------------------------------

CONFIG = {"a": 3, "b": 4.0, "s": "sgd", "t": True, "n": None}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("a * b <= 12", True),
        ("a * b < 12", False),
        ("1 < a < b", True),
        ("1 < a > b", False),
        ("a + b - 1 == 6 and b / 2 == 2 and b // 3 == 1 and a % 2 == 1 and a ** 2 == 9 and -a < +a", True),
        ("s in ('adam', 'sgd')", True),
        ("s not in ['adam', 'sgd']", False),
        ("a in [1, b - 1]", True),
        ("s == 'sgd' or a < 0", True),
        ("not (s == 'sgd' and t)", False),
        ("t", True),
        ("not t", False),
        ("t == 1", False),
        ("n == None", True),
        ("min(a, b) == 3 and max(a, b, 9) == 9 and abs(a - b) == 1", True),
        ("a / 0 < 1", False),
        ("a % 0 == 0", False),
        ("b ** 1000 > 0", False),
        ("((((a))))>2", True),
        ("(a - b) ** 0.5 < 1", False),
        ("s < 3", False),
        ("missing > 3", True),
        ("missing > 3 and a < 0", True),
    ],
)
def test_constraints(text, holds):
    rule = Constraint(text)
    assert rule.problems([*CONFIG, "missing"]) == []
    assert rule.holds(CONFIG) is holds
    assert pickle.loads(pickle.dumps(rule)).holds(CONFIG) is holds


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')", "a.b < 1", "a[0] < 1", "lambda: 1", "[a for a in [1]]", "open('x')",
        "f'{a}' == ''", "a if a else a", "a := 1", "min(*[1, 2]) < 1", "max(a, a, key=abs) < 1", "max(a, a, default=a) < 1",
        "min() < 1", "min(a) < 1", "abs(a, a) < 1", "a is None", "a in s",
        "a @ a", "a & 1", "~a < 1", "{1: 2}", "b'x' == a", "1j < 2", "... < 1", "a <", "a; a", "", "   ", 3, None, "1e999 < a",
        "a\0", "(" * 500, "1+" * 600 + "1 < a",
    ],
    ids=lambda text: repr(text)[:30],
)  # fmt: skip
def test_anything_else_in_a_constraint_is_refused(text):
    found = Constraint(text).problems(CONFIG)
    assert found and all(problem.startswith("require ") for problem in found)
    assert problems({"a": Int(1, 2), "s": Choice(["x"])}, [text])


def test_strings_cannot_be_multiplied_nor_numbers_blown_up():
    assert not Constraint("s * 1000000000 == s").holds(CONFIG)
    assert not Constraint("9 ** 9 ** 9 > a").holds(CONFIG)
    assert Constraint("2 ** 64 > a").holds(CONFIG)


def test_a_constraint_that_cannot_be_decided_is_refused():
    parameters = {"opt": Choice(["x", "y"]), "n": Int(1, 3)}
    assert "cannot be decided: 'x' is not a number" in one(parameters, ["opt < 3"]).replace("'y'", "'x'")
    assert "is neither true nor false" in one(parameters, ["n + 1"])
    Space(parameters, ["opt == 'x' or n < 3"])


def test_an_impossible_constraint_says_so():
    rng = np.random.default_rng(0)
    with pytest.raises(InvalidExperimentError, match=r"no configuration meets require 'a > 5'; widen"):
        Space({"a": Int(1, 5)}, ["a > 5"]).sample(rng)
    with pytest.raises(InvalidExperimentError, match=r"none of 10,000 random configurations meets require 'a > 5'"):
        Space({"a": Float(1, 5)}, ["a > 5"]).sample(rng)
    rare = Space({"a": Int(1, 300), "b": Int(1, 300)}, ["a + b >= 600"])
    assert rare.sample(rng) == {"a": 300, "b": 300}, "a finite space is searched through"


# --- other spaces ---------------------------------------------------------------------------------------------------


def test_or_overrides_adds_and_pins():
    space = BERT | {"lr": Float(1e-5, 1e-4, log=True), "extra": Int(1, 2), "accumulate": 1}
    assert space.parameters["lr"].high == 1e-4 and "extra" in space.parameters
    assert space.parameters["accumulate"] == Choice([1]) and space.require == BERT.require
    assert list(space.parameters)[:6] == list(BERT.parameters) and BERT.parameters["lr"].high == 3e-4
    kept = BERT | {"frozen_layers": 3}
    assert kept.parameters["frozen_layers"] == Choice([3], when={"freeze": "layers"}, otherwise=0)
    with pytest.raises(InvalidExperimentError, match="low < high"):
        BERT | {"lr": Float(1, 0)}
    with pytest.raises(InvalidExperimentError, match="outside freeze's"):
        BERT | {"frozen_layers": Int(1, 5, when={"freeze": "layer"})}


def test_pinning_a_parent_settles_its_children():
    assert BERT.pin("freeze", "none").parameters["frozen_layers"] == Choice([0])
    assert BERT.pin("freeze", "layers").parameters["frozen_layers"] == BERT.parameters["frozen_layers"]
    assert list(CHAIN.pin("optimizer", "adam").parameters) == ["optimizer"]
    ruled = Space(dict(CHAIN.parameters), ["damping < 0.5"])
    assert ruled.pin("optimizer", "adam").require == () and ruled.pin("nesterov", True).require == ("damping < 0.5",)
    several = Space({"o": Choice(["a", "b", "c"]), "x": Int(1, 2, when={"o": ["a", "b"]})}) | {"o": Choice(["b", "c"])}
    assert several.parameters["x"].when == {"o": ["b"]}
    rng = np.random.default_rng(0)
    for space in (BERT.pin("freeze", "none"), CHAIN.pin("optimizer", "adam"), CHAIN.pin("nesterov", False)):
        for _ in range(50):
            config = space.sample(rng)
            assert space.contains(config)
    original = BERT.pin("freeze", "none").sample(rng)
    assert BERT.contains(original), "a narrowed space is part of the original one"


def test_pin_refuses_unknown_names_and_values_outside():
    with pytest.raises(UnknownNameError, match="Did you mean 'batch_size'"):
        BERT.pin("batch_sise", 3)
    with pytest.raises(InvalidExperimentError, match="5 is outside 8, 16, 32"):
        BERT.pin("batch_size", 5)
    assert BERT.pin("lr", np.float64(1e-4)).parameters["lr"] == Choice([1e-4])
    assert Space({"x": Float(0, 2)}).pin("x", 1).parameters["x"].options == (1.0,)


@pytest.mark.parametrize(
    "space", [BERT, CHAIN, Space({"a": Choice([[1, 2], [3]]), "b": Int(1, 9, step=2)})], ids=["bert", "chain", "lists"]
)
def test_json_round_trip(space):
    text = json.dumps(space.to_json(), sort_keys=True)
    again = Space.from_json(json.loads(text))
    assert again == space and list(again.parameters) == list(space.parameters)
    a, b = (s.sample(np.random.default_rng(7)) for s in (space, again))
    assert a == b
    assert pickle.loads(pickle.dumps(space)) == space


def test_absent_stays_itself_when_pickled():
    assert pickle.loads(pickle.dumps(ABSENT)) is ABSENT
    assert pickle.loads(pickle.dumps(Int(1, 2))).otherwise is ABSENT


# --- other libraries ------------------------------------------------------------------------------------------------


def test_describing_a_space_loads_no_framework():
    code = (
        "import sys\nfrom tunelab.core.space import *\nSpace({'a': Int(1, 2)})\n"
        "print([name for name in ('ray', 'optuna', 'numpy') if name in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"


RAY = "ray.tune.search.sample"


def fake(name, sampler, **attributes):
    """A stand-in for a Ray domain: what is looked at is its class, bounds and sampler."""
    domain = type(name, (), {"__module__": RAY, "get_sampler": lambda self: sampler})()
    vars(domain).update(attributes)
    return domain


def sampler(name, **attributes):
    made = type(name, (), {"__module__": RAY})()
    vars(made).update(attributes)
    return made


UNIFORM, LOG, NORMAL = sampler("_Uniform"), sampler("_LogUniform"), sampler("_Normal")


def stepped(inner, q):
    return sampler("Quantized", sampler=inner, q=q)


@pytest.mark.parametrize(
    ("domain", "ours"),
    [
        (fake("Float", UNIFORM, lower=0.1, upper=0.9), Float(0.1, 0.9)),
        (fake("Float", LOG, lower=1e-5, upper=0.1), Float(1e-5, 0.1, log=True)),
        (fake("Float", stepped(UNIFORM, 0.05), lower=0.0, upper=0.2), Float(0.0, 0.2, step=0.05)),
        (fake("Integer", UNIFORM, lower=1, upper=10), Int(1, 9)),
        (fake("Integer", UNIFORM, lower=1, upper=2), Choice([1])),
        (fake("Integer", LOG, lower=1, upper=100), Int(1, 99, log=True)),
        (fake("Integer", stepped(UNIFORM, 4), lower=3, upper=17), Int(4, 16, step=4)),
        (fake("Integer", stepped(UNIFORM, 1), lower=1, upper=10), Int(1, 9)),
        (fake("Categorical", UNIFORM, categories=[16, 32]), Choice([16, 32])),
        ({"grid_search": [1, 2]}, Choice([1, 2])),
    ],
)
def test_flat_ray_domains_are_taken_over(domain, ours):
    assert Space({"x": domain}).parameters["x"] == ours


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (fake("Float", NORMAL, lower=-math.inf, upper=math.inf), "normal distribution, which has no bounds"),
        (fake("Float", stepped(NORMAL, 0.1), lower=-math.inf, upper=math.inf), "normal distribution"),
        (fake("Float", stepped(LOG, 0.1), lower=0.1, upper=1.0), "quantised on a logarithmic scale"),
        (fake("Function", sampler("_CallSampler")), "sample_from"),
        (Choice([fake("Float", UNIFORM, lower=0, upper=1)]), "would reach the training loop unresolved"),
        (fake("Categorical", UNIFORM, categories=[{"name": "adam"}]), "no nested option"),
        (32, r"put constants in train_loop_config or use Choice\(\[32\]\)"),
        ("adam", "is the constant 'adam'"),
        (None, "is the constant None"),
        (math.nan, "is the constant nan"),
        ([1, 2], r"write Choice\(\[...\]\) for options"),
        ((0.1, 0.2), r"Float\(low, high\)"),
        ({"inner": Float(0, 1)}, "spaces are flat"),
        (Float, "is the class Float"),
        (lambda: 3, "not a parameter"),
    ],
)
def test_what_is_foreign_is_refused_with_the_reason(value, says):
    with pytest.raises(InvalidExperimentError, match=says):
        Space({"x": value})


def test_optuna_distributions_are_refused():
    optuna = pytest.importorskip("optuna")
    assert "is optuna's FloatDistribution" in one({"x": optuna.distributions.FloatDistribution(0, 1)})
