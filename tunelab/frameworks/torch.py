"""PyTorch: checkpoints are state dictionaries, exported models are `torch.export` graphs that hold no code.

What is exported is the model together with `Export.predict`, as one graph, so that MLflow's own loaders give what
`tunelab predict` gives. Why: docs/decisions/export-format.md.
"""

from __future__ import annotations

import logging
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tunelab.core.experiment import Export
from tunelab.core.protocols import Saved
from tunelab.core.trial import Config
from tunelab.errors import BadInputError
from tunelab.frameworks.carry import local_code_by_value, pinned, quiet

log = logging.getLogger(__name__)


class Torch:
    """Models that are `torch.nn.Module`s and take one array."""

    name = "torch"

    def load(self, checkpoint: Path, config: Config, hooks: Export) -> Any:
        """Build the model, fill in the weights, switch to inference.

        Raises:
            BadInputError: There is no such file or key, the file holds more than tensors and plain values, or the
                weights do not fit the model.
        """
        return loader(hooks)(checkpoint, config)

    def predict(self, model: Any, inputs: Any, hooks: Export) -> Any:
        import torch

        with torch.no_grad():
            outputs = (hooks.predict or _call)(model, _tensor(inputs))
        if isinstance(outputs, torch.Tensor):
            return outputs.detach().cpu().numpy()
        return outputs

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
        import mlflow.pytorch
        import numpy as np
        from mlflow.models import infer_signature

        inputs, outputs = _tensor(inputs).numpy(), np.asarray(outputs)
        if outputs.dtype.kind not in "fiub":
            raise BadInputError(
                f"Export.predict returned {outputs.dtype} values; a Torch model's predictions are numbers. Return one tensor "
                "or array with a number or a row of numbers for each input, or use Export(load=..., predict=...)."
            )
        # The tracer takes a dimension of 1 for a constant, and every later batch would have to have one row.
        example = np.repeat(inputs, 2, axis=0) if len(inputs) == 1 else inputs
        shared = {
            "signature": infer_signature(example, np.repeat(outputs, 2, axis=0) if len(inputs) == 1 else outputs),
            "input_example": example,
        }
        predictor = _predictor(model, hooks.predict)
        try:
            with quiet(), _without_stack_traces():
                mlflow.pytorch.save_model(
                    predictor,
                    str(folder),
                    serialization_format="pt2",
                    pip_requirements=pinned("mlflow", "numpy", "torch"),
                    **shared,
                )
        except Exception as error:  # torch.export raises dozens of kinds; whatever it is, the model has no graph
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            log.debug("torch.export cannot trace the model", exc_info=True)
        else:
            _predict_on_cpu(folder)
            return Saved(flavor="pytorch", format="pt2", runs_code=False)
        _empty(folder)
        with quiet(), local_code_by_value():
            mlflow.pytorch.save_model(
                predictor,
                str(folder),
                serialization_format="pickle",
                pip_requirements=pinned("mlflow", "numpy", "torch", "cloudpickle"),
                **shared,
            )
        note = f"The model is pickled, with its code: torch.export cannot make a graph of it ({reason[:200]})."
        return Saved(flavor="pytorch", format="pickle", runs_code=True, note=note)


def loader(hooks: Export) -> Callable[[Path, Config], Any]:
    """`load(checkpoint, config)` for `Export(build, weights)`. Refers to nothing of tunelab's but the errors."""
    build, weights = hooks.build, hooks.weights
    assert build is not None and weights is not None
    file, key = (weights, None) if isinstance(weights, str) else weights

    def load(checkpoint: Path, config: Config) -> Any:
        import torch

        path = Path(checkpoint, file)
        if not path.is_file():
            held = ", ".join(sorted(p.name for p in Path(checkpoint).iterdir())) or "nothing"
            raise BadInputError(
                f"Export.weights names the file {file!r}, which the checkpoint does not have. It holds: {held}."
            )
        state = _read(path)
        if key is not None:
            if not isinstance(state, dict) or key not in state:
                held = ", ".join(map(repr, state)) if isinstance(state, dict) else type(state).__name__
                raise BadInputError(f"Export.weights names the key {key!r}, which {file} does not have. It holds: {held}.")
            state = state[key]
        model = build(dict(config))
        if not isinstance(model, torch.nn.Module):
            raise BadInputError(
                f"Export.build must return a torch.nn.Module, got {type(model).__name__}. For others: Export(load=...)."
            )
        try:
            model.load_state_dict(_without_ddp_prefix(state, model))
        except (RuntimeError, TypeError, AttributeError) as error:
            raise BadInputError(f"The weights in {file} do not fit the model that Export.build returns: {error}") from error
        return model.eval()

    return load


def _read(path: Path) -> Any:
    """A state dictionary, read without running code."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise BadInputError(
            f"{path.name} holds more than tensors and plain values, and reading it could run code, so it is not read. Save "
            "model.state_dict(), or give Export(load=...)."
        ) from error


def _without_ddp_prefix(state: dict[str, Any], model: Any) -> dict[str, Any]:
    """Names as the bare model has them: DistributedDataParallel puts `module.` before each.

    A model whose own names all begin with `module.` keeps them.
    """
    if all(name.startswith("module.") for name in state) and not state.keys() <= model.state_dict().keys():
        return {name.removeprefix("module."): value for name, value in state.items()}
    return state


def _call(model: Any, inputs: Any) -> Any:
    return model(inputs)


def _tensor(inputs: Any) -> Any:
    import torch

    return torch.tensor(inputs)  # a copy: `predict` may change it in place


def _predictor(model: Any, predict: Callable[[Any, Any], Any] | None) -> Any:
    """One module that gives predictions. Its class is made here, inside a function, so that pickle takes it along."""
    import torch

    class Predictor(torch.nn.Module):
        def __init__(self, model: Any, predict: Any) -> None:
            super().__init__()
            self.model, self._predict = model, predict

        def forward(self, inputs: Any) -> Any:
            outputs = self.model(inputs) if self._predict is None else self._predict(self.model, inputs)
            return outputs if isinstance(outputs, torch.Tensor) else torch.as_tensor(outputs)

    return Predictor(model, predict).eval()


@contextmanager
def _without_stack_traces() -> Iterator[None]:
    """torch.export notes for each operation the lines of source it came from, with this machine's paths."""
    from torch.fx import config

    before = config.do_not_emit_stack_traces
    config.do_not_emit_stack_traces = True
    try:
        yield
    finally:
        config.do_not_emit_stack_traces = before


def _predict_on_cpu(folder: Path) -> None:
    """Tell MLflow's loader that the graph's tensors live on the CPU: on a machine with a GPU it would insist on that."""
    from mlflow.models import Model

    model = Model.load(str(folder))
    model.flavors["python_function"]["config"] = {"device": "cpu"}
    model.save(str(folder / "MLmodel"))


def _empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
