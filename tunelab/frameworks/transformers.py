"""Hugging Face Transformers: checkpoints describe themselves, exported models are text-classification pipelines.

A checkpoint is what `save_pretrained` writes: config.json, model.safetensors and the tokenizer's files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from tunelab.core.experiment import Export
from tunelab.core.protocols import Saved
from tunelab.core.trial import Config
from tunelab.errors import BadInputError
from tunelab.frameworks.base import Base, has_hooks
from tunelab.frameworks.carry import pinned, quiet

TASK = "text-classification"


class Transformers(Base):
    """Sequence classification (and regression with one label) from texts or pairs of texts."""

    name = "transformers"
    libraries: ClassVar[tuple[str, ...]] = ("transformers", "accelerate")

    def remember(self) -> None:
        global _clean_logging
        if _clean_logging is None and "transformers" in sys.modules:
            _clean_logging = _logging_settings()

    def reset(self) -> str | None:
        """Verbosity and progress bars as they were, DeepSpeed's configuration forgotten, and Accelerate's singletons emptied:
        they hold the last trial's device, rank, precision and plugins, and an `Accelerator` with others is refused.

        What `enable_full_determinism` sets are torch's flags and environment variables.
        """
        if "transformers" in sys.modules:
            from transformers.utils import logging

            verbosity, bars = _clean_logging or (logging._get_default_logging_level(), True)
            logging.set_verbosity(verbosity)
            if logging.is_progress_bar_enabled() != bars:
                (logging.enable_progress_bar if bars else logging.disable_progress_bar)()
            if "transformers.integrations.deepspeed" in sys.modules:
                sys.modules["transformers.integrations.deepspeed"].unset_hf_deepspeed_config()
        if "accelerate.state" in sys.modules:
            state = sys.modules["accelerate.state"]
            state.AcceleratorState._reset_state(reset_partial_state=True)
            state.GradientState._reset_state()
        return None

    def reads(self, checkpoint: Path, hooks: Export | None) -> bool:
        """Weights in safetensors next to a config.json that names the architecture, as `save_pretrained` writes them."""
        if has_hooks(hooks):
            return False
        if not any((checkpoint / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
            return False
        try:
            config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return isinstance(config, Mapping) and bool(config.get("architectures")) and "model_type" in config

    def load(self, checkpoint: Path, config: Config, hooks: Export) -> Any:
        """The pipeline of the checkpoint. Reads safetensors only, asks no server and trusts no code.

        Raises:
            BadInputError: Another task than sequence classification, no tokenizer, or a `predict` hook.
        """
        from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

        described = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        architecture = described["architectures"][0]
        if not architecture.endswith("ForSequenceClassification"):
            raise BadInputError(
                f"The checkpoint holds a {architecture}; only sequence classification is exported without code of yours. "
                "Give Export(load=..., predict=...)."
            )
        if hooks.predict is not None:
            raise BadInputError(
                "A Transformers checkpoint predicts through its own pipeline, which Export.predict cannot change. Leave "
                "predict out, or give load as well: Export(load=..., predict=...)."
            )
        if not (checkpoint / "tokenizer_config.json").is_file():
            raise BadInputError(
                "The checkpoint has no tokenizer. Save it with every checkpoint: Trainer(processing_class=tokenizer), or "
                "tokenizer.save_pretrained(folder)."
            )
        safe: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        with _no_progress_bars():
            tokenizer = AutoTokenizer.from_pretrained(checkpoint, **safe)
            model = AutoModelForSequenceClassification.from_pretrained(checkpoint, use_safetensors=True, **safe)
        # A tokenizer that knows no limit would hand the model texts longer than it has positions for.
        tokenizer.model_max_length = min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", 10**30))
        return pipeline(TASK, model=model.eval(), tokenizer=tokenizer, device="cpu")

    def predict(self, model: Any, inputs: Any, hooks: Export) -> Any:
        """A DataFrame with `label` and `score`, as MLflow gives it: of each row the most likely label."""
        import pandas as pd

        return pd.DataFrame(model(list(inputs), truncation=True))

    def save(
        self,
        model: Any,
        folder: Path,
        *,
        inputs: Any,
        outputs: Any,
        hooks: Export,
        checkpoint: Path,
        config: Config,
        title: str,
    ) -> Saved:
        import mlflow.transformers
        from mlflow.models import Model, ModelSignature
        from mlflow.types.schema import ColSpec, Schema

        pair = isinstance(inputs[0], dict)
        columns = [ColSpec("string", name) for name in inputs[0]] if pair else [ColSpec("string")]
        output = Schema([ColSpec("string", "label"), ColSpec("double", "score")])
        # MLflow asks the hub for the card and the licence of a model of this name. It cannot, of a name with a blank.
        name = f"trial {title}"
        model.model.name_or_path = model.model.config._name_or_path = name
        with quiet(), _no_progress_bars():
            mlflow.transformers.save_model(
                model,
                str(folder),
                task=TASK,
                signature=ModelSignature(Schema(columns), output),
                input_example=inputs,
                pip_requirements=pinned("mlflow", "numpy", "safetensors", "tokenizers", "torch", "transformers"),
                model_config={"truncation": True},
            )
        (folder / "LICENSE.txt").unlink(missing_ok=True)  # it only says that the hub has none
        described = Model.load(str(folder))
        described.flavors["transformers"]["source_model_name"] = title
        described.save(str(folder / "MLmodel"))
        return Saved(flavor="transformers", format="safetensors", runs_code=False)

    @staticmethod
    def default_example() -> list[str]:
        """Inputs to prove a checkpoint on when the experiment gives none."""
        return ["A short sentence.", "Another one, which is a little longer than the first.", "nothing to see here", "!"]


_clean_logging: tuple[int, bool] | None = None  # what `remember` found in this process


def _logging_settings() -> tuple[int, bool]:
    from transformers.utils import logging

    return logging.get_verbosity(), logging.is_progress_bar_enabled()


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
