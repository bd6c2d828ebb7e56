"""Script templates made into batch scripts with Jinja, which only who submits a job waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jinja2
import jinja2.sandbox

from slurm_dl.model.errors import ConfigError
from slurm_dl.submit import script_templates
from slurm_dl.submit.shell_quoting import UnquotedError, quote


def render(
    name: str, values: dict[str, object], where: Sequence[script_templates.TemplateDirectory]
) -> str:
    """The script that the template *name* makes of *values*.

    Raises:
        ConfigError: The template is missing or wrong.
    """
    found = script_templates.find(name, where)
    try:
        script = _environment(where).get_template(name).render(values)
    except jinja2.TemplateSyntaxError as err:
        msg = f"template {err.filename or found.path}:{err.lineno}: {err.message}"
        raise ConfigError(msg) from None
    except (jinja2.TemplateError, UnquotedError, TypeError, ValueError) as err:
        msg = f"template {found.path}: {err}"
        raise ConfigError(msg) from None
    if not script.startswith("#!"):
        msg = f"template {found.path}: the script must begin with #! and the shell"
        raise ConfigError(msg)
    if "\r" in script or "\0" in script:
        msg = f"template {found.path}: the script has a carriage return or a NUL; sbatch refuses it"
        raise ConfigError(msg)
    return script


def _environment(where: Sequence[script_templates.TemplateDirectory]) -> jinja2.Environment:
    # The sandbox is not there against users, whose text is only ever a value. It makes a template
    # unable to do anything but produce text, so that --dry-run on a foreign template is harmless.
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        loader=jinja2.FunctionLoader(_loader(where)),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # a shell script, not HTML; `quote` is the escaping
        finalize=_known,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters["quote"] = quote
    return env


def _known(value: object) -> object:
    """*value*, to be printed: none would become the word None in somebody's command."""
    if value is None:
        msg = (
            "it prints a value that this job has not; of a range of --nodes, gpus_per_node and"
            " ntasks_per_node are none"
        )
        raise ValueError(msg)
    return value


def _loader(
    where: Sequence[script_templates.TemplateDirectory],
) -> Callable[[str], tuple[str, str, None]]:
    def load(name: str) -> tuple[str, str, None]:
        found = script_templates.find(name, where)
        return found.text(), found.path, None

    return load
