"""What Lightning's checkpoints say, what a trial leaves behind in Lightning, and which of its errors are explained."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

import pytest

from tests.unit.forks import in_a_fork, run_python
from tunelab import frameworks
from tunelab.core.experiment import Export
from tunelab.frameworks.lightning import EXPLAINED, VERSION

torch = pytest.importorskip("torch")
PACKAGES = [name for name in ("lightning.pytorch", "pytorch_lightning") if importlib.util.find_spec(name.partition(".")[0])]
pytestmark = pytest.mark.skipif(not PACKAGES, reason="Lightning is not installed")

HOOKS = Export(build=lambda config: torch.nn.Linear(2, 1), example=lambda: [[1.0, 2.0]])
STATE = {VERSION: "2.6.6", "state_dict": {"weight": torch.ones(1, 2), "bias": torch.zeros(1)}}


# ---- checkpoints


def test_a_lightning_checkpoint_is_read_by_its_name_or_by_what_it_holds(tmp_path):
    for name, state in {"checkpoint.ckpt": STATE, "last-v1.ckpt": STATE}.items():
        folder = tmp_path / name
        folder.mkdir()
        torch.save(state, folder / name)
        assert frameworks.of_checkpoint(folder, HOOKS) == "lightning"
        model = frameworks.load("lightning")().load(folder, {}, HOOKS)
        assert model.weight.tolist() == [[1.0, 1.0]] and not model.training


def test_other_checkpoints_and_other_hooks_are_not_lightnings(tmp_path):
    class Code:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    def told(state, name="last.ckpt", hooks=HOOKS, twice=False):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for file in (name, f"other-{name}")[: 1 + twice]:
            torch.save(state, folder / file)
        return frameworks.of_checkpoint(folder, hooks)

    assert told(STATE) == "lightning"
    assert told({"state_dict": {}}) == "torch", "without a version"
    assert told(torch.ones(1)) == "torch"
    assert told({**STATE, "code": Code()}) == "torch" and not (tmp_path / "ran").exists()
    assert told(STATE, name="state.pt") == "torch"
    assert told(STATE, twice=True) == "torch", "which of them?"
    weights = Export(build=HOOKS.build, weights=("last.ckpt", "state_dict"), example=HOOKS.example)
    assert told(STATE, hooks=weights) == "torch", "the user says where the weights lie"
    assert told(STATE, hooks=Export(load=lambda *_: None, example=HOOKS.example)) == "function"
    assert told(STATE, hooks=None) is None


# ---- a worker between two trials


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_trial_changes_in_lightning_is_put_back(package):
    def trial():
        pl = importlib.import_module(package)
        strategies = importlib.import_module(f"{package}.strategies")
        caches = importlib.import_module(f"{package}.utilities.data").warning_cache
        rank_zero = importlib.import_module(f"{package}.utilities.rank_zero").rank_zero_only
        frameworks.remember_clean()
        known = set(strategies.StrategyRegistry)

        rank_zero.rank = 1
        caches.add("said once")
        strategies.StrategyRegistry.register("ddp_of_the_trial", strategies.DDPStrategy, find_unused_parameters=True)
        assert frameworks.reset_loaded() == []
        assert rank_zero.rank == 0 and not caches
        assert set(strategies.StrategyRegistry) == known and "ddp" in known
        strategies.StrategyRegistry.register("ddp_of_the_trial", strategies.DDPStrategy)  # refused if it were still there
        assert pl.Trainer(strategy="ddp_of_the_trial", accelerator="cpu", logger=False, enable_checkpointing=False)

    in_a_fork(trial, timeout_s=120)


@pytest.mark.parametrize("package", PACKAGES)
def test_seeds_loggers_and_signal_handlers_of_a_fit_are_gone_with_those_of_the_process(package, tmp_path):
    """As a worker cleans up: the framework first, then the process. Handlers are left by a fit that ends with an exception."""

    def trial():
        import logging
        import signal

        from tunelab.engine.hygiene import CleanState

        pl = importlib.import_module(package)
        frameworks.remember_clean()
        clean = CleanState.take()
        before = dict(os.environ), signal.getsignal(signal.SIGTERM), logging.getLogger(package).level

        class Fails(pl.LightningModule):
            def training_step(self, batch, index):
                raise SystemExit

            def configure_optimizers(self):
                return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)

        pl.seed_everything(7, workers=True)
        logging.getLogger(package).setLevel(logging.CRITICAL)
        trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
        trainer._signal_connector.teardown = lambda: None
        with pytest.raises(SystemExit):
            trainer.fit(Fails(), torch.utils.data.DataLoader([1]))
        assert os.environ["PL_GLOBAL_SEED"] == "7" and signal.getsignal(signal.SIGTERM) != before[1]

        assert frameworks.reset_loaded() == [] and clean.restore().fit
        after = dict(os.environ), signal.getsignal(signal.SIGTERM), logging.getLogger(package).level
        assert after == before

    in_a_fork(trial, timeout_s=120)


def test_the_order_of_rows_follows_from_the_trials_seed(monkeypatch):
    """Lightning's sampler of a distributed loader takes its seed from there."""
    monkeypatch.setitem(sys.modules, "lightning", sys)
    monkeypatch.setenv("PL_GLOBAL_SEED", "3")
    frameworks.seed_loaded(11)
    assert os.environ["PL_GLOBAL_SEED"] == "11"


def test_a_process_without_lightning_is_not_made_to_load_it():
    code = (
        "import sys; from tunelab import frameworks\n"
        "frameworks.remember_clean(); frameworks.seed_loaded(1); frameworks.reset_loaded()\n"
        "print(frameworks.explain(ValueError('no')), [name for name in sys.modules if 'lightning' in name])"
    )
    assert run_python(code).strip() == "None ['tunelab.frameworks.lightning']"


# ---- errors


def test_a_strategy_of_the_other_package_is_explained():
    """With the error that Lightning raises. Those for want of a GPU need Ray: tests/ray/test_lightning.py."""
    if len(PACKAGES) < 2:
        pytest.skip("only one of the two packages is installed")
    pytest.importorskip("ray.train.lightning")

    def trial():
        from pytorch_lightning import Trainer
        from ray.train.lightning import RayDDPStrategy

        with pytest.raises(ValueError, match="invalid strategy name") as raised:
            Trainer(strategy=RayDDPStrategy())
        said = frameworks.explain(raised.value)
        assert "Import Trainer, LightningModule and callbacks from lightning.pytorch" in said

    in_a_fork(trial, timeout_s=120)


def test_deepspeed_on_cpus_is_explained_and_other_errors_are_not():
    words = "The DeepSpeed strategy is only supported on CUDA GPUs but `CPUAccelerator` is used."
    assert frameworks.explain(RuntimeError(words)).startswith("RayDeepSpeedStrategy needs a GPU for each worker")
    assert len(set(EXPLAINED.values())) == len(EXPLAINED) == 4
    assert frameworks.explain(ValueError("You selected an invalid strategy name: `strategy='dpp'`")) is None
