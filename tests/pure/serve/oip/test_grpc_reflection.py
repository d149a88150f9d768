"""What reflection answers."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as some

from atomr_mp import errors
from atomr_mp.serve.oip.grpc.messages import message_class
from atomr_mp.serve.oip.grpc.reflection import Reflection
from atomr_mp.serve.oip.grpc.tables import FILES, OLD_REFLECTION, REFLECTION, ProtoFile

VERSIONS = pytest.mark.parametrize("file", [REFLECTION, OLD_REFLECTION], ids=lambda file: file.package)


def asked(file: ProtoFile, **question: Any) -> Any:
    """Return the answer to a question."""
    data = message_class(file, "ServerReflectionRequest")(**question).SerializeToString()
    return message_class(file, "ServerReflectionResponse").FromString(Reflection(file).answer(data))


@VERSIONS
def test_each_service_is_named(file: ProtoFile) -> None:
    """With its package."""
    found = [each.name for each in asked(file, list_services="").list_services_response.service]
    assert found == [each.service_name for each in FILES]


@VERSIONS
@pytest.mark.parametrize(
    "question",
    [
        {"file_by_filename": "grpc_service.proto"},
        {"file_containing_symbol": "inference.GRPCInferenceService"},
        {"file_containing_symbol": "inference.GRPCInferenceService.ModelInfer"},
        {"file_containing_symbol": "inference.ModelInferRequest.InferInputTensor"},
    ],
    ids=str,
)
def test_a_file_comes_with_those_that_it_needs(file: ProtoFile, question: dict[str, str]) -> None:
    """By its name, or that of anything in it."""
    parts = asked(file, **question).file_descriptor_response.file_descriptor_proto
    found = [descriptor_pb2.FileDescriptorProto.FromString(each).name for each in parts]
    assert found == ["grpc_service.proto", "model_config.proto"]


@VERSIONS
def test_what_there_is_not_is_told(file: ProtoFile) -> None:
    """As an error of that question, after which others are answered."""
    for question in (
        {"file_by_filename": "none.proto"},
        {"file_containing_symbol": "inference.None"},
        {"file_containing_extension": {"containing_type": "inference.ModelConfig", "extension_number": 1}},
        {"all_extension_numbers_of_type": "inference.None"},
    ):
        found = asked(file, **question)
        assert (found.error_response.error_code, found.WhichOneof("message_response")) == (5, "error_response")
        assert found.original_request == message_class(file, "ServerReflectionRequest")(**question)
    none = asked(file, all_extension_numbers_of_type="inference.ModelConfig").all_extension_numbers_response
    assert (none.base_type_name, list(none.extension_number)) == ("inference.ModelConfig", [])
    assert asked(file).error_response.error_code == 12


@given(some.binary(max_size=60))
def test_any_bytes_are_answered_or_refused(data: bytes) -> None:
    """No bytes give another error."""
    with contextlib.suppress(errors.InvalidRequest):
        assert Reflection(REFLECTION).answer(data)
