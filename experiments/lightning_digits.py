"""Tunes a small convolutional network in Lightning, on two workers, on scikit-learn's digits:

    tunelab sweep experiments/lightning_digits.py

An epoch takes well under a second. With `pytorch_lightning` in place of `lightning.pytorch` it runs as well, unless `lightning`
is installed beside it.
"""

from pathlib import Path

import lightning.pytorch as pl
import ray.train
import torch
from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, prepare_trainer
from ray.train.torch import TorchTrainer
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from search_spaces import small_conv_net
from tunelab import ASHA, TPE, Budget, Experiment, Export, Objective
from tunelab.integrations.lightning import ReportCallback


def split():
    """x_train, x_val, y_train, y_val: 1,347 and 450 images of 1 x 8 x 8, the same in every trial and whatever its seed."""
    x, y = load_digits(return_X_y=True)
    x = torch.tensor(x / 16).float().reshape(-1, 1, 8, 8)
    return train_test_split(x, torch.tensor(y), test_size=0.25, random_state=0)


class Digits(pl.LightningModule):
    def __init__(self, channels, dropout, lr, weight_decay):
        super().__init__()
        self.lr, self.weight_decay = lr, weight_decay
        self.net = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(2 * channels * 16, 10),
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        logits = self(x)
        self.log("accuracy", (logits.argmax(1) == y).float().mean(), sync_dist=True)
        self.log("loss", nn.functional.cross_entropy(logits, y), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=self.weight_decay)


def build(config):
    return Digits(config["channels"], config["dropout"], config["lr"], config["weight_decay"])


def loaders(config):
    """Lightning gives each worker its share of the rows; `batch_size` is each worker's."""
    x_train, x_val, y_train, y_val = split()
    train = DataLoader(TensorDataset(x_train, y_train), config["batch_size"], shuffle=True)
    return train, DataLoader(TensorDataset(x_val, y_val), 225)


def train(config):
    """Lightning's usual script. What Ray Train adds: strategy, environment, the report callback, the restart at the end."""
    trainer = prepare_trainer(
        pl.Trainer(
            max_epochs=config["epochs"],
            accelerator="auto",
            devices="auto",
            strategy=RayDDPStrategy(),
            plugins=[RayLightningEnvironment()],
            callbacks=[ReportCallback()],
            enable_checkpointing=False,  # the reports bring the checkpoints
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
    )
    model, (train_loader, val_loader) = build(config), loaders(config)
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            trainer.fit(model, train_loader, val_loader, ckpt_path=Path(folder, ReportCallback.CHECKPOINT_NAME))
    else:
        trainer.fit(model, train_loader, val_loader)


experiment = Experiment(
    name="lightning-digits",
    seed=0,
    trainer=TorchTrainer(
        train,
        train_loop_config={"epochs": 8},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
    ),
    space=small_conv_net(),
    baseline={"lr": 1e-3, "weight_decay": 0.01, "channels": 8, "dropout": 0.0, "batch_size": 32},
    objective=Objective("accuracy", mode="max", step="epoch", last_step="epochs"),
    searcher=TPE(),
    scheduler=ASHA(first_rung=1, reduction=3),
    budget=Budget(trials=16, time_s=600),
    export=Export(
        build=build,
        example=lambda: split()[1][:8].numpy(),
        predict=lambda model, x: model(x).argmax(1),
    ),
)
