"""What some requests do when they arrive, in the order of arrival and before they wait for anything, even an import."""

from __future__ import annotations

from atomr_mp_workers.libraries.method import Arrival
from atomr_mp_workers.memory.store import Store


def arrival_of(method: str, store: Store) -> Arrival:
    """Return the functions of a request "library.name". Their modules need no package that a library needs."""
    match method:
        case "memory.borrow":
            from atomr_mp_workers.libraries.memory.views import Views

            views = Views(store)
            return Arrival(admit=views.admit, withdraw=views.withdraw)
        case "kernels.compile" | "kernels.load" | "kernels.launch" | "kernels.read" | "kernels.write":
            from atomr_mp_workers.libraries.kernels.rights import admitted

            return Arrival(recall=admitted)
        case "program.run":
            from atomr_mp_workers.libraries.program.definitions import is_in_parts, recall, weigh

            return Arrival(recall=recall, weigh=weigh, in_parts=is_in_parts)
    return Arrival()
