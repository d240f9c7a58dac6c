"""PyTorch: checkpoints are state dictionaries, exported models are `torch.export` graphs that hold no code.

What is exported is the model together with `Export.predict`, as one graph, so that MLflow's own loaders give what
`tunelab predict` gives. Why: docs/decisions/export-format.md.
"""

from __future__ import annotations

import gc
import logging
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

from tunelab.core.experiment import Export
from tunelab.core.protocols import Saved
from tunelab.core.trial import Config
from tunelab.errors import BadInputError
from tunelab.frameworks.base import Base
from tunelab.frameworks.carry import local_code_by_value, pinned, quiet

log = logging.getLogger(__name__)

GPU_KEPT_MB = 256  # less is workspace of the libraries'; more is a model or a batch that a trial left


class Torch(Base):
    """Models that are `torch.nn.Module`s and take one array."""

    name = "torch"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    trainers: ClassVar[tuple[str, ...]] = ("TorchTrainer",)

    def joined(self) -> int | None:
        import torch

        distributed = torch.distributed
        return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else None

    def seed(self, seed: int) -> None:
        import torch

        torch.manual_seed(seed)

    def remember(self) -> None:
        threads = os.environ.get("OMP_NUM_THREADS", "")
        _clean.setdefault("num_threads", int(threads) if threads.isdigit() else None)
        if "torch" in sys.modules:
            for setting, (read, _, _) in settings().items():
                _clean.setdefault(setting, read())
            _clean["num_threads"] = sys.modules["torch"].get_num_threads()
            _clean.setdefault("num_interop_threads", sys.modules["torch"].get_num_interop_threads())

    def reset(self) -> str | None:
        """Flags and threads as they were, no process group, no compiled code, no cached GPU memory."""
        import torch

        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()  # Ray leaves a group of one worker standing
        for setting, (read, write, default) in settings().items():
            clean = _clean.get(setting, default)
            if read() != clean:  # some of them import half of torch to be set
                write(clean)
        if _clean.get("num_threads") is not None:
            torch.set_num_threads(_clean["num_threads"])  # unasked: this thread does not see what another has set for all
        torch.set_default_device(None)
        torch.set_flush_denormal(False)
        torch.clear_autocast_cache()
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()
        interop = torch.get_num_interop_threads()
        if interop != _clean.setdefault("num_interop_threads", interop):
            return f"torch.set_num_interop_threads({interop}) holds for the life of a process"
        return _empty_gpu(torch) if torch.cuda.is_initialized() else None

    def reads(self, checkpoint: Path, hooks: Export | None) -> bool:
        return hooks is not None and hooks.build is not None

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


_clean: dict[str, Any] = {}  # what `remember` found in this process

# Attributes of torch.backends and torch.utils that hold for the whole process, with torch's defaults. Parents before children.
_FLAGS = {
    "backends.fp32_precision": "none",
    "backends.cuda.matmul.fp32_precision": "none",
    "backends.cudnn.fp32_precision": "none",
    "backends.cudnn.conv.fp32_precision": "tf32",
    "backends.cudnn.rnn.fp32_precision": "tf32",
    "backends.mkldnn.fp32_precision": "none",
    "backends.mkldnn.matmul.fp32_precision": "none",
    "backends.mkldnn.conv.fp32_precision": "none",
    "backends.mkldnn.rnn.fp32_precision": "none",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction": True,
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction": True,
    "backends.cuda.matmul.allow_fp16_accumulation": False,
    "backends.cudnn.enabled": True,
    "backends.cudnn.benchmark": False,
    "backends.cudnn.deterministic": False,
    "backends.mkldnn.enabled": True,
    "backends.mkldnn.deterministic": False,
    "utils.deterministic.fill_uninitialized_memory": True,
}
_ATTENTION = ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp")


def settings() -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Any]]:
    """Name -> (read, write, torch's default) of what a trial can change for the trials after it. Needs torch to be loaded.

    Grad mode and autocast belong to a thread, and each trial has a thread of its own; they are here for callbacks, which run
    in the main one.
    """
    import torch

    autograd, cuda = torch.autograd, torch.backends.cuda
    table: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Any]] = {
        "default_dtype": (torch.get_default_dtype, torch.set_default_dtype, torch.float32),
        "grad_mode": (torch.is_grad_enabled, torch.set_grad_enabled, True),
        "anomaly_mode": (
            lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            lambda clean: autograd.set_detect_anomaly(*clean),
            (False, True),
        ),
        "deterministic_algorithms": (
            lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
            lambda clean: torch.use_deterministic_algorithms(clean[0], warn_only=clean[1]),
            (False, False),
        ),
        "matmul_precision": (lambda: _matmul_precision(torch), torch.set_float32_matmul_precision, "highest"),
        "warn_always": (torch.is_warn_always_enabled, torch.set_warn_always, False),
        "autocast_cpu": _autocast(torch, "cpu", torch.bfloat16),
        "autocast_cuda": _autocast(torch, "cuda", torch.float16),
        "autocast_cache": (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled, True),
        "print_options": (
            lambda: dict(vars(torch._tensor_str.PRINT_OPTS)),
            lambda clean: vars(torch._tensor_str.PRINT_OPTS).update(clean),
            {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80, "sci_mode": None},
        ),
        "sharing_strategy": (
            torch.multiprocessing.get_sharing_strategy,
            torch.multiprocessing.set_sharing_strategy,
            "file_descriptor" if sys.platform == "linux" else "file_system",
        ),
    }
    for name in _ATTENTION:
        table[name] = (getattr(cuda, f"{name}_enabled"), getattr(cuda, f"enable_{name}"), True)
    for path, default in _FLAGS.items():
        owner, _, attribute = path.rpartition(".")
        table[path] = _flag(attrgetter(owner)(torch), attribute, default)
    return table


def _flag(owner: Any, attribute: str, default: Any) -> tuple[Callable[[], Any], Callable[[Any], Any], Any]:
    return lambda: getattr(owner, attribute), lambda clean: setattr(owner, attribute, clean), default


def _matmul_precision(torch: Any) -> str:
    """torch's older name for two of the flags. It refuses to tell when they were set one by one."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "mixed"


def _autocast(torch: Any, device: str, default: Any) -> tuple[Callable[[], Any], Callable[[Any], Any], Any]:
    def write(clean: Any) -> None:
        torch.set_autocast_enabled(device, clean[0])
        torch.set_autocast_dtype(device, clean[1])

    return lambda: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)), write, (False, default)


def _empty_gpu(torch: Any) -> str | None:
    """Give cached memory back and start the peak anew, which a trial may report as a metric."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.reset_peak_memory_stats()
    kept_mb = torch.cuda.memory_allocated() / 2**20
    if kept_mb > GPU_KEPT_MB:
        return f"{kept_mb:.0f} MB of GPU memory are still in use after the trial: something holds its tensors"
    return None


def loader(hooks: Export) -> Callable[[Path, Config], Any]:
    """`load(checkpoint, config)` for `Export(build, weights)`. Refers to nothing of tunelab's but the errors."""
    build, weights = hooks.build, hooks.weights
    assert build is not None
    if weights is None:
        raise BadInputError(
            'Export(build=...) needs weights=("state.pt", "model") as well: where the weights lie in the checkpoint. Only a '
            "checkpoint of Lightning's says so itself."
        )
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
