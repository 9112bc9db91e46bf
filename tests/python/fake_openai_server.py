"""A server that answers as an OpenAI-compatible vLLM does, or badly in a way that it is told.

Usage as a program: fake_openai_server.py --port N [--behaviour NAME]; other arguments are passed
over. Each request has a thread of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODEL = "fake-model"
ROOM_TOKENS = 96
BLOCK_TOKENS = 32
SLOW_S = 0.15
STALL_S_MAX = 20.0


@dataclass(kw_only=True)
class FakeState:
    """What the server was asked, and how it behaves."""

    behaviour: str = "good"
    salt: str = ""
    has_tiers: bool = True
    room_tokens: int = ROOM_TOKENS
    asked: list[dict[str, object]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    keys_of_reads: dict[str, str | None] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    released: threading.Event = field(default_factory=threading.Event)
    num_at_once: int = 0
    num_at_once_max: int = 0

    def metrics(self) -> str:
        with self.lock:
            prompt = sum(len(it.get("prompt", "")) for it in self.asked)
            answered = sum(it["max_tokens"] for it in self.asked)
        lines = [
            "# HELP vllm:prompt_tokens_total Number of prefill tokens processed.",
            f'vllm:prompt_tokens_total{{engine="0",model_name="{MODEL}"}} {prompt}.0',
            f'vllm:generation_tokens_total{{engine="0",model_name="{MODEL}"}} {answered}.0',
            f'vllm:prefix_cache_queries_total{{engine="0"}} {prompt}.0',
            'vllm:prefix_cache_hits_total{engine="0"} 0.0',
            f'vllm:cache_config_info{{block_size="{BLOCK_TOKENS}",'
            f'num_gpu_blocks="{self.room_tokens // BLOCK_TOKENS + 1}"}} 1.0',
        ]
        if self.has_tiers:
            num_hits = len(self.asked)
            for tier in ("host", "disk"):
                lines += [
                    f'vllm:kvtier_blocks{{tier="{tier}"}} 3.0',
                    f'vllm:kvtier_bytes_used{{tier="{tier}"}} {4096 * num_hits}.0',
                    f'vllm:kvtier_hits_total{{tier="{tier}"}} {num_hits}.0',
                    f'vllm:kvtier_bytes_read_total{{tier="{tier}"}} {1000000 * num_hits}.0',
                ]
        return "\n".join(lines) + "\n"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: FakeState

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        self.state.keys_of_reads[self.path] = self.headers["authorization"]
        if self.path == "/health":
            self._send(200, "text/plain", b"")
        elif self.path == "/v1/models":
            self._send(200, "application/json", json.dumps({"data": [{"id": MODEL}]}).encode())
        elif self.path == "/metrics" and self.state.behaviour != "no_metrics":
            self._send(200, "text/plain", self.state.metrics().encode())
        else:
            self._send(404, "text/plain", b"not here")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        state = self.state
        with state.lock:
            state.asked.append(asked)
            state.keys.append(self.headers["authorization"])
            number = len(state.asked)
        self._answer(asked, number)

    def _answer(self, asked: dict[str, object], number: int) -> None:
        behaviour, _, after = self.state.behaviour.partition(":")
        if after and number <= int(after):
            behaviour = "good"
        if asked["model"] != MODEL:
            error = {"error": {"message": f"The model `{asked['model']}` does not exist."}}
            self._send(404, "application/json", json.dumps(error).encode())
        elif not asked.get("stream"):
            self._answer_whole(asked, behaviour)
        elif behaviour == "no_stream":
            self._send(200, "application/json", b'{"choices": [{"text": "all at once"}]}')
        else:
            self._stream(asked, behaviour)

    def _answer_whole(self, asked: dict[str, object], behaviour: str) -> None:
        """Refuses prompts that hold "too long", whatever its behaviour; a number is a status."""
        if behaviour == "slow":
            self._wait_among_others()
        if behaviour == "stall":
            self.state.released.wait(STALL_S_MAX)
        content = str(asked.get("prompt", asked.get("messages")))
        if "too long" in content:
            error = {"error": {"message": "maximum context length is 10 tokens"}}
            self._send(400, "application/json", json.dumps(error).encode())
        elif behaviour.isdigit():
            self._send(int(behaviour), "text/plain", b"no such luck")
        elif behaviour == "busy":
            self._send(503, "text/plain", b"come back later")
        elif behaviour == "die":
            self.close_connection = True
        elif behaviour == "garbage":
            self._send(200, "text/html", b"<html>welcome</html>")
        else:
            usage = {"prompt_tokens": len(content.split()), "completion_tokens": 1}
            answer = {"choices": [{"text": "a"}], "usage": usage}
            self._send(200, "application/json", json.dumps(answer).encode())

    def _stream(self, asked: dict[str, object], behaviour: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        tokens = make_tokens(asked, self.state.salt)
        if behaviour == "slow":
            self._wait_among_others()
        if behaviour == "one_piece":
            self._event({"choices": [{"text": "all", "token_ids": tokens}]})
            tokens = []
        self._chunk(b": a comment is no token\n\n")
        for index, token in enumerate(tokens):
            if index == 1 and behaviour != "good":
                if behaviour == "die":
                    return
                if behaviour == "stall":
                    self.state.released.wait(STALL_S_MAX)
                    return
                if behaviour == "garbage":
                    self._chunk(b"data: <html>502</html>\n\n")
                if behaviour == "error":
                    self._event({"error": {"message": "out of memory"}})
            self._event({"choices": [{"text": f"{token} ", "token_ids": [token]}]})
        usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": asked["max_tokens"]}
        self._event({"choices": [], "usage": usage})
        if behaviour != "no_end":
            self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _wait_among_others(self) -> None:
        state = self.state
        with state.lock:
            state.num_at_once += 1
            state.num_at_once_max = max(state.num_at_once_max, state.num_at_once)
        time.sleep(SLOW_S)
        with state.lock:
            state.num_at_once -= 1

    def _event(self, event: dict[str, object]) -> None:
        self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, content: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))

    def _send(self, status: int, content_type: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def make_tokens(asked: dict[str, object], salt: str = "") -> list[int]:
    """Hang on every token of the prompt, as a model's do."""
    digest = hashlib.sha256(json.dumps([asked["prompt"], salt]).encode()).digest()
    return [digest[index % len(digest)] for index in range(int(str(asked["max_tokens"])))]


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that goes away is part of some tests."""


@contextmanager
def serve(port: int = 0, **state: object) -> Iterator[tuple[str, FakeState]]:
    """Yields the server's address and its state."""
    kept = FakeState(**state)  # type: ignore[arg-type]
    handler = type("BoundHandler", (Handler,), {"state": kept})
    with Server(("127.0.0.1", port), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", kept
        finally:
            kept.released.set()
            server.shutdown()
            thread.join()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--behaviour", default="good")
    arguments, _ = parser.parse_known_args()
    with serve(arguments.port, behaviour=arguments.behaviour):
        threading.Event().wait()


if __name__ == "__main__":
    main()
