"""Replies, replay, accounting and specs of language models."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from scripted_lm import ScriptedModel, block

from pibroch.agents.lm import open_lm
from pibroch.agents.lm.accounting import BudgetError, Metered, Price, estimate_tokens
from pibroch.agents.lm.base import LMError, Message, Paused, ReplyError, Request, fenced_block
from pibroch.agents.lm.local import DEFAULT_FILE, find_model
from pibroch.agents.lm.openai_api import OpenAIModel, resolve_base_url, shown
from pibroch.agents.lm.replay import Recorder, ReplayMiss, ReplayModel
from pibroch.runtime.errors import InputError, MissingError
from pibroch.runtime.files import write_atomically

REQUEST = Request("writer", "gpt-tiny", 1, 1, (Message("user", "x" * 100),), semantic_key="k", max_tokens=50)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_MODEL", "PIBROCH_LOCAL_MODEL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```json\n[1]\n```", ("json", "[1]\n")),
        ("before\n```py\nx = 1\n```\nafter", ("python", "x = 1\n")),
        ("````python\nx = '''\n```\n'''\n````", ("python", "x = '''\n```\n'''\n")),
        ("~~~json\n{}\n~~~", ("json", "{}\n")),
    ],
)
def test_one_block(text: str, expected: tuple[str, str]) -> None:
    assert fenced_block(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no fenced block"),
        ("```json\n1", "never closed"),
        ("```json\n1\n```\n```json\n2\n```", "2 fenced blocks"),
        ("```\n1\n```", "no language"),
        ("```yaml\n1\n```", "'yaml'"),
        ("```json\n \n```", "empty"),
        ("x" * (1 << 21), "longer than"),
    ],
)
def test_malformed_replies_say_what_to_do(text: str, says: str) -> None:
    with pytest.raises(ReplyError, match=says):
        fenced_block(text)


def test_record_and_replay(tmp_path: Path) -> None:
    Recorder(ScriptedModel([block([1])]), tmp_path).complete(REQUEST)
    again = ReplayModel(tmp_path)
    reply = again.complete(REQUEST)
    assert (reply.text, reply.model, reply.stale, reply.who) == (block([1]), "scripted", False, "script")
    assert reply.usage.output_tokens == 5
    reworded = replace(REQUEST, messages=(Message("user", "other words"),))
    assert again.complete(reworded).stale
    assert again.stale == 1


@pytest.mark.parametrize(
    "change",
    [{"attempt": 2}, {"phase": 2}, {"semantic_key": "other"}, {"previous_hash": "h"}, {"sample": 1},
     {"role": "reviewer"}, {"schema_version": 2}],
)  # fmt: skip
def test_a_replay_misses_where_anything_of_its_key_differs(tmp_path: Path, change: dict[str, Any]) -> None:
    Recorder(ScriptedModel([block([1])]), tmp_path).complete(REQUEST)
    with pytest.raises(ReplayMiss, match="no reply for"):
        ReplayModel(tmp_path).complete(replace(REQUEST, **change))


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    Recorder(ScriptedModel([block([1])]), tmp_path).complete(REQUEST)
    path = next(tmp_path.glob("*.json"))
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "version": 99}))
    with pytest.raises(InputError, match=path.name):
        ReplayModel(tmp_path).complete(REQUEST)
    path.write_text("{")
    with pytest.raises(InputError, match="not a recorded reply"):
        ReplayModel(tmp_path).complete(REQUEST)


def test_a_failed_call_leaves_no_record_and_no_temporary_file(tmp_path: Path) -> None:
    with pytest.raises(Paused):
        Recorder(ScriptedModel([Paused("later")]), tmp_path).complete(REQUEST)
    with pytest.raises(UnicodeEncodeError):
        write_atomically(tmp_path / "a.txt", "\ud800")
    assert list(tmp_path.iterdir()) == []


def test_tokens_are_reserved_before_the_call() -> None:
    lm = ScriptedModel([block([1])])
    need = estimate_tokens(REQUEST) + REQUEST.max_tokens
    assert need == 50 + 4 + 50  # half of 100 bytes, 4 for the message, 50 for the answer
    with pytest.raises(BudgetError, match="103"):
        Metered(lm, max_tokens=need - 1).complete(REQUEST)
    assert lm.asked == []
    metered = Metered(lm, max_tokens=need)
    metered.complete(REQUEST)
    assert (metered.spent.calls, metered.spent.input_tokens, metered.spent.output_tokens) == (1, 10, 5)
    with pytest.raises(BudgetError):  # 15 spent and 104 more
        metered.complete(REQUEST)


def test_money_is_reserved_and_settled_at_the_price() -> None:
    lm = ScriptedModel([block([1])] * 2)
    price = {"scripted": Price(1_000.0, 2_000.0)}
    metered = Metered(lm, max_money=0.2, prices=price)
    metered.complete(REQUEST)
    assert metered.spent.money == pytest.approx((10 * 1_000 + 5 * 2_000) / 1e6)
    with pytest.raises(BudgetError):  # 0.02 spent, 0.154 reserved: past 0.17
        Metered(lm, max_money=0.15, prices=price).complete(REQUEST)


def test_a_money_budget_without_a_price_is_an_error() -> None:
    class Unknown(ScriptedModel):
        name = "openai:new-model"

    with pytest.raises(InputError, match="price of 'openai:new-model' is not known"):
        Metered(Unknown([]), max_money=1.0)
    Metered(Unknown([]), max_tokens=10)


def test_a_pause_costs_nothing_and_a_failure_its_input() -> None:
    metered = Metered(ScriptedModel([Paused("later"), LMError("dead"), block([1])]), max_tokens=170)
    with pytest.raises(Paused):
        metered.complete(REQUEST)
    assert (metered.spent.calls, metered.spent.input_tokens) == (0, 0)
    with pytest.raises(LMError):
        metered.complete(REQUEST)
    assert (metered.spent.calls, metered.spent.input_tokens) == (1, 54)
    metered.complete(REQUEST)  # the reservations of both have been given back


@pytest.mark.parametrize("spec", ["gpt", "mailbox:", "mailbox", "replay:", "none:x", "openrouter:x"])
def test_wrong_specs_list_the_right_ones(spec: str) -> None:
    with pytest.raises(InputError, match="mailbox:DIR"):
        open_lm(spec)


def test_none_and_missing_things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_lm("none") is None
    assert open_lm(None) is None
    with pytest.raises(MissingError, match="OPENAI_API_KEY"):
        open_lm("openai")
    with pytest.raises(InputError, match="not a folder"):
        open_lm(f"replay:{tmp_path / 'absent'}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(MissingError, match=r"huggingface\.co/Qwen"):
        find_model()


def test_a_damaged_default_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / DEFAULT_FILE
    path.write_bytes(b"GGUF and something")
    monkeypatch.setenv("PIBROCH_LOCAL_MODEL", str(path))
    with pytest.raises(InputError, match="damaged"):
        find_model()
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF and something")
    assert find_model(other) == other
    other.write_bytes(b"no such thing")
    with pytest.raises(InputError, match="not a GGUF file"):
        find_model(other)


def test_both_names_of_the_base_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_BASE", "http://one/v1/")
    assert resolve_base_url() == "http://one/v1"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://one/v1")
    assert resolve_base_url() == "http://one/v1"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://two/v1")
    with pytest.raises(InputError, match="OPENAI_API_BASE"):
        resolve_base_url()
    assert shown("https://user:secret@host:8080/v1?key=secret") == "https://host:8080/v1"


class _Endpoint:
    """Answers with (status, body) pairs in turn; a body of None never answers."""

    def __init__(self, answers: list[tuple[int, Any]]) -> None:
        self.seen: list[dict[str, Any]] = []
        self.release = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.seen.append({**body, "authorization": self.headers["Authorization"]})
                status, data = answers[min(len(outer.seen), len(answers)) - 1]
                if data is None:
                    outer.release.wait(30)
                    return
                text = json.dumps(data).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def __enter__(self) -> _Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def _completion(text: str) -> dict[str, Any]:
    return {
        "id": "1", "object": "chat.completion", "created": 0, "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }  # fmt: skip


def _model(endpoint: _Endpoint, monkeypatch: pytest.MonkeyPatch) -> OpenAIModel:
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{endpoint.server.server_port}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "the-key")
    monkeypatch.setattr("pibroch.agents.lm.openai_api.time.sleep", lambda seconds: None)
    return OpenAIModel("m")


def test_an_endpoint_answers(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with _Endpoint([(200, _completion("hello"))]) as endpoint:
        reply = _model(endpoint, monkeypatch).complete(REQUEST)
        assert (reply.text, reply.usage.input_tokens, reply.usage.output_tokens) == ("hello", 7, 3)
        asked = endpoint.seen[0]
        assert (asked["model"], asked["max_tokens"], asked["authorization"]) == ("m", 50, "Bearer the-key")
        assert asked["messages"] == [{"role": "user", "content": "x" * 100}]
        assert f"http://127.0.0.1:{endpoint.server.server_port}/v1" in caplog.text
        assert "the-key" not in caplog.text


def test_bounded_retry_in_one_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = (503, {"error": {"message": "busy"}})
    with _Endpoint([busy, busy, (200, _completion("hello"))]) as endpoint:
        assert _model(endpoint, monkeypatch).complete(REQUEST).text == "hello"
        assert len(endpoint.seen) == 3
    with _Endpoint([busy]) as endpoint:
        with pytest.raises(LMError, match="HTTP 503"):
            _model(endpoint, monkeypatch).complete(REQUEST)
        assert len(endpoint.seen) == 3
    with _Endpoint([(401, {"error": {"message": "wrong key"}})]) as endpoint:
        with pytest.raises(LMError, match=r"HTTP 401: .*wrong key"):
            _model(endpoint, monkeypatch).complete(REQUEST)
        assert len(endpoint.seen) == 1


def test_a_stalled_endpoint_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    with _Endpoint([(200, None)]) as endpoint:
        with pytest.raises(LMError, match=r"0\.3 s|deadline"):
            _model(endpoint, monkeypatch).complete(replace(REQUEST, deadline_s=0.3))
        assert len(endpoint.seen) == 1


def test_no_server_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with _Endpoint([(200, None)]) as endpoint:
        model = _model(endpoint, monkeypatch)
    with pytest.raises(LMError, match="no connection"):
        model.complete(REQUEST)


def test_an_unlabelled_block_is_taken_where_its_language_is_plain() -> None:
    assert fenced_block('```\n[{"op": "split"}]\n```') == ("json", '[{"op": "split"}]\n')
    assert fenced_block("```\ndef schedule():\n    return []\n```")[0] == "python"
    with pytest.raises(ReplyError, match="no language"):
        fenced_block("```\nplace stage 0\n```")
