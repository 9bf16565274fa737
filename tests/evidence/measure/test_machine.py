"""What a folder tells of the machine that measured its tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import measurements, read_provenance

from iosim.base.errors import InputError
from iosim.base.schema import read_toml
from iosim.evidence.measure.machine import PROVENANCE, write_provenance


def test_a_folder_tells_of_each_of_its_tables(tmp_path: Path) -> None:
    first, two = tmp_path / "one.csv", tmp_path / "two.npz"
    facts = {
        "gpu": 'a "GPU"\\',
        "runs": ["a", "b"],
        "largest": {"fp16": 2e-3, "p 95": 1},
        "many": 3,
        "left": True,
    }
    write_provenance(two, {"gpu": "another", "nothing": ""})
    write_provenance(first, {"gpu": "before", "old": 1})
    write_provenance(first, facts)
    assert read_provenance(first) == facts
    assert read_provenance(two) == {"gpu": "another"}
    assert read_provenance(tmp_path / "three.csv") == {}
    assert [path.name for path in tmp_path.iterdir()] == [PROVENANCE]


def test_a_provenance_that_is_no_toml_is_refused_and_left(tmp_path: Path) -> None:
    (tmp_path / PROVENANCE).write_text("gpu = ", encoding="utf-8")
    with pytest.raises(InputError, match="not valid TOML"):
        write_provenance(tmp_path / "one.csv", {"gpu": "one"})
    assert (tmp_path / PROVENANCE).read_text(encoding="utf-8") == "gpu = "


@pytest.mark.parametrize("name", ["h200_iosim_kernels.csv", "h200_orders.csv"])
def test_every_table_that_a_folder_tells_of_is_there(name: str) -> None:
    folder = measurements(name).parent
    provenance = read_toml(folder / PROVENANCE)
    assert provenance.pop("schema") == 1
    assert all((folder / file).is_file() for file in provenance)
    assert not list(folder.glob("*.provenance.toml"))
