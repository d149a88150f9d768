"""Classes of the protocol's messages, from their tables. Pure.

They are in a pool of descriptors of their own: in the common one, the same messages of a client library that an actor
or an application loads would collide with them.
"""

from __future__ import annotations

import re
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from atomr_mp.serve.oip.grpc.tables import CONFIG, FILES, HEALTH, INFERENCE, ProtoFile

_FIELD: Final = re.compile(
    r"(?:\{(?P<map>[\w.]+)\}|(?P<type>[\w.]+)(?P<many>\*?)) (?P<name>\w+) (?P<number>\d+)(?: \|(?P<of>\w+))?"
)

_KINDS: Final = descriptor_pb2.FieldDescriptorProto

_SCALARS: Final = {
    name: getattr(_KINDS, f"TYPE_{name.upper()}")
    for name in ("double", "float", "int64", "uint64", "int32", "uint32", "bool", "string", "bytes")
}


def _described(file: ProtoFile) -> Any:
    """Return a file's FileDescriptorProto."""
    described = descriptor_pb2.FileDescriptorProto(
        name=file.name, package=file.package, syntax="proto3", dependency=file.needs
    )
    made: dict[str, Any] = {}
    for line in re.sub(r"\n +", " ", file.messages.strip()).splitlines():
        name, _, fields = line.partition(":")
        outer, _, own = name.rpartition(".")
        message = made[outer].nested_type.add() if outer else described.message_type.add()
        message.name = own
        made[name] = message
        for field in filter(None, map(str.strip, fields.split(","))):
            _add_field(message, field, file, name)
    for name, values in file.enums.items():
        outer, _, own = name.rpartition(".")
        enum = (made[outer] if outer else described).enum_type.add()
        enum.name = own
        for number, each in enumerate(values):
            enum.value.add(name=each, number=number)
    if file.service:
        service = described.service.add()
        service.name = file.service
        for rpc in file.rpcs:
            service.method.add(
                name=rpc.name,
                input_type=f".{file.package}.{rpc.request}",
                output_type=f".{file.package}.{rpc.answer}",
                client_streaming=rpc.is_request_stream,
                server_streaming=rpc.is_answer_stream,
            )
    return described


def _add_field(message: Any, text: str, file: ProtoFile, owner: str) -> None:
    """Add a field to a DescriptorProto.

    Args:
        message: The DescriptorProto.
        text: The field as the table has it.
        file: The table.
        owner: The message's name.
    """
    found = _FIELD.fullmatch(text)
    assert found is not None, text
    field = message.field.add()
    field.name, field.number = found["name"], int(found["number"])
    is_many = bool(found["many"] or found["map"])
    field.label = _KINDS.LABEL_REPEATED if is_many else _KINDS.LABEL_OPTIONAL
    if found["map"]:
        entry = message.nested_type.add()
        entry.name = "".join(map(str.capitalize, found["name"].split("_"))) + "Entry"
        entry.options.map_entry = True
        for text_of in ("string key 1", f"{found['map']} value 2"):
            _add_field(entry, text_of, file, owner)
        field.type, field.type_name = _KINDS.TYPE_MESSAGE, f".{file.package}.{owner}.{entry.name}"
    elif found["type"] in _SCALARS:
        field.type = _SCALARS[found["type"]]
    else:
        is_enum = found["type"] in file.enums
        field.type = _KINDS.TYPE_ENUM if is_enum else _KINDS.TYPE_MESSAGE
        field.type_name = f".{file.package}.{found['type']}"
    if found["of"]:
        choices = [each.name for each in message.oneof_decl]
        if found["of"] not in choices:
            message.oneof_decl.add(name=found["of"])
            choices.append(found["of"])
        field.oneof_index = choices.index(found["of"])


POOL: Final = descriptor_pool.DescriptorPool()
"""The messages' own pool."""

SERIALIZED: Final[dict[str, bytes]] = {}
"""The files by name, as reflection gives them."""

for _file in FILES:
    SERIALIZED[_file.name] = _described(_file).SerializeToString()
    POOL.AddSerializedFile(SERIALIZED[_file.name])


def message_class(file: ProtoFile, name: str) -> Any:
    """Return the class of a message."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{file.package}.{name}"))


ModelInferRequest: Final = message_class(INFERENCE, "ModelInferRequest")
ModelInferResponse: Final = message_class(INFERENCE, "ModelInferResponse")
ModelStreamInferResponse: Final = message_class(INFERENCE, "ModelStreamInferResponse")
ModelConfig: Final = message_class(CONFIG, "ModelConfig")
HealthCheckRequest: Final = message_class(HEALTH, "HealthCheckRequest")
HealthCheckResponse: Final = message_class(HEALTH, "HealthCheckResponse")
