"""The outputs of `atomr-mp map`: what cannot be written is reported, and leaves nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.cli.results import open_results


def test_a_result_of_no_shape_is_its_item_s_failure(tmp_path: Path) -> None:
    """Lists of several lengths are no array; the rows around them are written."""
    output = tmp_path / "out.npy"
    with open_results(str(output)) as results:
        found = [results.write(index, result) for index, result in enumerate([[1.0, 2.0], [[1.0], [2.0, 3.0]], [3, 4]])]
        results.commit()
    assert [failure is None for failure in found] == [True, False, True]
    assert found[1] is not None
    assert isinstance(found[1].error, errors.Unsupported)
    np.testing.assert_array_equal(np.load(output), [[1, 2], [np.nan, np.nan], [3, 4]])


def fill(path: Path) -> None:
    """Write results until the disk is full."""
    with open_results(str(path)) as results:
        results._file.close()
        results._file = Path("/dev/full").open("wb", buffering=2**20)  # noqa: SIM115 - the output closes it
        for index in range(2**20):
            results.write(index, float(index))


@pytest.mark.parametrize("name", ["out.jsonl", "out.npy"])
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    """Though what is buffered cannot be written when the file is closed either."""
    with pytest.raises(errors.ConfigurationError, match="No space left"):
        fill(tmp_path / name)
    assert not list(tmp_path.iterdir())
