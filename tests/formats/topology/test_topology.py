"""Topology files: what they say, what is wrong with them, and what a job takes from them."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.errors import FormatError, SourceError
from stepscope.formats.topology import Tree, in_job, read
from stepscope.formats.topology.hostlist import expand
from stepscope.formats.topology.reader import parse
from stepscope.trace import Host, Job, Switch

CONF = """
# two racks
SwitchName=leaf-0 Nodes=node[001-004,7] LinkSpeed=400
switchname=leaf-1 nodes=node[009-010],\\
    login

SwitchName=spine Switches=leaf-[0-1]
"""
YAML = """
switches:
  - switch: leaf-0
    nodes: node[001-004,7]
  - switch: leaf-1
    nodes: [node009, node010, login]
  - {switch: spine, children: "leaf-[0-1]"}
"""
SLURM_YAML = """
- topology: other
  flat: true
- topology: main
  cluster_default: true
  tree:
    switches:
      - {switch: leaf-0, nodes: "node[001-004,7]"}
      - {switch: leaf-1, nodes: "node[009-010],login"}
      - {switch: spine, children: "leaf-[0-1]"}
"""
JSON = json.dumps({"tree": {"switches": [
    {"switch": "spine", "children": ["leaf-0", "leaf-1"]},
    {"name": "leaf-0", "nodes": "node[001-004,7]"},
    {"name": "leaf-1", "nodes": "node[009-010],login"},
]}})  # fmt: skip
FORMS = pytest.mark.parametrize("text", [CONF, YAML, SLURM_YAML, JSON])


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", ["node1"]),
        ("node[001-003,7]", ["node001", "node002", "node003", "node7"]),
        ("a, b[1-2],a", ["a", "b1", "b2"]),
        ("r[1-2]-n[08-10]-x", ["r1-n08-x", "r1-n09-x", "r1-n10-x",
                               "r2-n08-x", "r2-n09-x", "r2-n10-x"]),
        ("", []),
    ],
)  # fmt: skip
def test_host_lists(text: str, names: list[str]) -> None:
    assert list(expand(text)) == names


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("n[1-2", "unmatched '['"),
        ("n1-2]", "unmatched ']'"),
        ("n[[1]]", "unmatched '['"),
        ("n[1,]", "'' in 'n[1,]' is no number or range"),
        ("n[a-b]", "'a-b' in 'n[a-b]' is no number or range"),
        ("n[9-1]", "the range 9-1 in 'n[9-1]' runs backwards"),
        ("n[0-99999999]", "the range 0-99999999 in 'n[0-99999999]' is too long"),
        ("n[0-9999][0-9999]", "names 100000000 hosts"),
        ("a b", "a space within 'a b'"),
    ],
)
def test_malformed_host_lists(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=r".*") as raised:
        expand(text)
    assert why in str(raised.value)


@FORMS
def test_all_forms_say_the_same(text: str) -> None:
    switches = parse(text).switches
    assert {one.name: one.tier for one in switches.values()} == {
        "leaf-0": 0, "leaf-1": 0, "spine": 1
    }  # fmt: skip
    assert switches["leaf-0"].nodes == ("node001", "node002", "node003", "node004", "node7")
    assert switches["leaf-1"].nodes == ("node009", "node010", "login")
    assert switches["spine"].switches == ("leaf-0", "leaf-1")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("SwitchName=a Nodes=n1\nSwitchName=b", "line 2: switch 'b' has neither Nodes=… nor Sw"),
        ("SwitchName=a Nodes=n[1-", "line 1: unmatched '[' in 'n[1-'"),
        ("SwitchName=a Nodes=n1\n\nSwitchName=a Nodes=n2", "line 3: switch 'a' is already in line"),
        ("SwitchName=a Nodes=n1\nSwitchName=s Switches=b", "line 2: switch 's' is connected to"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a", "line 1: switch 'a' is connected to"),
        ("SwitchName=a Nodes=n1 up", "line 1: expected KEY=VALUE, found 'up'"),
        ("Nodes=n1", "line 1: expected SwitchName=…, found 'Nodes=n1'"),
        ("BlockName=b1 Nodes=n[1-18]", "line 1: blocks of Slurm's topology/block plugin"),
        ("", "expected a list under `switches`"),
        ("switches: [}", "line 1: "),
        ("switches:\n - nodes: a\n", "switch 1: its name (key `switch`) is missing"),
        ("switches:\n - switch: a\n", "switch 1: a has neither nodes nor children"),
        ("switches:\n - {switch: a, nodes: 7}\n", "switch 1: `nodes` is neither a host list nor"),
        ("switches: 7", "expected a list under `switches`"),
        ("[1, 2]", "expected a list under `switches`"),
        ("[" * 100_000, ""),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_line(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "topology"
    path.write_text(text)
    with pytest.raises(FormatError) as raised:
        read(path)
    assert str(raised.value).startswith(f"cannot read the topology {path}: ")
    assert why in str(raised.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="No such file"):
        read(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="is no text"):
        read(tmp_path / "binary")


def test_without_pyyaml_json_and_slurm_files_still_work(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without_yaml(name: str, *rest: Any, **more: Any) -> Any:
        if name == "yaml":
            raise ImportError(name)
        return imported(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_yaml)
    assert parse(JSON).switches.keys() == parse(CONF).switches.keys()
    with pytest.raises(ValueError, match=r"pip install 'stepscope\[yaml\]', or write it as JSON"):
        parse(YAML)


def job(*hosts: Host) -> Job:
    return Job("job", 2 * len(hosts), hosts)


def placed(tree: Tree, *hosts: Host) -> tuple[tuple[Switch, ...], tuple[str, ...]]:
    found, problems = in_job(tree, job(*hosts))
    assert found.hosts == hosts and found.fabric is not None
    return found.fabric.switches, problems


def test_a_job_gets_the_switches_of_its_own_hosts() -> None:
    """With all adapters of each host; a node of the cluster that the job does not use is absent."""
    hosts = (Host("node001", (0, 1), ("mlx5_0", "mlx5_1")), Host("node010", (2, 3), ("mlx5_0",)))
    switches, problems = placed(parse(CONF), *hosts)
    assert switches == (
        Switch("leaf-0", 0, ("node001/mlx5_0", "node001/mlx5_1")),
        Switch("leaf-1", 0, ("node010/mlx5_0",)),
        Switch("spine", 1, ("leaf-0", "leaf-1")),
    )
    assert not problems


def test_switches_without_hosts_of_the_job_are_left_out() -> None:
    switches, _ = placed(parse(CONF), Host("node001", (0, 1), ("eth0",)))
    assert [one.name for one in switches] == ["leaf-0", "spine"]


def test_single_adapters_and_full_names() -> None:
    """Rails: every adapter of a host is connected to a switch of its own."""
    text = "SwitchName=rail-0 Nodes=n[1-2]/mlx5_0\nSwitchName=rail-1 Nodes=n[1-2]/mlx5_1"
    hosts = [Host(f"n{at}.cluster.local", (at,), ("mlx5_0", "mlx5_1")) for at in (1, 2)]
    switches, _ = placed(parse(text), *hosts)
    assert switches[1] == Switch(
        "rail-1", 0, ("n1.cluster.local/mlx5_1", "n2.cluster.local/mlx5_1")
    )


def test_a_host_without_known_adapters_stands_for_itself() -> None:
    switches, _ = placed(parse(CONF), Host("node001", (0, 1)))
    assert switches[0].children == ("node001",)


def test_hosts_that_are_not_in_the_file_are_reported() -> None:
    _, problems = placed(parse(CONF), Host("node001", (0,)), Host("gpu-9", (1,)))
    assert problems == ("gpu-9: not connected to any switch of the file",)


def test_the_file_of_another_cluster_is_refused() -> None:
    with pytest.raises(ValueError, match=r"none of the job's hosts \(a, b\) is among its nodes"):
        in_job(parse(CONF), job(Host("a", (0,)), Host("b", (1,))))


def test_a_job_without_hosts_is_left_as_it_is() -> None:
    found, problems = in_job(parse(CONF), job())
    assert found.fabric is None and len(problems) == 1


LETTERS = st.text("SwitchNameode=s[]-,0123456789 #\\\n{}:'\"", max_size=200)
LINES = st.lists(
    st.sampled_from(["SwitchName=a", "SwitchName=b", "Nodes=n[1-3]", "Nodes=", "Switches=a,b",
                     "Switches=[", "\n", "#", " ", "\\\n", "=", "switches:\n", " - switch: c\n",
                     "   nodes: x\n", '{"switches": [', '{"switch": "a", "nodes": "n"}', "]}"]),
    max_size=12,
).map("".join)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(LETTERS | LINES | st.text(max_size=60))
def test_any_text_is_a_tree_or_a_reason(text: str) -> None:
    try:
        tree = parse(text)
    except ValueError as error:
        assert str(error)
        return
    for one in tree.switches.values():
        assert all(tree.switches[child].tier < one.tier for child in one.switches)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 300), st.integers(1, 9)), max_size=5)
)
def test_ranges_name_every_number_once(ranges: list[tuple[int, int, int]]) -> None:
    texts = [f"{low:0{width}d}-{low + count}" for low, count, width in ranges]
    names = expand(f"n[{','.join(texts)}]") if texts else ()
    assert {int(name[1:]) for name in names} == {
        number for low, count, _ in ranges for number in range(low, low + count + 1)
    }
    assert len(set(names)) == len(names)
