"""Parsers of setting values that config's own tests do not reach."""

import pytest

from kvtier.errors import ConfigError
from kvtier.setting_parsers import make_whole, parse_host


@pytest.mark.parametrize("text", ["127.0.0.1", "::1", "localhost", " 0.0.0.0 "])
def test_a_host_is_an_address_or_a_name(text: str) -> None:
    assert parse_host(text, "metrics_host") == text.strip()


@pytest.mark.parametrize("value", ["", "http://here", "me@here", "a b", "zürich", 5, None])
def test_what_is_no_host_is_shown(value: object) -> None:
    with pytest.raises(ConfigError, match="metrics_host: expected an address"):
        parse_host(value, "metrics_host")


def test_whole_numbers_have_both_bounds() -> None:
    parse = make_whole(0, 65_535)
    assert (parse("0", "n"), parse(65_535, "n")) == (0, 65_535)
    for bad in (-1, 65_536, "x", 0.5):
        with pytest.raises(ConfigError, match="n:"):
            parse(bad, "n")
