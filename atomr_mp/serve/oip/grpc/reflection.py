"""What clients such as grpcurl ask to know which services and messages there are. Pure."""

from __future__ import annotations

from typing import Any, Final

from atomr_mp.serve.oip.grpc.messages import POOL, SERIALIZED, message_class
from atomr_mp.serve.oip.grpc.requests import parsed
from atomr_mp.serve.oip.grpc.tables import FILES, ProtoFile

NOT_FOUND: Final = 5
UNIMPLEMENTED: Final = 12
"""gRPC's codes, as numbers."""

_NEEDED: Final = {file.name: file.needs for file in FILES}


class Reflection:
    """Answers questions.

    Args:
        file: The version of the service.
    """

    def __init__(self, file: ProtoFile) -> None:
        rpc = file.rpcs[0]
        self._request: Final = message_class(file, rpc.request)
        self._response: Final = message_class(file, rpc.answer)

    def answer(self, data: bytes) -> bytes:
        """Return the answer to a question.

        Raises:
            InvalidRequest: The bytes are none.
        """
        asked = parsed(self._request, data)
        told = self._response(original_request=asked)
        match asked.WhichOneof("message_request"):
            case "list_services":
                for file in FILES:
                    told.list_services_response.service.add(name=file.service_name)
            case "file_by_filename":
                self._tell(told, asked.file_by_filename if asked.file_by_filename in SERIALIZED else "")
            case "file_containing_symbol":
                self._tell(told, _file_of(asked.file_containing_symbol))
            case "all_extension_numbers_of_type" if _file_of(asked.all_extension_numbers_of_type):
                told.all_extension_numbers_response.base_type_name = asked.all_extension_numbers_of_type
            case None:
                _refuse(told, UNIMPLEMENTED, "the question is none of this service")
            case _:
                _refuse(told, NOT_FOUND, "there is none")
        found: bytes = told.SerializeToString()
        return found

    def _tell(self, told: Any, name: str) -> None:
        """Return an answer with a file and all files that it needs; without a name one that there is none."""
        if not name:
            _refuse(told, NOT_FOUND, "there is none")
            return
        told.file_descriptor_response.file_descriptor_proto.extend(
            SERIALIZED[each] for each in (name, *_NEEDED.get(name, ()))
        )


def _refuse(told: Any, code: int, why: str) -> None:
    told.error_response.error_code, told.error_response.error_message = code, why


def _file_of(symbol: str) -> str:
    """Return the name of the file that has a service, a call, a message or an enum; empty if none has."""
    try:
        name: str = POOL.FindFileContainingSymbol(symbol).name
    except KeyError:  # of a call, too
        service, _, call = symbol.rpartition(".")
        files = [
            each.name for each in FILES if each.service_name == service and call in {rpc.name for rpc in each.rpcs}
        ]
        return files[0] if files else ""
    return name
