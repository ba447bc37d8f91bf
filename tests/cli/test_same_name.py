"""A name of a job that is used again."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.cli.same_name import why_mixed


def test_a_second_run_of_a_name_on_a_host_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.cli.same_name.host_name", lambda: "host-0")
    assert why_mixed(str(tmp_path), "job") is None
    known = tmp_path / "job" / "topology"
    known.mkdir(parents=True)
    (known / "host-1.json").write_text("{}")
    assert why_mixed(str(tmp_path), "job") is None, "another host of the same job"
    (known / "host-0.json").write_text("{}")
    assert "earlier run" in (why_mixed(str(tmp_path), "job") or "")
