"""From a file and flags to a configuration, or to every mistake with its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_dl.config import DEFAULT_PATH, Config, load, load_with_origins, show
from slurm_dl.config.estimates_section import EstimatesSection
from slurm_dl.estimates.training_speed import SitePriors
from slurm_dl.model.errors import ConfigError

MINIMAL = "manage:\n  partitions: [gpu]\n"
MANY_TIERS = f"policy: {{parameters: {{thresholds_gpu_s: {list(range(1, 65))}}}}}\n"
KARUNA = "policy: {order: karuna}\n"
NATIVE = "preemption: {mode: native, qos: a}\n"
EDF = "policy: {order: edf}\n"

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


def assert_told(found: list[str], expected: list[tuple[str, str]]) -> None:
    """Each line begins with its place and key, and has the telling word."""
    assert len(found) == len(expected), found
    for line, (place, word) in zip(found, expected, strict=True):
        assert line.startswith(f"{place}: "), line
        assert word in line.removeprefix(place)


def test_smallest_file_gives_all_defaults(write: Write) -> None:
    """Only the managed partitions must be named; an empty section does no harm."""
    config = load(write(MINIMAL))

    assert config == Config(manage={"partitions": ["gpu"]})  # type: ignore[arg-type]
    assert config.manage.partitions == ("gpu",)
    assert config.daemon.shadow is True
    assert config.policy.order == "discrete_las"
    assert load(write(MINIMAL + "daemon:\npaths: {}\n")) == config
    assert EstimatesSection().serial_share == SitePriors().serial_share


@pytest.mark.parametrize(
    ("text", "place", "word"),
    [
        *((text, "f.yaml: manage.partitions", "required") for text in ("", "---\n...\n", "~")),
        ("daemon:\n  poll_s: 9\nmanage:\n", "f.yaml:3: manage.partitions", "required"),
        *((text, "f.yaml:1", "mapping") for text in ("[a]", "5", "'x\\n'", "true")),
        ("manage: {partitions: []}", "f.yaml:1: manage.partitions", "at least 1"),
        ("manage: {partitions: [a, b, a]}", "f.yaml:1: manage.partitions", "twice"),
        ("manage: {partitions: gpu}", "f.yaml:1: manage.partitions", "list"),
        ("manage: {partitions: [a, a b, 3]}", "f.yaml:1: manage.partitions.1", "letters"),
    ],
)
def test_a_file_without_partitions_is_refused(
    write: Write, text: str, place: str, word: str
) -> None:
    """What is missing is a mistake of the whole file, or of the section that stands there."""
    assert_told(errors(write(text))[:1], [(place, word)])


@pytest.mark.parametrize(
    ("text", "place", "word"),
    [
        ("daemon:\n  poll_s: 2\n", "4: daemon.fast_poll_s", "(got 5, daemon.poll_s is 2)"),
        ("daemon:\n  poll_s: 2\n  fast_poll_s: 2.5\n", "5: daemon.fast_poll_s", "got 2.5"),
        ("daemon: {poll_s: true}\n", "3: daemon.poll_s", "number (got true)"),
        ("daemon: {poll_s: 1e9}\n", "3: daemon.poll_s", "3600"),
        ("daemon: {poll_s: 9, poll_s: 8}\n", "3: daemon.poll_s", "twice"),
        ("daemon:\n  shadow: yes\n", "4: daemon.shadow", "true or false"),
        ("daemon:\n  log_level: loud\n", "4: daemon.log_level", "'warning'"),
        ("daemon:\n  fast_pol_s: 3\n", "4: daemon.fast_pol_s", "mean fast_poll_s"),
        ("poll_s: 3\n", "3: poll_s", "mean daemon.poll_s"),
        ("zzzzzzzz: 1\n", "3: zzzzzzzz", "cluster, manage"),
        ("5: x\n", "3", "name (got 5)"),
        ("cluster: 5\n", "3: cluster", "section"),
        ("cluster: {slurm_conf: etc/slurm.conf}\n", "3: cluster.slurm_conf", "absolute"),
        ('cluster: {name: "a\\nb"}\n', "3: cluster.name", r"(got 'a\nb')"),
        ("policy:\n  order: lass\n", "4: policy.order", "las or elas (got 'lass')"),
        ("policy:\n  parameters: [a]\n", "4: policy.parameters", "mapping"),
        ("policy:\n  order: fifo\n  parameters: {a: 1}\n", "5: policy.parameters.a", "none"),
        (
            "policy:\n  parameters:\n    thresholds_gpu_s: [5, 3]\n",
            *("5: policy.parameters.thresholds_gpu_s", "increasing"),
        ),
        ("ranking:\n  band_width: 33554432\n", "4: ranking.band_width", "33554431"),
        ("ranking:\n  band_width: 2.5\n", "4: ranking.band_width", "whole"),
        ("ranking:\n  window: 0\n", "4: ranking.window", "at least 1"),
        ("preemption:\n  enabled:\n", "4: preemption.enabled", "no value"),
        ("preemption:\n  max_grace_s: 0.5\n", "4: preemption.max_grace_s", "at least 1"),
        ("preemption:\n  max_grace_s: 900\n", "4: preemption.handover_timeout_s", "is 900)"),
        ("preemption:\n  mode: native\n", "4: preemption.qos", "QOS"),
        (
            f"{MANY_TIERS}{NATIVE}ranking: {{band_width: 33554431}}\n",
            *("4: preemption.mode", "ranking.band_width"),
        ),
        (f"{NATIVE}defragment:\n  enabled: true\n", "5: defragment.enabled", "native"),
        (
            "preemption: {max_gpus_per_hour: 8}\nbreakers:\n  gpus_per_hour: 8\n",
            *("5: breakers.gpus_per_hour", "limit is 8"),
        ),
        ("placement:\n  settle_s: 30\n", "4: placement.settle_s", "daemon.poll_s is 30"),
        ("deadlines:\n  share: 0\n", "4: deadlines.share", "greater than 0"),
        ("deadlines: {account_share: 1.01}\n", "3: deadlines.account_share", "at most 1"),
        ("deadlines: {qos: [a, a]}\n", "3: deadlines.qos", "names a twice"),
        (f"{KARUNA}deadlines:\n  share: 0.76\n", "5: deadlines.share", "0.76 and 0.25"),
        (f"{KARUNA}ranking: {{overdue_share: 0.6}}\n", "4: deadlines.share", "0.5 and 0.6"),
        (f"{KARUNA}{NATIVE}deadlines:\n  qos: [a]\n", "6: deadlines.qos", "Slurm itself preempts"),
        (f"{EDF}{NATIVE}", "3: deadlines.share", "preemption.mode"),
        (f"{EDF}ranking: {{hold: false}}\n", "3: deadlines.share", "ranking.hold"),
        (f"{EDF}placement: {{scheme: cells, steer: true}}\n", "4: placement.scheme", "promises"),
        ("placement:\n  settle_s: 40\ndaemon:\n  poll_s: 50\n", "4: placement.settle_s", "is 50"),
        ("placement:\n  gpu_mem_mb: {a100: 0}\n", "4: placement.gpu_mem_mb.a100", "than 0"),
        ("placement:\n  pack: true\n", "4: placement.pack", "no effect"),
        ("estimates: {gpu_speed: {a100: 0}}\n", "3: estimates.gpu_speed.a100", "than 0"),
        ("estimates: {gpu_speed: {a100: .inf}}\n", "3: estimates.gpu_speed.a100", "finite"),
        ("estimates: {gpu_speed: {a100: fast}}\n", "3: estimates.gpu_speed.a100", "number"),
        ("estimates: {history_days: 1.5}\n", "3: estimates.history_days", "whole"),
        ("estimates: {serial_share: 1.5}\n", "3: estimates.serial_share", "at most 1"),
        ("forecasts: {sample_every_s: 5}\n", "3: forecasts.sample_every_s", "at least 60"),
        ("writes: {burst: [1]}\n", "3: writes.burst", "whole"),
        ("writes: {rate_per_s: .inf}\n", "3: writes.rate_per_s", "finite"),
        ("control:\n  socket_mode: 0666\n", "4: control.socket_mode", "quotes"),
        *(
            (f"control: {{admins: [root, 0, {wrong}]}}\n", "3: control.admins.2", "uid (got")
            for wrong in ("-3", "a b", "true")
        ),
        ("control: {admins: [a, 1, a]}\n", "3: control.admins", "twice"),
        ("metrics: {listen: '1.2.3.4:99999'}\n", "3: metrics.listen", "IP address"),
        ("paths: {run_dir: 5}\n", "3: paths.run_dir", "path (got 5)"),
        (f"paths:\n  run_dir: /{'x' * 80}\n", "4: paths.run_dir", "80 bytes"),
        ("paths:\n  state_dir: /var/../etc\n", "4: paths.state_dir", "'..'"),
    ],
)
def test_one_mistake_is_one_line(write: Write, text: str, place: str, word: str) -> None:
    """At the key that was written, with what may stand there."""
    assert_told(errors(write(MINIMAL + text)), [(f"f.yaml:{place}", word)])


def test_all_mistakes_at_once_in_the_order_of_the_file(write: Write) -> None:
    """None hides another."""
    path = write(
        "manage:\n  partitions: [gpu, 3]\ndaemon:\n  poll_s: -5\n  log_level: loud\n"
        "  log_level: info\npolicy:\n  parameters: {thresholds_gpu_s: [3, x], nob: 3}\n"
        "ranking:\n  window: 0\n5: x\n"
    )

    assert_told(
        errors(path),
        [
            ("f.yaml:2: manage.partitions.1", "quotes"),
            ("f.yaml:4: daemon.poll_s", "than 0"),
            ("f.yaml:5: daemon.log_level", "'debug'"),
            ("f.yaml:6: daemon.log_level", "line 5"),
            ("f.yaml:8: policy.parameters.nob", "unknown"),
            ("f.yaml:8: policy.parameters.thresholds_gpu_s.1", "number"),
            ("f.yaml:10: ranking.window", "at least 1"),
            ("f.yaml:11", "name"),
        ],
    )


def test_bounds_themselves_are_allowed(write: Write) -> None:
    """Limits that say 'at most' include the limit, and 1e7 is a whole number."""
    config = load(
        write(
            MINIMAL + "daemon: {poll_s: 5, fast_poll_s: 5}\n"
            "ranking: {band_width: 1e7}\n"
            "preemption: {max_preemptions: 0, max_gpus_per_hour: 0, handover_timeout_s: 600.5}\n"
            f"paths: {{run_dir: /{'x' * 79}}}\n"
            "placement: {settle_s: 30.5, gpu_mem_mb: {a100: 40960}}\n"
            "estimates: {gpu_speed: {v100: 1, a100: 2.5}}\n"
            "control: {admins: [0, svc-x$, a.b@c], socket_mode: '0600'}\n"
            "metrics: {listen: '[::1]:9477'}\n"
            "cluster: {slurm_conf: /etc/slurm/slurm.conf}\n"
        )
    )

    assert config.ranking.band_width == 10_000_000
    assert config.control.admins == (0, "svc-x$", "a.b@c")
    assert config.cluster.slurm_conf == "/etc/slurm/slurm.conf"
    assert dict(config.estimates.gpu_speed) == {"v100": 1.0, "a100": 2.5}


def test_many_mistakes_are_cut_short(write: Write) -> None:
    """A file of the wrong kind does not flood the terminal, and the rest is counted."""
    lines = errors(write("".join(f"k{i}: 1\n" for i in range(60))))

    assert len(lines) == 51
    assert " 11 more" in lines[-1]


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


TWICE = "policy.parameters={promote_knob: x, promote_knob: 1}"


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("daemon.poll_s=x", [("", "number (got 'x')")]),
        *((flag, [("", "KEY=VALUE")]) for flag in ("daemon", "=5", "daemon.=5", "daemon=5")),
        ("daemon.fast_poll_s.x=5", [("", "daemon.fast_poll_s has no keys")]),
        ("writes.burst=[1", [("", "YAML")]),
        ("writes.bursts=1", [("", "mean burst")]),
        (TWICE, [(": policy.parameters.promote_knob", w) for w in ("twice", "number")]),
        ("manage.partitions=[a, 1]", [(": manage.partitions.1", "quotes")]),
        ("control.admins.x=\n", [(": control.admins", "list")]),
    ],
)
def test_wrong_override_names_the_flag(
    write: Write, flag: str, told: list[tuple[str, str]]
) -> None:
    """As it was typed, after the mistakes of the file."""
    path = write(MINIMAL + "daemon: {fast_poll_s: 7}\nranking: 5\n")
    shown = flag.replace("\n", "\\n")

    assert_told(
        errors(path, flag),
        [("f.yaml:4: ranking", "section"), *((f"--set {shown}{key}", word) for key, word in told)],
    )


def test_a_long_flag_is_cut(write: Write) -> None:
    """It need not fill the screen."""
    assert_told(errors(write(MINIMAL), "zz=" + "y" * 200), [(f"--set zz={'y' * 77}…", "unknown")])


def test_file_comes_from_flag_environment_or_usual_place(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path given wins over the environment, and that over the usual place."""
    path = write(MINIMAL)
    monkeypatch.setattr("slurm_dl.config.loading.DEFAULT_PATH", path)

    assert Path("/etc/slurm_dl/slurm_dl.yaml") == DEFAULT_PATH
    for given, variable, chosen_by in (
        (path, "/nowhere", "flag"),
        (None, "f.yaml", "environment"),
        (None, "", "default"),
    ):
        _, origins = load_with_origins(given, environ={"SLURM_DL_CONFIG": variable})
        assert origins.path_from == chosen_by
    with pytest.raises(ConfigError, match="/nowhere"):
        load(environ={"SLURM_DL_CONFIG": "/nowhere"})


def test_daemon_refuses_a_file_others_can_write(write: Write) -> None:
    """`load` hands the demand for a private file on."""
    path = write(MINIMAL)
    path.chmod(0o666)

    load(path)
    with pytest.raises(ConfigError, match=r"^f.yaml: .*chmod"):
        load(path, require_private=True)


def test_show_gives_every_value_with_its_origin(write: Write) -> None:
    """The whole tree; the origin is file and line, flag or default."""
    path = write(
        MINIMAL + "daemon:\n  poll_s: 60\npolicy: {parameters: {promote_knob: 1, dimensions: 1}}\n"
    )
    config, origins = load_with_origins(
        path, overrides=["control.admins=[root, 7]", "policy.parameters.promote_knob=2"]
    )
    rows = {row.key: row for row in show(config, origins)}

    leaves = {f"{s}.{key}" for s, model in config for key, _ in model} - {"policy.parameters"}
    parameters = {f"policy.parameters.{name}" for name in config.policy.parameters}
    assert rows.keys() == leaves | parameters | {"config_file"}
    for key, value, origin in (
        ("config_file", "f.yaml", "flag"),
        ("manage.partitions", ["gpu"], "f.yaml:2"),
        ("daemon.poll_s", 60.0, "f.yaml:4"),
        ("daemon.shadow", True, "default"),
        ("control.admins", ["root", 7], "flag"),
        ("policy.parameters.promote_knob", 2.0, "flag"),
        ("policy.parameters.dimensions", 1, "f.yaml:5"),
        ("policy.parameters.thresholds_gpu_s", [3250.0, 7200.0, 18000.0], "default"),
        ("paths.run_dir", "/run/slurm_dl", "default"),
    ):
        assert rows[key] == (key, value, origin)
    whole = show(*load_with_origins(path, overrides=["policy.parameters={}"]))
    assert ("policy.parameters.promote_knob", 0.0, "default") in list(whole)


def test_row_text_is_what_would_stand_in_the_file(write: Write) -> None:
    """The printed value can be pasted back: text that YAML would misread is quoted."""
    texts = {row.key: row.text for row in show(*load_with_origins(write(MINIMAL)))}

    assert texts["control.socket_mode"] == '"0666"'
    assert texts["policy.parameters.thresholds_gpu_s"] == "[3250, 7200, 18000]"
    again: dict[str, list[str]] = {}
    for key, text in texts.items():
        section, _, name = key.partition(".")
        if name and "." not in name:
            again.setdefault(section, []).append(f"{name}: {text}")
    flow = "".join(f"{section}: {{{', '.join(keys)}}}\n" for section, keys in again.items())
    assert load(write(flow)) == load(write(MINIMAL))
