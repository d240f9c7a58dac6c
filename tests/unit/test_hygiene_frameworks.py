"""What a trial changes in its framework, the next one does not see, or its worker is not used again."""

from __future__ import annotations

import sys

import numpy
import pytest

from tests.unit.forks import in_a_fork, in_a_thread, run_python
from tunelab import frameworks

# ---- torch


def torch_cases():
    """Name of a setting -> a value that differs from torch's default."""
    import torch

    precise = {path: "ieee" for path in torch_files()._FLAGS if path.endswith("fp32_precision")}
    flags = {path: not default for path, default in torch_files()._FLAGS.items() if isinstance(default, bool)}
    return {
        **precise,
        **flags,
        **dict.fromkeys(torch_files()._ATTENTION, False),
        "default_dtype": torch.float64,
        "grad_mode": False,
        "anomaly_mode": (True, False),
        "deterministic_algorithms": (True, True),
        "matmul_precision": "medium",
        "warn_always": True,
        "autocast_cpu": (True, torch.float16),
        "autocast_cuda": (True, torch.bfloat16),
        "autocast_cache": False,
        "print_options": {"precision": 9, "threshold": 9, "edgeitems": 9, "linewidth": 9, "sci_mode": True},
        "sharing_strategy": "file_system",
    }


def torch_files():
    from tunelab.frameworks import torch as module

    return module


def settings_now():
    return {name: read() for name, (read, _, _) in torch_files().settings().items()}


def test_every_setting_of_torch_is_tested_and_its_default_is_torchs():
    pytest.importorskip("torch")
    code = (
        "import torch; from tunelab.frameworks.torch import settings\n"
        "print([(name, read(), default) for name, (read, _, default) in settings().items() if read() != default])"
    )
    assert run_python(code).strip() == "[]"
    assert torch_cases().keys() == torch_files().settings().keys()


@pytest.mark.parametrize("remembered", [True, False], ids=["torch known before", "torch first imported by the trial"])
def test_every_setting_of_torch_is_put_back(remembered):
    pytest.importorskip("torch")

    def trial():
        before = settings_now()
        for name, value in torch_cases().items():
            torch_files()._clean.clear()
            if remembered:
                frameworks.remember_clean()
            torch_files().settings()[name][1](value)
            assert settings_now()[name] == value != before[name], f"{name}: the case shows nothing"
            assert frameworks.reset_loaded() == []
            assert settings_now() == before, name

    in_a_fork(trial, timeout_s=120)


def test_a_clean_value_of_torchs_that_is_not_its_default_is_put_back():
    torch = pytest.importorskip("torch")

    def trial():
        torch.set_default_dtype(torch.float64)
        torch_files()._clean.clear()
        frameworks.remember_clean()
        torch.set_default_dtype(torch.float32)
        frameworks.reset_loaded()
        assert torch.get_default_dtype() is torch.float64

    in_a_fork(trial)


def test_torchs_matrix_products_after_flags_that_contradict_each_other():
    torch = pytest.importorskip("torch")

    def trial():
        torch_files()._clean.clear()
        frameworks.remember_clean()
        before = settings_now()
        torch.backends.cuda.matmul.allow_tf32 = True
        assert settings_now() != before
        assert frameworks.reset_loaded() == []
        assert settings_now() == before

    in_a_fork(trial)


def test_torchs_threads_are_put_back_for_threads_to_come():
    torch = pytest.importorskip("torch")

    def trial():
        torch_files()._clean.clear()
        frameworks.remember_clean()
        before = in_a_thread(torch.get_num_threads)
        in_a_thread(lambda: torch.set_num_threads(before + 3))
        assert in_a_thread(torch.get_num_threads) == before + 3
        frameworks.reset_loaded()
        assert in_a_thread(torch.get_num_threads) == before

    in_a_fork(trial)


def test_torchs_threads_follow_ray_where_a_trial_imports_torch_first(monkeypatch):
    torch = pytest.importorskip("torch")

    def trial():
        torch_files()._clean.clear()
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
        monkeypatch.delitem(sys.modules, "torch")
        frameworks.remember_clean()
        sys.modules["torch"] = torch
        in_a_thread(lambda: torch.set_num_threads(1))
        frameworks.reset_loaded()
        assert in_a_thread(torch.get_num_threads) == 3

    in_a_fork(trial)


def test_torchs_threads_between_operations_cannot_be_put_back():
    torch = pytest.importorskip("torch")

    def trial():
        torch_files()._clean.clear()
        frameworks.remember_clean()
        now = torch.get_num_interop_threads()
        torch.set_num_interop_threads(now + 1)
        assert frameworks.reset_loaded() == [f"torch.set_num_interop_threads({now + 1}) holds for the life of a process"]

    in_a_fork(trial)


def test_torchs_default_device_is_put_back_in_the_main_thread():
    torch = pytest.importorskip("torch")

    def trial():
        torch.set_default_device("meta")
        frameworks.reset_loaded()
        assert torch.empty(1).device.type == "cpu"

    in_a_fork(trial)


def test_a_process_group_is_destroyed(tmp_path):
    torch = pytest.importorskip("torch")

    def trial():
        for turn in range(2):  # the second would be refused
            torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/{turn}", rank=0, world_size=1)
            assert frameworks.reset_loaded() == []
            assert not torch.distributed.is_initialized()

    in_a_fork(trial)


def test_compiled_code_is_forgotten(monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch._dynamo")

    def trial():
        calls = []
        compiled = torch.compile(lambda x: x + 1, backend=lambda graph, inputs: calls.append(1) or graph.forward)
        compiled(torch.ones(2)), compiled(torch.ones(2))
        assert len(calls) == 1
        frameworks.reset_loaded()
        compiled(torch.ones(2))
        assert len(calls) == 2

    in_a_fork(trial, timeout_s=120)


def test_gpu_memory_is_given_back_and_what_is_held_makes_the_worker_unfit(monkeypatch):
    torch = pytest.importorskip("torch")
    called = []

    def trial():
        held = [3 * 2**30]
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: held[0])
        for name in ("empty_cache", "reset_peak_memory_stats", "set_per_process_memory_fraction"):
            monkeypatch.setattr(torch.cuda, name, lambda *a, name=name: called.append(name))
        (reason,) = frameworks.reset_loaded()
        assert reason == "3072 MB of GPU memory are still in use after the trial: something holds its tensors"
        held[0] = 0
        assert frameworks.reset_loaded() == []
        assert {"empty_cache", "reset_peak_memory_stats", "set_per_process_memory_fraction"} == set(called)

    in_a_fork(trial)


# ---- transformers, and resets in general


def test_transformers_and_accelerate_are_reset():
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    def trial():
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState, GradientState, PartialState
        from transformers.utils import logging as words

        frameworks.remember_clean()
        before = (words.get_verbosity(), words.is_progress_bar_enabled())
        Accelerator(mixed_precision="bf16", cpu=True, gradient_accumulation_steps=4)
        words.set_verbosity_debug()
        words.disable_progress_bar()
        assert frameworks.reset_loaded() == []
        assert (words.get_verbosity(), words.is_progress_bar_enabled()) == before
        assert not AcceleratorState._shared_state and not PartialState._shared_state and not GradientState._shared_state
        assert Accelerator(mixed_precision="no", cpu=True).mixed_precision == "no"

    in_a_fork(trial, timeout_s=120)


def test_a_reset_that_fails_is_a_reason(monkeypatch):
    from tunelab.frameworks.torch import Torch

    def fail(self):
        raise AttributeError("torch has moved it")

    monkeypatch.setattr(Torch, "reset", fail)
    monkeypatch.setitem(sys.modules, "torch", sys)
    assert frameworks.reset_loaded()[:1] == ["torch cannot be reset: AttributeError: torch has moved it"]


def test_only_loaded_frameworks_are_reset(monkeypatch):
    asked = []
    for name in frameworks.names():
        framework = frameworks.load(name)
        monkeypatch.setattr(framework, "reset", lambda self: asked.append(self.name))
        monkeypatch.setattr(framework, "libraries", ("gc",) if name == "torch" else ("not_there",))
    assert frameworks.reset_loaded() == [] and asked == ["torch"]


@pytest.mark.parametrize("seed", [0, 7])
def test_seeds_cover_python_numpy_and_torch(seed):
    """Random states are not put back: each trial is seeded anew, which is this."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("ray")
    import random

    from tunelab.engine.ray.worker import seed_everything

    drawn = []
    for _ in range(2):
        seed_everything(seed)
        drawn.append((random.random(), numpy.random.rand(), torch.rand(1).item()))
    assert drawn[0] == drawn[1]
