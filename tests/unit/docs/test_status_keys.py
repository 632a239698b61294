"""The schema of status --json says what its tables say."""

from __future__ import annotations

import json

import jsonschema
import pytest

from prefetchd.status.status_object import status_object
from tests.unit.cli.examples import every_state
from tests.unit.docs.status_keys import SCHEMA, text


def test_the_schema_is_the_one_that_the_tables_make():
    assert SCHEMA.read_text("utf-8") == text(), "run `python -m tests.unit.docs.status_keys`"


def test_it_is_a_schema_and_refuses_what_is_wrong():
    schema = json.loads(SCHEMA.read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    for wrong in ({}, {"state": 1, "health": "healthy", "heartbeat_age_s": None, "problems": []}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
    streams = status_object(every_state())["streams"]
    for stream in streams:
        jsonschema.validate(stream, schema["properties"]["streams"]["items"])
        del stream["verdict"]
        with pytest.raises(jsonschema.ValidationError, match="verdict"):
            jsonschema.validate(stream, schema["properties"]["streams"]["items"])
