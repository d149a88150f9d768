"""What an actor, and a method that takes many requests at a time, has to look like."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from atomr_mp import errors
from atomr_mp.protocol import values
from atomr_mp.protocol.messages.control import ActorSpec
from atomr_mp.protocol.messages.devices import Resend
from atomr_mp_workers import Actor, Batch, by_shape, method
from atomr_mp_workers.loaded_method import LoadedMethod
from atomr_mp_workers.loading import load


class Right(Actor):
    """Methods as they should be."""

    @method(batch=Batch(max_items=5, key="shape_of"))
    def typed(self, numbers: list[int], arrays: Sequence[NDArray[np.float32]]) -> list[int]:
        """Take two arguments."""
        return [number + len(array) for number, array in zip(numbers, arrays, strict=True)]

    @method(batch=Batch())
    def untyped(self, one, two: list) -> list:  # type: ignore[no-untyped-def,type-arg]  # noqa: ANN001
        """Take anything."""
        return [one, two]

    def shape_of(self, number: int, array: NDArray[np.float32]) -> tuple[int, ...]:
        """Return what a batch has in common."""
        return (number % 2, *array.shape)


class Formless(Actor):
    """No such form."""

    @method(openai="images")  # type: ignore[call-overload, untyped-decorator]
    def wrong(self, prompt: str) -> str:
        """Never run."""
        return prompt


class Demanding(Actor):
    """OpenAI's form has no such thing."""

    @method(openai="chat")
    def wrong(self, messages: list[dict[str, str]], mood: str) -> str:
        """Never run."""
        return f"{mood} {messages}"


class Default(Actor):
    """A default would be of the list, or of an item?"""

    @method(batch=Batch())
    def wrong(self, items: list[int] = []) -> list[int]:  # noqa: B006
        """Never run."""
        return items


class Single(Actor):
    """Not a list."""

    @method(batch=Batch())
    def wrong(self, item: int) -> list[int]:
        """Never run."""
        return [item]


class Nothing(Actor):
    """A batch of what?"""

    @method(batch=Batch())
    def wrong(self) -> list[int]:
        """Never run."""
        return []


class Keyless(Actor):
    """Names a method that is not there."""

    @method(batch=Batch(key="missing"))
    def wrong(self, items: list[int]) -> list[int]:
        """Never run."""
        return items


class Urgent(Actor):
    """Knows no measure."""

    stream_priority = "highest"

    @method
    def wrong(self) -> None:
        """Never run."""


class Undecided(Actor):
    """May be sent again whenever it likes."""

    resend = "always"

    @method
    def wrong(self) -> None:
        """Never run."""


class Stateless(Actor):
    """Keeps nothing, but for one method."""

    resend = "unstarted"

    @method
    def right(self) -> None:
        """As the actor says."""

    @method(resend="never")
    def keeps(self) -> None:
        """As this says."""


def methods() -> dict[str, LoadedMethod]:
    """Return those of `Right`."""
    return {each.info.name: each for each in load(ActorSpec("Right", f"{__name__}:Right")).methods}


def test_callers_send_items_and_are_told_how_many_go_together() -> None:
    """The annotation of the list says what an item is."""
    typed, untyped = methods()["typed"], methods()["untyped"]
    assert (typed.info.batch_items, untyped.info.batch_items) == (5, 32)
    body, frames, _ = values.encode((3, np.zeros(2, np.float32)))
    arguments = typed.arguments(body, [memoryview(frame) for frame in frames], lambda _: None)
    assert arguments[0] == 3
    assert typed.key is not None
    assert typed.key(*arguments) == (1, 2)
    with pytest.raises(errors.InvalidRequest, match="Expected `int`"):
        typed.arguments(values.encode(([3], np.zeros(2)))[0], [], lambda _: None)
    assert untyped.arguments(values.encode((None, [1, "two"]))[0], [], lambda _: None) == (None, [1, "two"])
    assert untyped.key is None


def test_a_method_says_what_may_be_sent_again_or_its_actor_does() -> None:
    """By default nothing may."""
    loaded = load(ActorSpec("Stateless", f"{__name__}:Stateless"))
    assert {each.info.name: each.info.resend for each in loaded.methods} == {
        "right": Resend.UNSTARTED,
        "keeps": Resend.NEVER,
    }
    assert {each.info.resend for each in methods().values()} == {Resend.NEVER}


@pytest.mark.parametrize(
    ("actor", "said"),
    [
        (Default, "default"),
        (Single, "annotate it as list"),
        (Nothing, "at least one parameter"),
        (Keyless, "missing"),
        (Urgent, "low, normal, high"),
        (Formless, "wrong: openai is 'images'; it is 'embeddings' or 'chat' or 'completions'"),
        (Demanding, "wrong: a method with openai='chat' needs defaults for mood"),
        (Undecided, "wrong: resend is 'always'; it is 'never' or 'unstarted'"),
    ],
)
def test_what_cannot_be_is_told_when_it_is_loaded(actor: type[Actor], said: str) -> None:
    """Not when the first request comes."""
    with pytest.raises(errors.ActorLoadFailed, match=said):
        load(ActorSpec("Wrong", f"{__name__}:{actor.__name__}"))


def test_by_shape_knows_arrays_by_shape_and_type() -> None:
    """Everything else may differ."""
    assert by_shape(np.zeros((2, 3)), "a") == by_shape(np.ones((2, 3)), "b")
    assert by_shape(np.zeros((2, 3))) != by_shape(np.zeros((3, 2)))
    assert by_shape(np.zeros(2)) != by_shape(np.zeros(2, "float32"))


@pytest.mark.parametrize("package", ["whole", "no __init__"])
def test_a_relative_import_of_a_file_is_refused_with_the_target_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """The file's package, or its folder, is named; the named target loads."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = tmp_path / "outer" / f"related_{len(package)}"
    folder.mkdir(parents=True)
    if package == "whole":
        (folder / "__init__.py").touch()
        (folder.parent / "__init__.py").touch()
    (folder / "beside.py").write_text("VALUE = 5\n", encoding="utf-8")
    (folder / "relative.py").write_text(
        "from atomr_mp_workers import Actor, method\nfrom .beside import VALUE\n"
        "class Relative(Actor):\n    @method\n    def value(self) -> int:\n        return VALUE\n",
        encoding="utf-8",
    )
    with pytest.raises(errors.ActorLoadFailed, match="a file named by itself is in no package") as refused:
        load(ActorSpec("Relative", f"{folder}/relative.py:Relative"))
    target = refused.value.message.rpartition("name it as ")[2].replace("CLASS", "Relative")
    assert Path(target.rpartition("/")[0]) == (tmp_path if package == "whole" else tmp_path / "outer")
    assert load(ActorSpec("Relative", target)).name == "Relative"
