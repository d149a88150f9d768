"""Classes of the protocol's messages, from their tables. Pure.

They are in a pool of descriptors of their own: in the common one, the same messages of a client library that an actor
or an application loads would collide with them.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pool, message_factory

from atomr_mp.serve.oip.grpc.tables import FILES, HEALTH, INFERENCE, ProtoFile
from atomr_mp.serve.oip.model_config import messages as model_config
from atomr_mp.serve.oip.model_config.declaration import file_of


def _with_service(file: ProtoFile) -> Any:
    """Return a file's description."""
    described = file_of(file.name, file.package, file.messages, file.enums, file.needs)
    service = described.service.add(name=file.service)
    for rpc in file.rpcs:
        service.method.add(
            name=rpc.name,
            input_type=f".{file.package}.{rpc.request}",
            output_type=f".{file.package}.{rpc.answer}",
            client_streaming=rpc.is_request_stream,
            server_streaming=rpc.is_answer_stream,
        )
    return described


POOL: Final = descriptor_pool.DescriptorPool()
"""The messages' own pool."""

SERIALIZED: Final[dict[str, bytes]] = {
    each.name: each.SerializeToString() for each in (model_config.file(), *map(_with_service, FILES))
}
"""The files by name, as reflection gives them."""

for _file in SERIALIZED.values():
    POOL.AddSerializedFile(_file)


def message_class(file: ProtoFile, name: str) -> Any:
    """Return the class of a message."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{file.package}.{name}"))


ModelInferRequest: Final = message_class(INFERENCE, "ModelInferRequest")
ModelInferResponse: Final = message_class(INFERENCE, "ModelInferResponse")
ModelStreamInferResponse: Final = message_class(INFERENCE, "ModelStreamInferResponse")
HealthCheckRequest: Final = message_class(HEALTH, "HealthCheckRequest")
HealthCheckResponse: Final = message_class(HEALTH, "HealthCheckResponse")
