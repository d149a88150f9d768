"""Messages of Protocol Buffers from a table, without a compiler, for a pool of descriptors of one's own.

A message is a line, "Name: type field number, ...", that may go on in indented lines. `type*` is repeated, `{type}` a
map from texts, `{key:type}` one from other keys, and `|name` the choice, which has one field at most.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

SCALARS: Final = {
    "double": 1,
    "float": 2,
    "int64": 3,
    "uint64": 4,
    "int32": 5,
    "bool": 8,
    "string": 9,
    "bytes": 12,
    "uint32": 13,
}
"""Numbers of protobuf's own types in descriptors."""

MESSAGE: Final = 11
ENUM: Final = 14

SINGULAR: Final = 1
REPEATED: Final = 3

_FIELD: Final = re.compile(
    r"(?:\{(?:(?P<key>\w+):)?(?P<map>[\w.]+)\}|(?P<type>[\w.]+)(?P<many>\*?)) (?P<name>\w+) (?P<number>\d+)"
    r"(?: \|(?P<choice>\w+))?"
)


def file_of(
    name: str, package: str, messages: str, enums: Mapping[str, Sequence[str]], needs: Sequence[str] = ()
) -> FileDescriptorProto:
    """Return a file's description. It needs the package protobuf.

    Args:
        name: The file's name.
        package: Begins the names of all that it has.
        messages: The table. What a message or an enum is nested in comes before it, as does its name and a dot.
        enums: The names of each enum's values, which count from 0.
        needs: The files whose messages it has.
    """
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3", dependency=needs)
    made: dict[str, Any] = {}
    for line in re.sub(r"\n +", " ", messages.strip()).splitlines():
        full, _, fields = line.partition(":")
        outer, _, inner = full.rpartition(".")
        made[full] = message = (made[outer].nested_type if outer else file.message_type).add(name=inner)
        for field in filter(None, map(str.strip, fields.split(","))):
            _add(message, f".{package}.", full, field, enums)
    for full, values in enums.items():
        outer, _, inner = full.rpartition(".")
        enum = (made[outer] if outer else file).enum_type.add(name=inner)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    return file


def _add(message: Any, package: str, owner: str, text: str, enums: Mapping[str, Sequence[str]]) -> None:
    """Add a field to a message, and beside it the entry of a map."""
    found = _FIELD.fullmatch(text)
    assert found is not None, text
    is_repeated = bool(found["many"] or found["map"])
    field = message.field.add(
        name=found["name"], number=int(found["number"]), label=REPEATED if is_repeated else SINGULAR
    )
    kind = found["type"]
    if found["map"]:
        entry = message.nested_type.add(name="".join(map(str.capitalize, found["name"].split("_"))) + "Entry")
        entry.options.map_entry = True
        for inner in (f"{found['key'] or 'string'} key 1", f"{found['map']} value 2"):
            _add(entry, package, owner, inner, enums)
        kind = f"{owner}.{entry.name}"
    if kind in SCALARS:
        field.type = SCALARS[kind]
    else:
        field.type = ENUM if kind in enums else MESSAGE
        field.type_name = f"{package}{kind}"
    if found["choice"]:
        choices = [each.name for each in message.oneof_decl]
        if found["choice"] not in choices:
            message.oneof_decl.add(name=found["choice"])
            choices.append(found["choice"])
        field.oneof_index = choices.index(found["choice"])
