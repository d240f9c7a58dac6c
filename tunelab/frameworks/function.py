"""Anything with a `load` hook: exported as MLflow's `python_function`, the checkpoint beside the user's code.

The checkpoint is copied as it is; `load` and `predict` travel by value, so the experiment's file is not needed where the
model is used. What they import must be installed there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunelab.core.experiment import Export
from tunelab.core.protocols import Saved
from tunelab.core.trial import Config
from tunelab.errors import BadInputError
from tunelab.frameworks.base import Base
from tunelab.frameworks.carry import local_code_by_value, pinned, quiet


class Function(Base):
    """Models of any kind: what `Export.load` returns, called by `Export.predict`."""

    name = "function"

    def reads(self, checkpoint: Path, hooks: Export | None) -> bool:
        return hooks is not None and hooks.load is not None

    def load(self, checkpoint: Path, config: Config, hooks: Export) -> Any:
        assert hooks.load is not None
        return hooks.load(checkpoint, dict(config))

    def predict(self, model: Any, inputs: Any, hooks: Export) -> Any:
        return predictions(model, inputs, hooks.predict)

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
        import mlflow.pyfunc

        if hooks.load is None:
            raise BadInputError("This kind of input needs Export(load=..., predict=...): build and weights are for one array.")
        kind = "texts" if isinstance(inputs, list) and all(isinstance(row, str) for row in inputs) else "as is"
        with quiet(), local_code_by_value():
            mlflow.pyfunc.save_model(
                str(folder),
                python_model=_python_model(hooks.load, hooks.predict, dict(config), kind),
                artifacts={"checkpoint": str(checkpoint)},
                signature=_signature(inputs, outputs),
                input_example=inputs,
                pip_requirements=pinned("mlflow", "numpy", "cloudpickle"),
            )
        _forget_origin(folder)
        note = "The model carries the code of load and predict, which runs when it is loaded."
        return Saved(flavor="python_function", format="checkpoint", runs_code=True, note=note)


def predictions(model: Any, inputs: Any, predict: Callable[[Any, Any], Any] | None) -> Any:
    """One prediction a row: by `predict`, else by the model's own `predict` method, else by calling the model."""
    if predict is not None:
        outputs = predict(model, inputs)
    elif hasattr(model, "predict"):
        outputs = model.predict(inputs)
    else:
        outputs = model(inputs)
    return outputs.detach().cpu().numpy() if hasattr(outputs, "detach") else outputs


def _python_model(load: Callable[..., Any], predict: Callable[[Any, Any], Any] | None, config: Config, kind: str) -> Any:
    """MLflow's wrapper around the hooks. Class and helper are made here, so that both are pickled whole and need no tunelab."""
    from mlflow.pyfunc import PythonModel

    class Loaded(PythonModel):
        model: Any
        _skip_type_hint_validation = True  # without it MLflow advises, past every filter, to add hints

        def __init__(self) -> None:
            self.config, self.kind, self.load, self.how, self.model = config, kind, load, predict, None

        def load_context(self, context: Any) -> None:
            from pathlib import Path

            self.model = self.load(Path(context.artifacts["checkpoint"]), self.config)

        def predict(self, context, model_input, params=None):  # MLflow reads hints as a schema
            if self.kind == "texts" and hasattr(model_input, "iloc"):  # MLflow makes a table of a list of texts
                model_input = model_input.iloc[:, 0].tolist()
            if self.how is not None:
                outputs = self.how(self.model, model_input)
            elif hasattr(self.model, "predict"):
                outputs = self.model.predict(model_input)
            else:
                outputs = self.model(model_input)
            return outputs.detach().cpu().numpy() if hasattr(outputs, "detach") else outputs

    return Loaded()


def _signature(inputs: Any, outputs: Any) -> Any:
    """What MLflow can say of inputs and outputs, or None where it has no words for them (nested lists of unlike lengths)."""
    from mlflow.exceptions import MlflowException
    from mlflow.models import infer_signature

    try:
        return infer_signature(inputs, outputs)
    except (MlflowException, TypeError, ValueError):
        return None


def _forget_origin(folder: Path) -> None:
    """MLflow writes down where the checkpoint was copied from: a temporary folder of this machine."""
    from mlflow.models import Model

    model = Model.load(str(folder))
    for artifact in model.flavors["python_function"]["artifacts"].values():
        artifact["uri"] = artifact["path"]
    model.save(str(folder / "MLmodel"))
