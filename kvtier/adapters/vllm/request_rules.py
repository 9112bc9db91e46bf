"""Reads what one request asks for in kv_transfer_params. Pure functions; thread-safe."""

from collections.abc import Mapping
from typing import Any, Final

from kvtier.adapters.vllm.request_chain import RequestRules
from kvtier.core_log import warn_once
from kvtier.errors import ConfigError
from kvtier.setting_parsers import parse_boolean
from kvtier.units import show

PARAMETER: Final = "kvtier"
_WHOLE_ENDS: Final = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED")
_FIELDS: Final = {"load": "is_loading", "save": "is_saving", "save_decode": "saves_decode"}
_PINS: Final = {"pin": True, "unpin": False}


def parse_request_rules(parameters: object, rules: RequestRules) -> RequestRules:
    """Returns what holds for a request: what the engine does, less what the request opts out of.

    parameters: kv_transfer_params; {"kvtier": {"load": false, "save": false, "save_decode":
    false}}, and {"kvtier": {"pin": true}} or "unpin" where the engine hears that. What is not
    understood or not allowed is ignored and said once: a request must not fail for it.
    """
    said = parameters.get(PARAMETER) if isinstance(parameters, Mapping) else None
    if said is None:
        return rules
    if not isinstance(said, Mapping):
        _ignore(PARAMETER, said)
        return rules
    fields = {field: getattr(rules, field) for field in _FIELDS.values()}
    pins = None
    for name, value in said.items():
        field = _FIELDS.get(str(name))
        try:
            wish = parse_boolean(value, str(name))
        except ConfigError:
            _ignore(f"{PARAMETER}.{name}", value)
            continue
        if field is not None:
            fields[field] = fields[field] and wish
        elif name not in _PINS:
            _ignore(f"{PARAMETER}.{name}", value)
        elif wish and not rules.may_pin:
            warn_once(
                ("kv_transfer_params", PARAMETER, "pins"),
                f"kv_transfer_params: {PARAMETER}.{name} is ignored: start the engine with "
                "allow_pins=true in kv_connector_extra_config if its clients may keep blocks from "
                "eviction",
            )
        elif wish:
            pins = _PINS[name]
    return RequestRules(**fields, pins=pins)


def has_ended_well(request: Any) -> bool:
    """Returns whether it ended by itself, with the output of all its steps."""
    return getattr(request.status, "name", "") in _WHOLE_ENDS


def num_committed_tokens(request: Any) -> int:
    """Returns how many tokens of a request that ended have KV that was computed for good.

    The last token that was sampled has none: nothing was computed after it, or what was belongs to
    a draft that was rejected. One that was aborted got as far as it got.
    """
    num_tokens = max(int(request.num_prompt_tokens), int(request.num_tokens) - 1)
    if has_ended_well(request):
        return num_tokens
    return min(num_tokens, int(request.num_computed_tokens))


def _ignore(name: str, value: object) -> None:
    warn_once(
        ("kv_transfer_params", name),
        f"kv_transfer_params: {name}={show(value)} is ignored; known are "
        f"{', '.join([*_FIELDS, *_PINS])} of {PARAMETER}, each true or false",
    )
