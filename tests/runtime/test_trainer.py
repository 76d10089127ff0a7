"""Real workers, small models: what a step returns, what survives a change of schedule, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import tiny_models
import torch

from pibroch.evals.judge import judge
from pibroch.runtime.annotate import annotate
from pibroch.runtime.directives import schedule_from
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import build
from pibroch.runtime.trainer import Trainer

PIPELINE = build("1f1b", devices=2, microbatches=3)
TRAITS = ("plain", "dropout", "tied", "skip", "frozen", "norm", "masked", "clipped")


@pytest.fixture(scope="module")
def plain() -> Iterator[Trainer]:
    with Trainer(tiny_models.workload(), PIPELINE, launcher="local", ranks=4) as trainer:
        yield trainer


def eager_losses(trait: str, steps: int, size: int) -> list[float]:
    """The unsplit batch in one process, by PyTorch alone."""
    work = tiny_models.workload(trait)
    torch.manual_seed(0)
    model = work.model()
    optimizer = work.optimizer(list(model.named_parameters()))
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        result = work.loss(model, work.batch(size, step))
        value = result[0] / result[1] if isinstance(result, tuple) else result
        value.backward()
        if work.clip_norm is not None:
            assert torch.nn.utils.clip_grad_norm_(model.parameters(), work.clip_norm) > work.clip_norm
        optimizer.step()
        losses.append(float(value.detach()))
    return losses


@pytest.mark.parametrize("trait", TRAITS)
def test_every_trait_equals_the_reference(trait: str) -> None:
    work = tiny_models.workload(trait)
    split_backward = build("zb-h1", devices=3, microbatches=3)
    replicas = build("interleaved", devices=2, stages_per_device=2, microbatches=2, replicas=2)
    with Trainer(work, PIPELINE, launcher="local", ranks=4) as trainer:
        for schedule in (PIPELINE, split_backward, replicas):
            trainer.load(schedule)
            verdict = judge(trainer)
            assert verdict.ok, verdict
            # A tied weight is reduced over four devices, and gloo sums more than two in no fixed order.
            # A norm depends on the order in which squares are added.
            assert verdict.bitwise or trait == "clipped" or (trait == "tied" and schedule is replicas), verdict
        trainer.reset()
        if trait not in ("dropout", "norm"):
            size = trainer.batch_size
            mine = [trainer.step(work.batch(size, step)).loss for step in range(3)]
            assert mine == pytest.approx(eager_losses(trait, 3, size), rel=1e-5)


def test_a_step_returns_the_loss_of_the_whole_batch(plain: Trainer) -> None:
    plain.load(PIPELINE)
    plain.reset()
    batch = tiny_models.batch(plain.batch_size, 0)
    result = plain.step(batch)
    assert result.loss == pytest.approx(eager_losses("plain", 1, plain.batch_size)[0], rel=1e-6)
    assert result.tokens == plain.batch_size == 6
    assert result.seconds > 0


def test_a_change_of_schedule_keeps_weights_and_optimizer_state(plain: Trainer) -> None:
    work = tiny_models.workload()
    plain.load(PIPELINE)
    plain.reset()
    losses = [plain.step(work.batch(12, 0)).loss]
    for step, schedule in enumerate(
        (build("gpipe", devices=3, microbatches=6), build("zb-h1", devices=2, microbatches=3, replicas=2)), start=1
    ):
        plain.load(schedule)
        losses.append(plain.step(work.batch(12, step)).loss)
    assert losses == pytest.approx(eager_losses("plain", 3, 12), rel=1e-5)


def test_state_dict_loads_into_the_plain_model(plain: Trainer) -> None:
    work = tiny_models.workload()
    plain.load(PIPELINE)
    plain.step(work.batch(6, 0))
    model = work.model()
    model.load_state_dict(plain.state_dict())
    with torch.no_grad():
        expected = float(work.loss(model, work.batch(6, 9)))
    assert plain.evaluate(work.batch(6, 9)) == pytest.approx(expected, rel=1e-6)


def test_tied_weights_stay_tied_and_are_exported_under_both_names() -> None:
    work = tiny_models.workload("tied")
    with Trainer(work, build("1f1b", devices=4, microbatches=2), launcher="local") as trainer:
        for step in range(2):
            trainer.step(work.batch(4, step))
        state = trainer.state_dict()
    assert torch.equal(state["layers.0.weight"], state["layers.3.weight"])


def test_evaluation_is_without_dropout_and_leaves_the_weights_alone() -> None:
    work = tiny_models.workload("dropout")
    with Trainer(work, PIPELINE, launcher="local") as trainer:
        trainer.step(work.batch(6, 0))
        before = trainer.state_dict()
        batch = work.batch(6, 1)
        first, second = trainer.evaluate(batch), trainer.evaluate(batch)
        after = trainer.state_dict()
    model = work.model().eval()
    model.load_state_dict(before)
    with torch.no_grad():
        assert first == second == pytest.approx(float(work.loss(model, batch)), rel=1e-6)
    assert all(torch.equal(before[n], after[n]) for n in before)


def test_another_microbatch_size_is_captured_on_the_fly(plain: Trainer) -> None:
    work = tiny_models.workload()
    plain.load(PIPELINE)
    plain.reset()
    losses = [plain.step(work.batch(size, step)).loss for step, size in enumerate((6, 9, 6))]
    torch.manual_seed(0)
    model = work.model()
    optimizer = work.optimizer(list(model.named_parameters()))
    for step, size in enumerate((6, 9, 6)):
        optimizer.zero_grad()
        value = work.loss(model, work.batch(size, step))
        assert isinstance(value, torch.Tensor)
        value.backward()
        optimizer.step()
        assert losses[step] == pytest.approx(float(value.detach()), rel=1e-5)


def test_a_batch_that_does_not_divide_is_refused(plain: Trainer) -> None:
    plain.load(PIPELINE)
    with pytest.raises(InputError, match="7 samples does not divide into 1 replica x 3 microbatches"):
        plain.step(tiny_models.batch(7, 0))
    with pytest.raises(InputError, match="samples along dimension 0"):
        plain.step({"x": torch.zeros(6, 8), "y": torch.zeros(5, 8)})
    assert plain.step(tiny_models.batch(6, 0)).loss > 0, "the workers go on"


def test_a_schedule_that_needs_more_devices_than_the_pool_is_refused(plain: Trainer) -> None:
    with pytest.raises(InputError, match="needs 6 devices and the pool has 4"):
        plain.load(build("1f1b", devices=2, microbatches=3, replicas=3))


def test_a_schedule_that_nothing_averages_is_refused(plain: Trainer) -> None:
    rows = [{"op": "place", "filter": {}, "devices": [0, 1]}]
    with pytest.raises(InputError, match=r"V8.*averages"):
        plain.load(schedule_from(rows))


def test_trace_and_bytes_of_a_step(plain: Trainer) -> None:
    plain.load(PIPELINE)
    plain.step(tiny_models.batch(6, 0))
    trace = plain.trace()
    assert {e.task for e in trace.events} == {t.id for t in plain.plan.tasks}
    ends = {e.task: e.end for e in trace.events}
    starts = {e.task: e.start for e in trace.events}
    for task in plain.plan.tasks:
        assert all(ends[w] <= starts[task.id] for w in task.waits)
    # Exact to the byte, but for how far ahead receives happened to be posted.
    ahead = 2 * plain.plan.recv_window * max(b.nbytes for b in plain.plan.buffers if b.kind == "received")
    first, second = plain.peak_bytes(), plain.peak_bytes()
    assert all(peak > 0 for peak in first)
    assert all(abs(a - b) <= ahead for a, b in zip(first, second, strict=True))


def test_running_statistics_follow_their_layer() -> None:
    """The layer with statistics is on rank 0, then on rank 1, then on rank 2, which has had no program before."""
    work = tiny_models.workload("norm")
    model = work.model()
    with Trainer(work, build("1f1b", devices=1, microbatches=3), launcher="local", ranks=4) as trainer:
        for step, devices in enumerate((1, 4, 1)):
            trainer.load(build("1f1b", devices=devices, microbatches=3))
            trainer.step(work.batch(6, step))
            model.load_state_dict(trainer.state_dict())
            assert int(model.get_buffer("norm.num_batches_tracked")) == 3 * (step + 1)
        model.eval()
        with torch.no_grad():
            expected = float(work.loss(model, work.batch(6, 9)))
        trainer.load(build("1f1b", devices=4, microbatches=3))
        assert trainer.evaluate(work.batch(6, 9)) == pytest.approx(expected, rel=1e-6)


def test_evaluation_takes_batches_of_any_size(plain: Trainer) -> None:
    work = tiny_models.workload()
    plain.load(PIPELINE)
    plain.reset()
    model = work.model()
    model.load_state_dict(plain.state_dict())
    for size in (6, 9, 6):
        with torch.no_grad():
            expected = float(work.loss(model, work.batch(size, 0)))
        assert plain.evaluate(work.batch(size, 0)) == pytest.approx(expected, rel=1e-6)


class Moody(tiny_models.Chain):
    """In training the first layer costs four times as much; a frozen statistic stays frozen."""

    def __init__(self) -> None:
        super().__init__("norm")
        self.norm.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with annotate("LAYER"):
            for _ in range(3 if self.training else 0):
                x = torch.tanh(self.layers[0](x))
            x = torch.tanh(self.layers[0](x))
        for layer in self.layers[1:]:
            with annotate("LAYER"):
                x = torch.tanh(layer(self.norm(x)))
        return x


def test_evaluation_leaves_stages_and_modes_as_they_are() -> None:
    work = replace(tiny_models.workload(), model=Moody)
    model = work.model().eval()
    with Trainer(work, PIPELINE, launcher="local") as trainer:
        trainer.step(work.batch(6, 0))
        model.load_state_dict(trainer.state_dict())
        with torch.no_grad():
            expected = float(work.loss(model, work.batch(6, 1)))
        assert trainer.evaluate(work.batch(6, 1)) == pytest.approx(expected, rel=1e-6)
        trainer.step(work.batch(9, 1))  # captured anew
        assert int(trainer.state_dict()["norm.num_batches_tracked"]) == 0


def test_a_stage_may_split_some_of_its_backwards_only(plain: Trainer) -> None:
    rows = [row for row in PIPELINE.to_json()["directives"] if row["op"] != "order"]
    halves = [{"PP": 1, "MB": 0, "PASS": "BI"}, {"PP": 1, "MB": 0, "PASS": "BW"}]
    plain.load(schedule_from([*rows, {"op": "order", "filters": halves}]))
    verdict = judge(plain)
    assert verdict.bitwise, verdict


@pytest.mark.parametrize("trait", ["norm", "tied"])
def test_a_device_may_belong_to_two_replicas(trait: str) -> None:
    """As in bidirectional schedules: one replica flows from device 0 to 1, the other from 1 to 0."""
    rows: list[dict[str, Any]] = [{"op": "split", "num_microbatches": 2}]
    for stage, devices in enumerate(([0, 1], [1, 0])):
        rows += [{"op": op, "filter": {"PP": stage}, "devices": devices} for op in ("place", "replicate")]
    with Trainer(tiny_models.workload(trait), schedule_from(rows), launcher="local") as trainer:
        verdict = judge(trainer)
    assert verdict.bitwise, verdict


def test_a_trace_after_a_change_of_schedule(plain: Trainer) -> None:
    plain.load(PIPELINE)
    plain.step(tiny_models.batch(6, 0))
    plain.load(build("gpipe", devices=2, microbatches=4))
    assert len(plain.trace().events) == len(plain.plan.tasks)


def test_without_updates_nothing_is_clipped() -> None:
    with Trainer(tiny_models.workload("clipped"), PIPELINE, launcher="local", update=False) as trainer:
        verdict = judge(trainer)
    assert verdict.bitwise, verdict


def test_two_trainers_in_spaces_of_one_pool_do_not_touch_each_other() -> None:
    work = tiny_models.workload()
    with Trainer(work, PIPELINE, launcher="local") as first:
        first.prepare()
        replicas = build("gpipe", devices=1, replicas=2, microbatches=1)
        second = Trainer(work, replicas, pool=first.pool.space("second"))
        size, losses = first.batch_size, {first: [], second: []}  # type: ignore[var-annotated]
        for step in range(3):
            losses[first].append(first.step(work.batch(size, step)).loss)
            losses[second].append(second.step(work.batch(second.batch_size, step)).loss)
        assert losses[first] == pytest.approx(eager_losses("plain", 3, size), rel=1e-5)
        assert losses[second] == pytest.approx(eager_losses("plain", 3, second.batch_size), rel=1e-5)
        second.load(PIPELINE, microbatch=2 * work.microbatch)
        assert second.batch_size == 2 * size
        assert judge(second, steps=2).ok
        second.close()
        assert judge(first, steps=2).ok
