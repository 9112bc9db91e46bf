"""JsonFormatter: log lines as JSON objects, for programs that read logs. Stateless; thread-safe."""

import datetime
import json
import logging
import re
from typing import Final

# The core ends its lines with values: action, object, then name=value.
_VALUE: Final = re.compile(r'\b([a-z][a-z0-9_]*)=("(?:[^"\\]|\\.)*"|[^\s,;:()]+)')
_WHOLE_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")


class JsonFormatter(logging.Formatter):
    """One line a record: {"time", "level", "logger", "message", "store", "values", "exception"}.

    time:      UTC, as ISO 8601.
    store:     folder of the store that says it.
    values:    what the message says as name=value, such as errno; whole numbers as numbers.
    exception: the traceback. The last three are left out where there is nothing to tell.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as one line of JSON."""
        message = record.getMessage()
        time = datetime.datetime.fromtimestamp(record.created, tz=datetime.timezone.utc)
        fields: dict[str, object] = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        store_path = getattr(record, "store_path", None)
        if store_path is not None:
            fields["store"] = store_path
        values = {name: _parse_value(text) for name, text in _VALUE.findall(message)}
        if values:
            fields["values"] = values
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def _parse_value(text: str) -> str | int:
    if _WHOLE_NUMBER.fullmatch(text):
        return int(text)
    return text[1:-1] if len(text) > 1 and text.startswith('"') else text
