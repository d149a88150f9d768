"""A pool's status has one vocabulary, and a JSON Schema of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

import jsonschema
import msgspec
from hypothesis import HealthCheck, given, settings
from msgspec import inspect

from atomr_mp.cli import status as command
from atomr_mp.cli.common import Parser
from atomr_mp.operator.pool_status import PoolStatus, status_of
from atomr_mp.protocol.messages.operators import Status
from tests.pure.protocol.test_protocol import values_of

SCHEMA: Final = Path(__file__).parents[3] / "docs" / "status-schema.json"
VALIDATOR: Final[Any] = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


@given(values_of(inspect.type_info(Status)))
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
def test_whatever_a_supervisor_answers_is_told_by_the_schema(answer: Status) -> None:
    """Each field that it may have, and no other."""
    found = status_of(answer, Path("/run"), time.time())
    VALIDATOR.validate(msgspec.to_builtins(found))
    assert len(found.devices) == len(answer.workers)
    assert [each.request for each in found.quarantined] == [each.request for each in answer.quarantined]


def test_the_schema_admits_no_other_word() -> None:
    """So a field that is added has to be described."""
    shown = msgspec.to_builtins(PoolStatus(pool="p", state="down"))
    VALIDATOR.validate(shown)
    for wrong in ({**shown, "workers": []}, {**shown, "state": "gone"}, {**shown, "sessions": None}):
        assert not VALIDATOR.is_valid(wrong)


def test_a_pool_that_does_not_run_is_told_in_the_same_words(capsys: Any, tmp_path: Path) -> None:
    """By the command, which then has no answer of a supervisor."""
    parser = Parser()
    command.add(parser.add_subparsers())
    options = parser.parse_args(["status", "--json", "--run-dir", str(tmp_path / "none")])
    assert command.run(options) == command.EXIT["down"]
    shown = json.loads(capsys.readouterr().out)
    VALIDATOR.validate(shown)
    assert shown.keys() == set(PoolStatus.__struct_fields__)
