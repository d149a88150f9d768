"""An actor that lets its worker compile more sources at a time than others do."""

from __future__ import annotations

from atomr_mp_workers import Actor, method
from atomr_mp_workers.compiling import compiler


class Crowded(Actor):
    """Changes a setting of the compiler, which starts with the first source."""

    @method
    def compile_at_a_time(self, processes: int) -> bool:
        """Let so many processes of the compiler run at a time."""
        vars(compiler)["PROCESSES"] = processes
        return True
