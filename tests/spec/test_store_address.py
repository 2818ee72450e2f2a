"""`history.path` holds no login: it would be shown wherever the tables are named."""

from pathlib import Path

import pytest

from fleet.config.load import load
from fleet.errors import ConfigError
from fleet.history.tables import TablePlace

INLINE = [
    "s3://AKIAX:hunter2@bucket/fleet/main",
    "s3a://AKIAX:hunter2/with+slash@bucket/fleet",
    "s3://hunter2@bucket/fleet",
    "gs://:hunter2@bucket/fleet",
    "abfss://:hunter2@account.dfs.core.windows.net/container",
    "abfss://c@account.dfs.core.windows.net/p?client_secret=hunter2",
    "hdfs://ann:hunter2@namenode:9000/fleet",
]
PLAIN = [
    "/var/lib/fleet/a:b@c",
    "file:///var/lib/fleet/a:b@c",
    "s3://bucket/team@x/a:b",
    "abfss://container@account.dfs.core.windows.net/fleet",
    "hdfs://ann@namenode:9000/fleet",
]


def loaded(folder: Path, path: str, **environ: str) -> str | None:
    """What fleet.yaml with this path says of it."""
    file = folder / "fleet.yaml"
    file.write_text(f'history: {{path: "{path}"}}\n')
    return load(file, environ).history.path


@pytest.mark.parametrize("path", INLINE)
def test_a_login_in_the_path_is_refused(tmp_path: Path, path: str):
    """In the file, by a variable that holds it, and in Python; never repeated."""
    for refusing in (
        lambda: loaded(tmp_path, path),
        lambda: loaded(tmp_path, "${PLACE}", PLACE=path),
        lambda: TablePlace(path),
    ):
        with pytest.raises(ConfigError, match=r"history\.path.* holds a login.*AWS_ACCESS") as told:
            refusing()
        assert "hunter2" not in str(told.value)


@pytest.mark.parametrize("path", ["~/history", "~nobody/history", "file://~/history"])
def test_somebodys_home_is_refused(tmp_path: Path, path: str):
    """It was taken for a folder named ~, in the folder where each command happened to run."""
    with pytest.raises(ConfigError, match=r"yaml:1: history\.path: begins with ~.*the whole path"):
        loaded(tmp_path, path)


@pytest.mark.parametrize("path", ["/srv/a\\0b", "s3://bucket/a\\0b"])
def test_what_no_path_holds_is_refused(tmp_path: Path, path: str):
    """A traceback of the first command that looked for the tables otherwise."""
    with pytest.raises(ConfigError, match=r"yaml:1: history\.path: contains a NUL character"):
        loaded(tmp_path, path)


@pytest.mark.parametrize("path", PLAIN)
def test_a_path_without_one_is_taken(tmp_path: Path, path: str):
    """As it is."""
    assert loaded(tmp_path, path) == path
