from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_dl.config import DEFAULT_PATH, Config, load, load_with_origins, show
from slurm_dl.model.errors import ConfigError
from slurm_dl.policies import registry

ON_SLURM = sum(map(registry.runs_on_slurm, registry.POLICIES.values()))
SECTIONS = (
    "cluster, manage, daemon, policy, ranking, preemption, breakers, placement, defragment, "
    "estimates, forecasts, writes, control, takeover, metrics, paths"
)
MINIMAL = "manage:\n  partitions: [gpu]\n"

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def put(text: str) -> Path:
        Path("f.yaml").write_text(text)
        return Path("f.yaml")

    return put


def errors(path: Path, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides=overrides)
    return str(caught.value).splitlines()


def test_smallest_file_gives_all_defaults(write: Write) -> None:
    """Only the managed partitions must be named."""
    config = load(write(MINIMAL))

    assert config == Config(manage={"partitions": ["gpu"]})  # type: ignore[arg-type]
    assert config.manage.partitions == ("gpu",)
    assert config.daemon.shadow is True
    assert config.policy.order == "discrete_las"
    assert config.paths.state_dir == Path("/var/lib/slurm_dl")


def test_empty_sections_are_all_defaults(write: Write) -> None:
    """A section whose keys are all commented out does no harm."""
    assert load(write(MINIMAL + "daemon:\npaths: {}\n")) == load(write(MINIMAL))


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n...\n", "~", "daemon:\n"])
def test_empty_file_lacks_the_partitions(write: Write, text: str) -> None:
    """What is required and missing is a mistake of the whole file."""
    assert errors(write(text)) == ["f.yaml: manage.partitions: is required"]


def test_missing_key_has_the_line_of_its_section(write: Write) -> None:
    """Where the section stands, that is where the key belongs."""
    assert errors(write("daemon:\n  poll_s: 9\nmanage:\n")) == [
        "f.yaml:3: manage.partitions: is required"
    ]


@pytest.mark.parametrize(
    ("text", "got"), [("[a]", "a list"), ("5", "5"), ("'x\\n'", r"'x\\n'"), ("true", "true")]
)
def test_top_level_must_be_sections(write: Write, text: str, got: str) -> None:
    """A file that is no mapping is refused in one line."""
    assert errors(write(text)) == [
        f"f.yaml:1: must be a mapping of sections, such as 'manage:' (got {got})"
    ]


def test_all_mistakes_at_once_in_the_order_of_the_file(write: Write) -> None:
    """Every mistake is one line with file, line, key, rule and value; none hides another."""
    path = write("""\
manage:
  partitions: [gpu, "a b", 3]
daemon:
  poll_s: -5
  fast_pol_s: 3
  shadow: yes
  log_level: loud
  log_level: info
poll_s: 3
preemption:
  handover_timeout_s: 300
  enabled:
policy:
  parameters:
    thresholds_gpu_s: [3, x]
    nob: 3
ranking:
  band_width: 2.5
  window: 0
control:
  socket_mode: 0666
  admins: [root, 0, -3, a b, true, root]
paths:
  run_dir: run
  state_dir: /var/../etc
cluster: 5
writes: {burst: [1], rate_per_s: .inf}
5: x
""")

    assert errors(path) == [
        (
            "f.yaml:2: manage.partitions.1: must be a partition's name: letters, digits and _ . + "
            "- only (got 'a b')"
        ),
        "f.yaml:2: manage.partitions.2: must be text (got 3); put it in quotes",
        "f.yaml:4: daemon.poll_s: must be greater than 0 (got -5)",
        (
            "f.yaml:5: daemon.fast_pol_s: unknown key; "
            "did you mean fast_poll_s or slow_poll_s or poll_s?"
        ),
        "f.yaml:6: daemon.shadow: must be true or false (got 'yes')",
        "f.yaml:7: daemon.log_level: must be 'debug', 'info', 'warning' or 'error' (got 'loud')",
        "f.yaml:8: daemon.log_level: is given twice (first in line 7)",
        "f.yaml:9: poll_s: unknown key; did you mean daemon.poll_s?",
        (
            "f.yaml:11: preemption.handover_timeout_s: must be greater than preemption.max_grace_s "
            "(got 300, preemption.max_grace_s is 600)"
        ),
        "f.yaml:12: preemption.enabled: has no value: give it one, or delete the line",
        "f.yaml:15: policy.parameters.thresholds_gpu_s.1: must be a number (got 'x')",
        (
            "f.yaml:16: policy.parameters.nob: unknown key; possible here: thresholds_gpu_s, "
            "promote_knob, dimensions"
        ),
        "f.yaml:18: ranking.band_width: must be a whole number (got 2.5)",
        "f.yaml:19: ranking.window: must be at least 1 (got 0)",
        (
            "f.yaml:21: control.socket_mode: must be '0600', '0660' or '0666' (got 666); put it in "
            "quotes"
        ),
        "f.yaml:22: control.admins.2: must be a user name or a uid (got -3)",
        "f.yaml:22: control.admins.3: must be a user name or a uid (got 'a b')",
        "f.yaml:22: control.admins.4: must be a user name or a uid (got true)",
        "f.yaml:24: paths.run_dir: must be an absolute path without '..' (got 'run')",
        "f.yaml:25: paths.state_dir: must be an absolute path without '..' (got '/var/../etc')",
        "f.yaml:26: cluster: must be a section with keys of its own (got 5)",
        "f.yaml:27: writes.burst: must be a whole number (got a list)",
        "f.yaml:27: writes.rate_per_s: must be a finite number (got inf)",
        "f.yaml:28: a key must be a name (got 5)",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "daemon:\n  poll_s: 2\n",
            (
                "f.yaml:4: daemon.fast_poll_s: must be at most daemon.poll_s (got 5, daemon.poll_s "
                "is 2)"
            ),
        ),
        (
            "daemon:\n  poll_s: 2\n  fast_poll_s: 2.5\n",
            (
                "f.yaml:5: daemon.fast_poll_s: must be at most daemon.poll_s (got 2.5, "
                "daemon.poll_s is 2)"
            ),
        ),
        (
            "preemption:\n  max_grace_s: 900\n",
            (
                "f.yaml:4: preemption.handover_timeout_s: must be greater than "
                "preemption.max_grace_s (got 900, preemption.max_grace_s is 900)"
            ),
        ),
        (
            "preemption:\n  max_grace_s: 0.5\n",
            "f.yaml:4: preemption.max_grace_s: must be at least 1 (got 0.5)",
        ),
        (
            "ranking:\n  band_width: 33554432\n",
            "f.yaml:4: ranking.band_width: must be at most 33554431 (got 33554432)",
        ),
        (
            "policy:\n  parameters:\n    thresholds_gpu_s: [5, 3]\n",
            (
                "f.yaml:5: policy.parameters.thresholds_gpu_s: thresholds_gpu_s must be strictly "
                "increasing (got [5.0, 3.0])"
            ),
        ),
        (
            "policy:\n  order: lass\n",
            (
                f"f.yaml:4: policy.order: must be one of {ON_SLURM} policy names, perhaps las or "
                "elas (got 'lass')"
            ),
        ),
        (
            "policy:\n  order: fifo\n  parameters: {a: 1}\n",
            "f.yaml:5: policy.parameters.a: unknown key; possible here: none",
        ),
        (
            "policy:\n  parameters: [a]\n",
            "f.yaml:4: policy.parameters: must be a mapping of names to values (got a list)",
        ),
        ("control: {admins: [a, 1, a]}\n", "f.yaml:3: control.admins: names a twice"),
        (
            "paths:\n  run_dir: /%s\n" % ("x" * 80),
            "f.yaml:4: paths.run_dir: must be at most 80 bytes long, for the path of a unix socket",
        ),
        ("paths: {run_dir: 5}\n", "f.yaml:3: paths.run_dir: must be a path (got 5)"),
        (
            "cluster: {slurm_conf: etc/slurm.conf}\n",
            (
                "f.yaml:3: cluster.slurm_conf: must be an absolute path without '..' (got "
                "'etc/slurm.conf')"
            ),
        ),
        (
            'cluster: {name: "a\\nb"}\n',
            (
                "f.yaml:3: cluster.name: must be a name: letters, digits and _ . + "
                "- only (got 'a\\nb')"
            ),
        ),
        ("daemon: {poll_s: true}\n", "f.yaml:3: daemon.poll_s: must be a number (got true)"),
        (
            "daemon: {poll_s: 1e9}\n",
            "f.yaml:3: daemon.poll_s: must be at most 3600 (got 1000000000)",
        ),
        (
            "zzzzzzzz: 1\n",
            f"f.yaml:3: zzzzzzzz: unknown key; possible here: {SECTIONS}",
        ),
    ],
)
def test_one_mistake_is_one_line(write: Write, text: str, message: str) -> None:
    """A single mistake gives exactly its own line, at the key that was written."""
    assert errors(write(MINIMAL + text)) == [message]


@pytest.mark.parametrize(
    ("partitions", "message"),
    [
        ("[]", "manage.partitions: must have at least 1 entry (got a list)"),
        ("[a, b, a]", "manage.partitions: names a twice"),
        ("gpu", "manage.partitions: must be a list, such as [a, b] (got 'gpu')"),
    ],
)
def test_partitions_are_a_list_without_repetition(
    write: Write, partitions: str, message: str
) -> None:
    """At least one partition, none twice, and never a bare word."""
    assert errors(write(f"manage: {{partitions: {partitions}}}")) == [f"f.yaml:1: {message}"]


def test_bounds_themselves_are_allowed(write: Write) -> None:
    """Limits that say 'at most' include the limit, and 1e7 is a whole number."""
    config = load(
        write(
            MINIMAL + "daemon: {poll_s: 5, fast_poll_s: 5}\n"
            "ranking: {band_width: 1e7}\n"
            "preemption: {max_preemptions: 0, max_gpus_per_hour: 0, handover_timeout_s: 600.5}\n"
            f"paths: {{run_dir: /{'x' * 79}}}\n"
            "control: {admins: [0, svc-x$, a.b@c], socket_mode: '0600'}\n"
            "cluster: {slurm_conf: /etc/slurm/slurm.conf}\n"
        )
    )

    assert config.ranking.band_width == 10_000_000
    assert config.control.admins == (0, "svc-x$", "a.b@c")
    assert config.cluster.slurm_conf == "/etc/slurm/slurm.conf"


def test_many_mistakes_are_cut_short(write: Write) -> None:
    """A file of the wrong kind does not flood the terminal, and the rest is counted."""
    lines = errors(write("".join(f"k{i}: 1\n" for i in range(60))))

    assert len(lines) == 51
    assert lines[-1] == "f.yaml: and 11 more mistakes"


def test_override_wins_and_is_checked_like_the_file(write: Write) -> None:
    """``--set`` values are YAML, replace what the file says, and may be the only source."""
    config = load(
        write(MINIMAL + "daemon: {poll_s: -1}\ncluster: {name: a}\n"),
        overrides=[
            "daemon.poll_s=60",
            "manage.partitions=[a, b]",
            "cluster.name=",
            "policy.parameters.promote_knob=2",
            "daemon.log_level=debug",
            "daemon.log_level=error",
        ],
    )

    assert config.daemon.poll_s == 60
    assert config.manage.partitions == ("a", "b")
    assert config.cluster.name == ""
    assert config.policy.parameters["promote_knob"] == 2
    assert config.daemon.log_level == "error"


def test_wrong_override_names_the_flag(write: Write) -> None:
    """Mistakes in flags come after those of the file and show the flag as it was typed."""
    path = write(MINIMAL + "daemon: {fast_poll_s: 7}\nranking: 5\n")

    assert errors(
        path,
        "daemon.poll_s=x",
        "daemon",
        "=5",
        "daemon.=5",
        "daemon=5",
        "daemon.fast_poll_s.x=5",
        "ranking.window=5",
        "writes.burst=[1",
        "writes.bursts=1",
        "policy.parameters={promote_knob: x, promote_knob: 1}",
        "manage.partitions=[a, 1]",
        "control.admins.x=\n",
        "zz=" + "y" * 200,
    ) == [
        "f.yaml:4: ranking: must be a section with keys of its own (got 5)",
        "--set daemon.poll_s=x: must be a number (got 'x')",
        "--set daemon: must be KEY=VALUE, such as daemon.poll_s=5",
        "--set =5: must be KEY=VALUE, such as daemon.poll_s=5",
        "--set daemon.=5: must be KEY=VALUE, such as daemon.poll_s=5",
        "--set daemon=5: is a section; set one of its keys, daemon.KEY=VALUE",
        "--set daemon.fast_poll_s.x=5: daemon.fast_poll_s has no keys of its own",
        "--set ranking.window=5: ranking has no keys of its own",
        "--set writes.burst=[1: is not valid YAML: expected ',' or ']', but got '<stream end>'",
        "--set writes.bursts=1: unknown key; did you mean burst?",
        (
            "--set policy.parameters={promote_knob: x, promote_knob: 1}: "
            "policy.parameters.promote_knob: is given twice"
        ),
        (
            "--set policy.parameters={promote_knob: x, promote_knob: 1}: "
            "policy.parameters.promote_knob: must be a number (got 'x')"
        ),
        (
            "--set manage.partitions=[a, 1]: manage.partitions.1: must be text (got 1); put it in "
            "quotes"
        ),
        (
            r"--set control.admins.x=\n: control.admins: must be a list, such as [a, b] (got a "
            "mapping)"
        ),
        f"--set zz={'y' * 77}…: unknown key; possible here: {SECTIONS}",
    ]


def test_file_comes_from_flag_environment_or_usual_place(write: Write) -> None:
    """The path given wins over the environment, and that over the usual place."""
    path = write(MINIMAL)
    environ = {"SLURM_DL_CONFIG": "f.yaml"}

    assert load_with_origins(path, environ={"SLURM_DL_CONFIG": "g"})[1].path_from == "flag"
    assert load_with_origins(environ=environ)[1].path_from == "environment"
    assert load(environ=environ) == load(path)
    with pytest.raises(ConfigError, match=r"^/nowhere: no such file$"):
        load(environ={"SLURM_DL_CONFIG": "/nowhere"})


def test_usual_place_is_read_when_nothing_is_named(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty variable counts as none."""
    assert Path("/etc/slurm_dl/slurm_dl.yaml") == DEFAULT_PATH
    monkeypatch.setattr("slurm_dl.config.loading.DEFAULT_PATH", write(MINIMAL))

    assert load_with_origins(environ={"SLURM_DL_CONFIG": ""})[1].path_from == "default"


def test_daemon_refuses_a_file_others_can_write(write: Write) -> None:
    """`load` hands the demand for a private file on."""
    path = write(MINIMAL)
    path.chmod(0o666)

    load(path)
    with pytest.raises(ConfigError, match=r"^f.yaml: can be written by group or others"):
        load(path, require_private=True)


def test_show_gives_every_value_with_its_origin(write: Write) -> None:
    """Rows cover the whole tree; the origin is file and line, flag or default."""
    path = write(MINIMAL + "daemon:\n  poll_s: 60\npolicy: {parameters: {promote_knob: 1}}\n")
    config, origins = load_with_origins(
        path, overrides=["control.admins=[root, 7]", "policy.parameters.promote_knob=2"]
    )
    rows = {row.key: row for row in show(config, origins)}

    leaves = {f"{s}.{key}" for s, model in config for key, _ in model} - {"policy.parameters"}
    parameters = {f"policy.parameters.{name}" for name in config.policy.parameters}
    assert rows.keys() == leaves | parameters | {"config_file"}
    assert rows["config_file"] == ("config_file", "f.yaml", "flag")
    assert rows["manage.partitions"] == ("manage.partitions", ["gpu"], "f.yaml:2")
    assert rows["daemon.poll_s"] == ("daemon.poll_s", 60.0, "f.yaml:4")
    assert rows["daemon.shadow"] == ("daemon.shadow", True, "default")
    assert rows["control.admins"] == ("control.admins", ["root", 7], "flag")
    assert rows["policy.parameters.promote_knob"][1:] == (2.0, "flag")
    assert rows["policy.parameters.thresholds_gpu_s"][1:] == ([3250.0, 7200.0, 18000.0], "default")
    assert rows["paths.run_dir"][1:] == ("/run/slurm_dl", "default")


def test_row_text_is_what_would_stand_in_the_file(write: Write) -> None:
    """The printed value can be pasted back: text that YAML would misread is quoted."""
    texts = {row.key: row.text for row in show(*load_with_origins(write(MINIMAL)))}

    assert texts["control.socket_mode"] == '"0666"'
    assert texts["cluster.name"] == '""'
    assert texts["daemon.shadow"] == "true"
    assert texts["daemon.poll_s"] == "30"
    assert texts["policy.parameters.thresholds_gpu_s"] == "[3250, 7200, 18000]"
    assert texts["paths.run_dir"] == "/run/slurm_dl"
    again: dict[str, list[str]] = {}
    for key, text in texts.items():
        section, _, name = key.partition(".")
        if name and "." not in name:
            again.setdefault(section, []).append(f"{name}: {text}")
    flow = "".join(f"{section}: {{{', '.join(keys)}}}\n" for section, keys in again.items())
    assert load(write(flow)) == load(write(MINIMAL))


def test_mistake_that_leaves_a_valid_tree_is_still_one(write: Write) -> None:
    """A key given twice or a flag without a value is refused even if all the rest would do."""
    assert errors(write(MINIMAL + "daemon: {poll_s: 9, poll_s: 8}\n")) == [
        "f.yaml:3: daemon.poll_s: is given twice (first in line 3)"
    ]
    assert errors(write(MINIMAL), "daemon.poll_s") == [
        "--set daemon.poll_s: must be KEY=VALUE, such as daemon.poll_s=5"
    ]


def test_override_of_a_mapping_replaces_it_whole(write: Write) -> None:
    """What the file said inside a mapping that a flag replaces is gone, its origin too."""
    path = write(MINIMAL + "policy: {parameters: {promote_knob: 1}}\n")
    config, origins = load_with_origins(path, overrides=["policy.parameters={}"])
    rows = {row.key: row for row in show(config, origins)}

    assert rows["policy.parameters.promote_knob"][1:] == (0.0, "default")
