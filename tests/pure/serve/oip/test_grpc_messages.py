"""Our own messages are those of the client libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from tritonclient.grpc import model_config_pb2, service_pb2

from atomr_mp.serve.oip.grpc import messages
from atomr_mp.serve.oip.grpc.tables import FILES, HEALTH, INFERENCE, OFFERED, OLD_REFLECTION
from atomr_mp.serve.oip.not_offered import NOT_OFFERED

LOADED = (health_pb2, reflection_pb2, model_config_pb2, service_pb2)
THEIRS = descriptor_pool.Default()
"""The pool into which those have put theirs."""

SERVED = (INFERENCE, HEALTH, OLD_REFLECTION)


def every(descriptor: Any) -> list[Any]:
    """Return a message's descriptor, and those in it."""
    return [descriptor, *(inner for each in descriptor.nested_types for inner in every(each))]


def facts(field: Any) -> tuple[Any, ...]:
    """Return all of a field that the wire or its users can see."""
    return (
        field.name,
        field.number,
        field.type,
        field.is_repeated,
        field.is_packed,
        field.has_presence,
        field.json_name,
        None if field.message_type is None else field.message_type.full_name,
        None if field.enum_type is None else field.enum_type.full_name,
        None if field.containing_oneof is None else field.containing_oneof.name,
    )


def ours(name: str) -> list[Any]:
    """Return the descriptors of a file's messages."""
    found = messages.POOL.FindFileByName(name).message_types_by_name.values()
    return [inner for each in found for inner in every(each)]


@pytest.mark.parametrize("mine", [each for file in SERVED for each in ours(file.name)], ids=lambda each: each.full_name)
def test_each_field_is_that_of_the_client_library(mine: Any) -> None:
    """A field that we declare has the same number, type and form there."""
    theirs = THEIRS.FindMessageTypeByName(mine.full_name)
    for field in mine.fields:
        assert facts(field) == facts(theirs.fields_by_name[field.name])
    assert mine.GetOptions().map_entry == theirs.GetOptions().map_entry


def test_the_service_s_messages_are_whole() -> None:
    """All messages of the service are there, with all their fields."""
    theirs = THEIRS.FindServiceByName(INFERENCE.service_name).file.message_types_by_name.values()
    mine = {each.full_name: set(each.fields_by_name) for each in ours(INFERENCE.name)}
    assert mine == {each.full_name: set(each.fields_by_name) for outer in theirs for each in every(outer)}


def test_enums_have_the_same_numbers() -> None:
    """A value's name stands for the same number."""
    for file in SERVED:
        for name in file.enums:
            full = f"{file.package}.{name}"
            mine, theirs = messages.POOL.FindEnumTypeByName(full), THEIRS.FindEnumTypeByName(full)
            assert {each.name: each.number for each in mine.values} == {
                each.name: each.number for each in theirs.values
            }


def test_each_call_of_the_service_is_declared() -> None:
    """Calls are answered, or refused with a reason; there are no others."""
    mine = messages.POOL.FindServiceByName(INFERENCE.service_name)
    theirs = THEIRS.FindServiceByName(INFERENCE.service_name)

    def shown(service: Any) -> dict[str, tuple[Any, ...]]:
        return {
            each.name: (
                each.input_type.full_name,
                each.output_type.full_name,
                each.client_streaming,
                each.server_streaming,
            )
            for each in service.methods
        }

    assert shown(mine) == shown(theirs)
    assert {*OFFERED, *NOT_OFFERED} == set(shown(theirs))


@pytest.mark.parametrize("first", ["tritonclient.grpc.service_pb2", "atomr_mp.serve.oip.grpc.messages"])
def test_ours_and_a_client_s_are_loaded_side_by_side(first: str) -> None:
    """One process may have both, whichever comes first."""
    both = ["tritonclient.grpc.service_pb2", "atomr_mp.serve.oip.grpc.messages"]
    order = sorted(both, key=lambda each: each != first)
    code = "; ".join(f"import {each}" for each in order)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=dict(os.environ))


def test_each_file_is_given_as_it_was_declared() -> None:
    """What reflection gives of a file makes the same messages in a pool of another's."""
    pool = descriptor_pool.DescriptorPool()
    for each in messages.SERIALIZED.values():
        pool.AddSerializedFile(each)
    for file in FILES:
        for name in messages.POOL.FindFileByName(file.name).message_types_by_name:
            assert pool.FindMessageTypeByName(f"{file.package}.{name}")
