"""What `tunelab predict` accepts as rows, and how it refuses the rest. No framework is imported."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tunelab.errors import BadInputError
from tunelab.export.predict import predict_file
from tunelab.export.prove import TOLERANCE, compare, rows
from tunelab.export.rows import Inputs, canonical, check, read

NUMBERS = Inputs("array", dtype="float32", shape=(3,))
TEXTS = Inputs("text", columns=("text",))
PAIRS = Inputs("text", columns=("text", "text_pair"))
TABLE = Inputs("table", columns=("age", "city", "n"), types=("number", "text", "integer"))


ROOT = Path(__file__).parents[2]


def written(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def values(path, inputs):
    return [row for _, row in read(path, inputs)]


@pytest.mark.parametrize(
    ("inputs", "name", "text", "expected"),
    [
        (NUMBERS, "a.csv", "0,1,2\n1,2,3\n4,5,6.5\n", [[1, 2, 3], [4, 5, 6.5]]),
        (NUMBERS, "any_header.csv", "x,y,z\n1,2,3\n", [[1, 2, 3]]),
        (NUMBERS, "numbered_in_another_order.csv", "2,0,1\n30,10,20\n", [[10, 20, 30]]),
        (NUMBERS, "byte_order_mark.csv", "\ufeffx,y,z\r\n1,2,3\r\n\r\n", [[1, 2, 3]]),
        (NUMBERS, "a.jsonl", '[1, 2, 3]\n\n{"2": 3, "0": 1, "1": 2}\n', [[1, 2, 3], [1, 2, 3]]),
        (NUMBERS, "named.jsonl", '{"x": 1, "y": 2, "z": 3}\n{"z": 3, "y": 2, "x": 1}\n', [[1, 2, 3], [1, 2, 3]]),
        (Inputs("array", dtype="int64", shape=(2, 2)), "nested.jsonl", "[[1, 2], [3, 4.0]]\n", [[1, 2, 3, 4]]),
        (Inputs("array", dtype="float64", shape=()), "scalars.jsonl", "1.5\n2\n", [[1.5], [2]]),
        (TEXTS, "a.csv", 'id,text\n1,"so, ""good"""\n2,NaN\n', ['so, "good"', "NaN"]),
        (TEXTS, "one_column.csv", "sentence\nfine\n", ["fine"]),
        (TEXTS, "long.csv", "text\n" + "x" * 200_000 + "\n", ["x" * 200_000]),
        (TEXTS, "a.jsonl", '"é"\n{"text": "b", "id": 1}\n["c"]\n', ["é", "b", "c"]),
        (PAIRS, "a.csv", "text_pair,text\nb,a\n", [{"text": "a", "text_pair": "b"}]),
        (PAIRS, "a.jsonl", '["a", "b"]\n', [{"text": "a", "text_pair": "b"}]),
        (TABLE, "a.csv", "city,n,age,label\nRome,3,1.5,9\n", [{"age": 1.5, "city": "Rome", "n": 3}]),
        (Inputs("json"), "a.jsonl", '{"any": [1, null]}\n', [{"any": [1, None]}]),
    ],
)
def test_rows_are_read(tmp_path, inputs, name, text, expected):
    path = written(tmp_path, name, text)
    assert values(path, inputs) == expected
    assert check(path, inputs) == len(expected)


def test_a_gap_in_a_table_is_nan_and_a_gap_among_numbers_is_refused(tmp_path):
    assert np.isnan(values(written(tmp_path, "t.csv", "age,city,n\n,Rome,3\n"), TABLE)[0]["age"])
    with pytest.raises(BadInputError, match="column 1 is ''"):
        check(written(tmp_path, "n.csv", "a,b,c\n1,,3\n"), NUMBERS)


def test_all_bad_rows_are_named_at_once(tmp_path):
    path = written(tmp_path, "a.csv", "a,b,c\n1,2,3\n1,2\n1,x,3\n1,2,3\nnan,2,inf\n1,2,1e300\n")
    with pytest.raises(BadInputError) as refused:
        check(path, NUMBERS)
    text = str(refused.value)
    assert text.startswith(f"4 of 6 rows of {path} do not fit the model, which takes rows of 3 numbers (float32):")
    assert [line.split(":")[0].strip() for line in text.splitlines()[1:]] == [
        "row 1 (line 3)",
        "row 2 (line 4)",
        "row 4 (line 6)",
        "row 5 (line 7)",
    ]
    assert "2 columns, the header has 3" in text
    assert "column 1 is 'x'" in text
    assert "column 0 is 'nan', column 2 is 'inf'" in text


def test_many_bad_rows_are_counted_not_listed(tmp_path):
    with pytest.raises(BadInputError, match=r"(?s)^990 of 990 rows.*and 980 more$"):
        check(written(tmp_path, "a.csv", "a,b,c\n" + "?,?,?\n" * 990), NUMBERS)


@pytest.mark.parametrize(
    ("inputs", "name", "text", "message"),
    [
        (NUMBERS, "a.txt", "1,2,3", "ends in .csv or .jsonl"),
        (NUMBERS, "empty.csv", "", "its first line must be a header"),
        (NUMBERS, "only_a_header.csv", "a,b,c\n", "has no rows"),
        (NUMBERS, "narrow.csv", "a,b\n1,2\n", "has 2 columns; the model takes rows of 3 numbers"),
        (NUMBERS, "twice.csv", "a,a,b\n1,2,3\n", "columns 'a' more than once"),
        (NUMBERS, "no_header.csv", "0.5,0.1,0.2\n1,2,3\n", "would be taken for the header"),
        (NUMBERS, "a.jsonl", "[1, 2, true]\n", "column 2 is 'True'"),
        (NUMBERS, "text.jsonl", '["1", 2, 3]\n', "column 0 is '1'"),
        (NUMBERS, "broken.jsonl", "[1, 2\n", r"row 0 \(line 1\): not JSON"),
        (NUMBERS, "names.jsonl", '{"x": 1, "y": 2, "z": 3}\n{"x": 1, "y": 2, "w": 3}\n', r"row 1 .* has the names x, y, w"),
        (Inputs("array", dtype="int64", shape=(2,)), "half.csv", "a,b\n1,1.5\n", "column 1 is '1.5'"),
        (Inputs("array", dtype="uint8", shape=(2,)), "range.csv", "a,b\n1,256\n", "column 1 is '256'"),
        (TEXTS, "other.csv", "id,body\n1,a\n", "lacks the columns 'text'. It has: id, body"),
        (TEXTS, "blank.csv", "id,text\n1,  \n", "text is '  ': not a text"),
        (TEXTS, "nan.jsonl", "NaN\n", "text is 'nan': not a text"),
        (TEXTS, "missing.jsonl", '{"body": "a"}\n', "lacks text"),
        (TEXTS, "quote.csv", 'text\n"a" b\n', "line 2"),
        (PAIRS, "single.csv", "text\na\n", "lacks the columns 'text_pair'"),
        (TABLE, "type.csv", "age,city,n\nold,Rome,3\n", "age is 'old': of another type"),
        (Inputs("json"), "a.csv", "a\n1\n", "give a .jsonl file"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, inputs, name, text, message):
    with pytest.raises(BadInputError, match=message):
        check(written(tmp_path, name, text), inputs)


def test_bytes_that_are_not_utf8_are_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"text\n\xff\xfe\n")
    with pytest.raises(BadInputError, match="not UTF-8"):
        check(tmp_path / "a.csv", TEXTS)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(BadInputError, match="There is no file"):
        check(tmp_path / "a.csv", NUMBERS)


@pytest.mark.parametrize("held", [None, {}, {"MLmodel": ""}, {"card.json": "{}", "MLmodel": ""}, {"card.json": "no"}])
def test_a_folder_that_is_not_an_exported_model_is_refused(tmp_path, held):
    folder = tmp_path / "model"
    if held is not None:
        folder.mkdir()
        for name, text in held.items():
            written(folder, name, text)
    with pytest.raises(BadInputError, match=r"not an exported model|no folder"):
        predict_file(folder, tmp_path / "a.csv")


def test_bad_rows_are_refused_before_the_model_is_loaded(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    written(folder, "MLmodel", "not a model: loading it would fail otherwise")
    card = {
        "card": 1,
        "runs_code": False,
        "input": {"kind": "array", "dtype": "float32", "shape": [3], "columns": [], "types": []},
    }
    written(folder, "card.json", json.dumps(card))
    with pytest.raises(BadInputError, match="1 of 1 rows"):
        predict_file(folder, written(tmp_path, "a.csv", "a,b,c\n1,2,?\n"))


@pytest.mark.parametrize(
    ("example", "kind", "columns"),
    [
        (np.zeros((2, 3), "float32"), "array", ()),
        (["a", "b"], "text", ("text",)),
        (np.array(["a", "b"]), "text", ("text",)),
        (pd.Series(["a", "b"]), "text", ("text",)),
        ([("a", "b")], "text", ("text", "text_pair")),
        ([{"text": "a", "text_pair": "b"}], "text", ("text", "text_pair")),
        (pd.DataFrame({"x": [1.0], "y": ["a"]}), "table", ("x", "y")),
        ([{"q": 1}], "json", ()),
    ],
)
def test_an_example_is_recognised(example, kind, columns):
    _, inputs = canonical(example)
    assert (inputs.kind, inputs.columns) == (kind, columns)


@pytest.mark.parametrize("example", [[], np.zeros((0, 3)), pd.DataFrame({"x": []})])
def test_an_example_without_rows_is_refused(example):
    with pytest.raises(BadInputError, match="returned no rows"):
        canonical(example)


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        (np.array([1, 2]), [{"prediction": 1}, {"prediction": 2}]),
        (np.array([[0.5, 1.5]], "float32"), [{"prediction": [0.5, 1.5]}]),
        (["a"], [{"prediction": "a"}]),
        (pd.DataFrame({"label": ["a"], "score": [0.5]}), [{"prediction": "a", "score": 0.5}]),
        (pd.DataFrame({"p": [np.int64(3)]}), [{"prediction": 3}]),
        (pd.DataFrame({"a": [1], "b": [2]}), [{"prediction": {"a": 1, "b": 2}}]),
        ({"a": np.array([1]), "b": [2]}, [{"prediction": {"a": 1, "b": 2}}]),
    ],
)
def test_predictions_of_any_shape_become_rows_of_json(outputs, expected):
    found = rows(outputs)
    assert found == expected
    assert json.loads(json.dumps(found)) == expected


@pytest.mark.parametrize(
    ("expected", "found", "equal"),
    [
        (1.0, 1.0 + TOLERANCE / 2, True),
        (1.0, 1.0 + TOLERANCE * 2, False),
        (1e6, 1e6 + 1.0, True),  # relative above 1
        (float("nan"), float("nan"), True),
        (1.0, float("nan"), False),
        (float("inf"), float("inf"), True),
        (3, 3, True),
        (3, 4, False),
        (3, 3.0, False),
        ("a", "a", True),
        ("a", "b", False),
        (True, 1, False),
        ([1.0, 2.0], [1.0], False),
        ({"a": 1.0}, {"b": 1.0}, False),
        ({"prediction": "a", "score": 0.5}, {"prediction": "a", "score": 0.5 + 1e-7}, True),
    ],
)
def test_labels_must_be_equal_and_numbers_close(expected, found, equal):
    assert compare(expected, found)[0] is equal


def test_the_largest_difference_is_told():
    assert compare([1.0, {"a": 2.0}], [1.5, {"a": 2.25}]) == (False, 0.5)


def test_reading_input_imports_no_framework():
    code = "import sys, tunelab.export.rows, tunelab.export.predict, tunelab.export.deliver, tunelab.frameworks\n"
    code += "print([name for name in ('torch', 'transformers', 'mlflow', 'ray', 'pandas') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
