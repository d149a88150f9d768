"""Our own ModelConfig is that of Triton's client library."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("google.protobuf")
pytest.importorskip("tritonclient.grpc")

from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2 as theirs

from atomr_mp.serve.oip.model_config import messages


def facts(file: Any) -> dict[str, Any]:
    """Return all of a file that the wire and texts can see, by the names of messages and enums."""
    found: dict[str, Any] = {each.name: [(one.name, one.number) for one in each.value] for each in file.enum_type}

    def add(message: Any, outer: str) -> None:
        name = f"{outer}{message.name}"
        choices = [each.name for each in message.oneof_decl]
        found[name] = sorted(
            (
                field.name,
                field.number,
                field.type,
                field.label,
                field.type_name,
                choices[field.oneof_index] if field.HasField("oneof_index") else "",
            )
            for field in message.field
        )
        for each in message.enum_type:
            found[f"{name}.{each.name}"] = [(one.name, one.number) for one in each.value]
        for each in message.nested_type:
            add(each, f"{name}.")

    for each in file.message_type:
        add(each, "")
    return found


def test_each_message_and_enum_is_that_of_the_client_library() -> None:
    """No field is missing, too many, or of another number or type."""
    described = descriptor_pb2.FileDescriptorProto()
    theirs.DESCRIPTOR.CopyToProto(described)
    assert facts(messages.file()) == facts(described)


def test_the_class_lives_beside_its_namesake() -> None:
    """A process may load Triton's client and read descriptions of models; what one writes, the other reads."""
    ours = messages.message_class()(name="m", max_batch_size=3)
    ours.parameters["k"].string_value = "v"
    ours.dynamic_batching.priority_queue_policy[2].max_queue_size = 5
    read = theirs.ModelConfig.FromString(ours.SerializeToString())
    assert (read.name, read.max_batch_size, read.parameters["k"].string_value) == ("m", 3, "v")
    assert read.dynamic_batching.priority_queue_policy[2].max_queue_size == 5
