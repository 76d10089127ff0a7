"""Workloads: deterministic text, the shipped names, and the ways a user's reference can be wrong."""

from __future__ import annotations

import pickle
import sysconfig
from pathlib import Path

import pytest
import torch

from pibroch.evals.models import WORKLOADS, load_workload
from pibroch.evals.text import IGNORED, corpus
from pibroch.runtime.errors import InputError


def test_the_corpus_is_the_librarys_sources_in_order() -> None:
    first = min(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")).read_bytes()
    assert bytes(corpus()[: len(first)].tolist()) == first


@pytest.mark.parametrize("name", WORKLOADS)
def test_batches_are_reproducible_and_labels_follow_ids(name: str) -> None:
    workload = load_workload(name)
    one, again, other = workload.batch(4, 7), workload.batch(4, 7), workload.batch(4, 8)
    for a, b in zip(_leaves(one), _leaves(again), strict=True):
        assert torch.equal(a, b)
        assert a.shape[0] == 4
    assert not torch.equal(_leaves(one)[0], _leaves(other)[0])
    if name.startswith("gpt"):
        labels, ids = one["labels"][:, :-1], one["ids"][:, 1:]
        assert bool(((labels == ids) | (labels == IGNORED)).all())
        assert one["ids"].shape == (4, workload.tokens)
    pickle.dumps(workload)


def test_masked_batches_hold_uneven_counts_of_at_least_one() -> None:
    counts = (load_workload("gpt-masked").batch(64, 0)["labels"] != IGNORED).sum(dim=1)
    assert int(counts.min()) >= 1
    assert len(counts.unique()) > 10


def test_the_tied_model_has_one_weight_for_both_ends() -> None:
    names = [n for n, _ in load_workload("gpt-tied").model().named_parameters()]
    assert "tokens.weight" in names
    assert "head.weight" not in names


@pytest.mark.parametrize("name", ["gpt-tiny", "gpt-masked", "mlp-tiny"])
def test_the_loss_falls(name: str) -> None:
    torch.manual_seed(0)
    workload = load_workload(name)
    model = workload.model()
    optimizer = workload.optimizer(model.parameters())
    batch = workload.batch(4, 0)
    losses = []
    for _ in range(5):
        loss = workload.loss(model, batch)
        loss = loss[0] / loss[1] if isinstance(loss, tuple) else loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses == sorted(losses, reverse=True)


def _leaves(batch: object) -> list[torch.Tensor]:
    return list(batch.values()) if isinstance(batch, dict) else list(batch)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("body", "ref", "message"),
    [
        (None, "gpt-huge", "no such workload. Shipped: gpt-tiny"),
        (None, "no_such_module_here:make", "there is no module 'no_such_module_here'"),
        (None, "../up:make", "is not a module's name"),
        ("import absent_dependency", "mine_dep:make", "importing mine_dep failed: ModuleNotFoundError"),
        ("raise RuntimeError('two\\nlines')", "mine_raise:make", "failed: RuntimeError: two lines"),
        ("def make(:", "mine_syntax:make", "importing mine_syntax failed: SyntaxError"),
        ("raise SystemExit(3)", "mine_exit:make", "importing mine_exit failed: SystemExit: 3"),
        ("x = 1", "mine_name:make", "has no function 'make'"),
        ("def make(): return 1", "mine_kind:make", "must return a pibroch Workload, not int"),
        ("def make(): return 1 / 0", "mine_fail:make", "make() failed: ZeroDivisionError"),
    ],
)
def test_wrong_references_say_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str | None, ref: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    if body is not None:
        (tmp_path / f"{ref.split(':')[0]}.py").write_text(body)
    with pytest.raises(InputError) as caught:
        load_workload(ref)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unreadable_module_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine_unreadable.py").symlink_to("mine_unreadable.py")  # reading it fails, for root as well
    with pytest.raises(InputError, match="mine_unreadable"):
        load_workload("mine_unreadable:make")


def test_a_users_own_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine_good.py").write_text(
        "from pibroch.evals.models import load_workload\ndef make():\n    return load_workload('mlp-tiny')\n"
    )
    assert load_workload("mine_good:make").name == "mlp-tiny"
    assert load_workload("mine_good.py:make").name == "mlp-tiny"
