"""Which key goes to which server."""

import logging

import pytest

from kvtier.errors import ConfigError
from kvtier.http_stream import ServerUrl
from kvtier.warmup.api_key import USUAL_VARIABLE, choose_key


@pytest.mark.parametrize(
    "url",
    ["https://api.example", "http://localhost:8000", "http://127.3.2.1", "http://[::1]:80"],
)
def test_the_usual_key_goes_where_nobody_listens(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    environment = {USUAL_VARIABLE: " secret\r\n"}
    assert choose_key(ServerUrl.parse(url), None, environment) == "secret"
    assert caplog.messages == []


@pytest.mark.parametrize(
    "url", ["http://api.example", "http://10.0.0.1", "http://localhost.example", "http://[fe80::1]"]
)
def test_over_plain_http_to_another_machine_only_a_key_that_was_named_goes(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = ServerUrl.parse(url)
    environment = {USUAL_VARIABLE: "secret", "MINE": "my own"}
    with caplog.at_level(logging.WARNING, "kvtier"):
        assert choose_key(server, None, environment) is None
    (message,) = caplog.messages
    assert f"the key in {USUAL_VARIABLE} is not sent" in message
    assert "--api-key-variable" in message
    assert "secret" not in message
    assert choose_key(server, USUAL_VARIABLE, environment) == "secret"
    assert choose_key(server, "MINE", environment) == "my own"
    assert len(caplog.messages) == 1


def test_no_key_is_no_key(caplog: pytest.LogCaptureFixture) -> None:
    server = ServerUrl.parse("http://api.example")
    assert choose_key(server, None, {}) is None
    assert choose_key(server, "MINE", {"MINE": " \n", USUAL_VARIABLE: "secret"}) is None
    assert caplog.messages == []


@pytest.mark.parametrize("key", ["a\r\nX-Forged: 1", "a\0b", "a\x7fb", "schlüssel", "a\udcffb"])
def test_a_key_that_would_break_the_request_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigError, match="environment variable MINE: ") as caught:
        choose_key(ServerUrl.parse("https://api.example"), "MINE", {"MINE": key})
    assert key not in str(caught.value)
    assert "Forged" not in str(caught.value)
