from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.startup.config import from_text, gather
from atomr_mp.startup.planning import check
from atomr_mp.supervision.settings import PoolSettings
from tests.in_turn import in_turn

TEXTS = {"bool": "true", "int": "7000", "float": "7.5", "list[str]": "a.b:C, d.py:E"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration file."""
    path = tmp_path / "pool.toml"
    path.write_text("gpus = '3'\nmax_restarts = 1\nwithin_s = 5\nactors = ['words.py:Words']\n")
    return path


def test_what_is_given_comes_before_the_environment_and_that_before_the_file(file: Path) -> None:
    """Each setting says where it comes from."""
    found = gather(
        file,
        {"gpus": "1", "backend": None},
        {"ATOMR_MP_GPUS": "2", "ATOMR_MP_MAX_RESTARTS": "9", "ATOMR_MP_CORE_DUMPS": "true", "PATH": "/bin"},
    )
    config = found.settings
    assert (config.gpus, config.max_restarts, config.within_s, config.core_dumps) == ("1", 9, 5.0, True)
    assert config.actors == [f"{file.parent}/words.py:Words"]
    sources = {name: found.sources[name] for name in ("gpus", "max_restarts", "within_s", "core_dumps", "backend")}
    assert sources == {
        "gpus": "option",
        "max_restarts": "environment",
        "within_s": str(file),
        "core_dumps": "environment",
        "backend": "default",
    }
    assert found.sources.keys() == set(PoolSettings.__struct_fields__)


@in_turn("field", sorted({*PoolSettings.__struct_fields__} - {"worlds"}))  # whose form is JSON, see test_world_settings
def test_every_setting_can_be_given_in_the_environment(field: str) -> None:
    """The variable is its name in capital letters. A value of another type is an error that names the variable."""
    value = getattr(PoolSettings(), field)
    known = {"backend": "host", "completion": "polled", "standby": "hot", "log_errors": "type", "workers_per_gpu": "7"}
    known |= {"threads_per_worker": "7", "kernels": "all"}
    text = known.get(field) or TEXTS.get("list[str]" if isinstance(value, list) else type(value).__name__, "text")
    found = gather(None, {}, {f"ATOMR_MP_{field.upper()}": text})
    assert found.sources[field] == "environment"
    expected = text.split(", ") if isinstance(value, list) else type("" if value is None else value)(text)
    assert getattr(found.settings, field) == expected
    if isinstance(value, bool | int | float):
        with pytest.raises(errors.ConfigurationError, match=rf"^ATOMR_MP_{field.upper()} is 'much': Expected"):
            gather(None, {}, {f"ATOMR_MP_{field.upper()}": "much"})


def test_a_variable_that_is_no_setting_is_told_and_no_error() -> None:
    """Orchestrators make names of their own out of a service's."""
    found = gather(None, {}, {"ATOMR_MP_SERVICE_HOST": "10.0.0.1"})
    assert found.unknown == ["ATOMR_MP_SERVICE_HOST"]
    assert found.settings == PoolSettings()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("gpu", "1", "there is no setting 'gpu'"),
        ("max_restarts", "1.5", "--set it is '1.5': Expected `int`"),
        ("window_requests", "0", ">= 1"),
        ("core_dumps", "maybe", "Expected `bool`"),
        ("backend", "tpu", "--set it is 'tpu'; it must be one of auto, cuda, host"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(name: str, text: str, says: str) -> None:
    """The error says where it was written, and which values there are."""
    with pytest.raises(errors.ConfigurationError) as refused:
        from_text("--set it", name, text)
    assert says in refused.value.message


def test_a_check_needs_no_machine(file: Path) -> None:
    """A setting that cannot work anywhere is refused without a look for hardware."""
    with pytest.raises(errors.ConfigurationError, match="does not exist"):
        check(gather(file, {}).settings)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"within_s": 0.0}, "within_s is 0.0: Expected `float` > 0.0"),
        ({"backoff_factor": 0.9}, "backoff_factor is 0.9: Expected `float` >= 1.0"),
        ({"backoff_factor": math.inf}, "backoff_factor is inf"),
        ({"backoff_initial_s": 0.5, "backoff_max_s": 0.3}, "backoff_max_s must be at least 0.5 (backoff_initial_s)"),
    ],
)
def test_a_restart_policy_that_has_no_meaning_is_refused(settings: dict[str, float], says: str) -> None:
    """An empty window, a shrinking or endless delay, and a first delay above the longest."""
    with pytest.raises(errors.ConfigurationError) as refused:
        check(gather(None, settings, {}).settings)
    assert says in refused.value.message


@given(
    name=st.sampled_from([each.name for each in msgspec.structs.fields(PoolSettings) if each.type is not bool]),
    wrong=st.sampled_from([float("nan"), float("inf"), 1e300, -1, 2**70, -(2**70), object(), ["x", 1], {}])
    | st.text("xyz", min_size=1),
)
@example(name="backend", wrong="hots")
def test_a_setting_that_cannot_be_names_itself(name: str, wrong: Any) -> None:
    """With what it was; and what it may be, if these are words. Others are taken, and can be planned with."""
    try:
        found = gather(None, {name: wrong}, {}).settings
        check(found)
    except errors.ConfigurationError as error:
        told = str(error)
    else:
        for field in msgspec.structs.fields(PoolSettings):
            value = getattr(found, field.name)
            assert not isinstance(value, int) or 0 <= value < 2**63, field.name
            assert not isinstance(value, float) or 0 <= value <= (4e8 if field.name.endswith("_s") else 1e308), (
                field.name
            )
        return
    assert name in told or name in {"pool", "actors"}  # which are told of by their values
    assert "it must be one of " in told or name not in {"backend", "standby", "completion"}


def test_a_word_that_is_none_of_a_setting_says_which_are() -> None:
    """And which one may be meant."""
    with pytest.raises(errors.ConfigurationError, match="one of auto, cuda, host; did you mean host"):
        gather(None, {"backend": "hots"}, {})
