"""ServerModel: a model at an OpenAI-compatible server, as a warm-up asks it. For one event loop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from kvtier.exposition import parse_samples, sum_of
from kvtier.http_stream import ServerError, ServerUrl, fetch_text
from kvtier.warmup.prompt_file import Prompt

TIERS = ("host", "disk")
_SHOWN_CHARACTERS = 300
_ASIDE_TIMEOUT_S = 10.0


# What a server says of one prompt; 408, 425, 429 and 5xx may pass.
_REFUSALS = frozenset({400, 413, 422})
_PASSING = frozenset({408, 425, 429})


class RefusedError(Exception):
    """The server will not take this prompt, however often it is asked."""


class UnusableError(Exception):
    """The server will take no prompt until it, or the command, is another one."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What a server's kvtier holds, by tier."""

    num_bytes: Mapping[str, float]
    num_blocks: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class ServerModel:
    """Where prompts are sent."""

    server: ServerUrl
    model: str
    timeout_s: float
    """For one prompt."""
    bearer_token: str | None = None
    wishes: Mapping[str, object] | None = None
    """What kvtier is to do with the blocks: {"pin": True}; None: nothing besides keeping them."""

    async def compute(self, prompt: Prompt) -> int:
        """Has the server compute a prompt; returns its tokens, 0 where the server does not say.

        Raises ServerError (worth another try), RefusedError, UnusableError.
        """
        body: dict[str, object] = {
            "model": self.model,
            "max_tokens": 1,
            "temperature": 0,
            "messages" if prompt.is_chat else "prompt": prompt.content,
        }
        if self.wishes is not None:
            body["kv_transfer_params"] = {"kvtier": dict(self.wishes)}
        status, text = await fetch_text(
            self.server,
            "/v1/chat/completions" if prompt.is_chat else "/v1/completions",
            timeout_s=self.timeout_s,
            # Lone surrogates are no UTF-8; as escapes they are what they were in the file.
            body=json.dumps(body).encode(),
            bearer_token=self.bearer_token,
        )
        if status != 200:
            raise _error_of(status, text)
        return _prompt_tokens(text)

    async def find_stored(self) -> Stored | None:
        """Returns what lies in the tiers; None where the server does not tell of kvtier."""
        try:
            # Whoever may read metrics needs no key, and shall not learn it.
            status, text = await fetch_text(self.server, "/metrics", timeout_s=_ASIDE_TIMEOUT_S)
        except ServerError:
            return None
        samples = list(parse_samples(text)) if status == 200 else []
        if not any(sample.name == "vllm:kvtier_blocks" for sample in samples):
            return None
        return Stored(
            num_bytes={it: sum_of(samples, "vllm:kvtier_bytes_used", tier=it) for it in TIERS},
            num_blocks={it: sum_of(samples, "vllm:kvtier_blocks", tier=it) for it in TIERS},
        )


async def find_model(server: ServerUrl, *, bearer_token: str | None) -> str:
    """Returns the first model that the server names. Raises ServerError."""
    status, text = await fetch_text(
        server, "/v1/models", timeout_s=_ASIDE_TIMEOUT_S, bearer_token=bearer_token
    )
    if status != 200:
        raise ServerError(f"{server}/v1/models: {_describe(status, text)}{_remedy(status)}")
    try:
        return str(json.loads(text)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ServerError(f"{server} names no model; give --model") from error


def _error_of(status: int, text: str) -> Exception:
    said = _describe(status, text)
    if status in _PASSING or status >= 500:
        return ServerError(said)
    is_of_prompt = 400 <= status < 500 and not _remedy(status) and "prompt" in text.lower()
    if status in _REFUSALS or is_of_prompt:
        return RefusedError(said)
    return UnusableError(said + (_remedy(status) or "; --url names a server of another kind"))


def _remedy(status: int) -> str:
    """What the command could say instead; empty where nothing is known to help."""
    if status in (401, 403, 407):
        return "; --api-key-variable names the environment variable with the server's key"
    if status == 404:
        return "; --model names a model that the server has, --url where it listens"
    if status == 405 or 300 <= status < 400:
        return "; --url names where the server itself listens, redirections are not followed"
    return ""


def _describe(status: int, text: str) -> str:
    return f"HTTP {status}: {' '.join(text.split())[:_SHOWN_CHARACTERS]}"


def _prompt_tokens(text: str) -> int:
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or not isinstance(answer.get("choices"), list):
        raise ServerError(
            f"the server answered with no completion: {' '.join(text.split())[:_SHOWN_CHARACTERS]}"
        )
    usage = answer.get("usage")
    tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) else 0
