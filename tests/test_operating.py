"""The lines of OPERATING for one machine, run as they stand in a temporary folder."""

import os
import re
import shutil
import subprocess
import sys
from datetime import date

import pytest
from service import (
    ROOT,
    close_connection,
    execute,
    on_mysql,
    on_sqlite,
    run,
    sign_in,
    stored,
    user_with,
)

OPERATING = (ROOT / "docs" / "OPERATING.md").read_text()
LOGGED = "systemctl profiles-flask profiles-restart".split()
ACCOUNTS = "SELECT accountid FROM account ORDER BY 1"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only for Linux")
needs_sqlite3 = pytest.mark.skipif(
    not shutil.which("sqlite3"), reason="install sqlite3"
)


def script(name):
    """The script that the page writes to /usr/local/sbin."""
    pattern = rf"(?s)cat > /usr/local/sbin/{name} <<'END'\n(.*?)\nEND\n"
    return re.search(pattern, OPERATING)[1]


class Machine:
    """Folders that stand for those of the page, and programs for those it cannot run.

    ``calls`` returns which of LOGGED were called, each with its arguments.
    """

    def __init__(self, folder):
        self.folder = folder
        self.state = folder / "state"
        self.url = f"sqlite:///{self.state}/profiles.db"
        for name in ("bin", "code", "state"):
            (folder / name).mkdir()
        for name in LOGGED:
            self.add_program(name, f'echo {name} "$@" >> {folder}/calls')
        self.add_program("chown", "true")
        self.add_program("runuser", 'shift 3; exec "$@"')

    def add_program(self, name, line):
        file = self.folder / "bin" / name
        file.write_text(f"#!/bin/sh\n{line}\n")
        file.chmod(0o755)

    def run(self, lines, **variables):
        """Run lines in Bash, where the paths of the page are those of this folder."""
        paths = {
            "/var/lib/profiles": self.state,
            "/srv/profiles": self.folder / "code",
            "/etc/profiles.env": self.folder / "profiles.env",
            "/usr/sbin/runuser": "runuser",
        }
        for path, own in paths.items():
            lines = lines.replace(path, str(own))
        environment = os.environ | variables
        environment["PATH"] = f"{self.folder}/bin:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "-c", lines], env=environment, capture_output=True, text=True
        )

    def calls(self):
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def back_up(self, *, limits=""):
        """Run the page's script; return its status and today's backup."""
        status = self.run(limits + script("profiles-backup")).returncode
        return status, self.state / f"{date.today()}.db"

    def restore(self, backup):
        """Run the page's lines; return their status."""
        lines = re.search(r"(?s)\n(\(cd /var/lib.*?profiles-restart\))\n", OPERATING)[1]
        return self.run(lines.replace("2026-11-21.db", backup.name)).returncode


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def app(machine, make_app):
    """The service with the machine's database and an account, in its context."""
    app = make_app(DATABASE_URL=machine.url)
    with app.app_context():
        run(app, "create-account")
        yield app


@needs_sqlite3
@on_sqlite
def test_a_backup_while_the_service_runs(machine, app):
    status, backup = machine.back_up()
    assert status == 0
    assert stored(f"sqlite:///{backup}") == stored(machine.url)
    assert backup.stat().st_mode & 0o777 == 0o600
    assert not [*machine.state.glob("unfinished*")]


@needs_sqlite3
@on_sqlite
def test_a_backup_that_fails(machine, app):
    """It leaves the earlier one of the day, and does not block the next one."""
    _, backup = machine.back_up()
    before = execute(f"sqlite:///{backup}", ACCOUNTS)
    run(app, "create-account")
    status, _ = machine.back_up(limits="ulimit -f 8\n")
    assert status != 0
    assert execute(f"sqlite:///{backup}", ACCOUNTS) == before
    assert [*machine.state.glob("unfinished*")]
    status, _ = machine.back_up()
    assert status == 0
    assert execute(f"sqlite:///{backup}", ACCOUNTS) == execute(machine.url, ACCOUNTS)
    assert not [*machine.state.glob("unfinished*")]


def make_empty(backup):
    backup.write_bytes(b"")


def cut(backup):
    backup.write_bytes(backup.read_bytes()[:20_000])


def delete_accounts(backup):
    execute(f"sqlite:///{backup}", "DELETE FROM account")


def remove(backup):
    backup.unlink()


@needs_sqlite3
@on_sqlite
@pytest.mark.parametrize("spoil", [make_empty, cut, delete_accounts, remove])
def test_a_bad_backup_stops_nothing(machine, app, spoil):
    _, backup = machine.back_up()
    spoil(backup)
    before = stored(machine.url)
    assert machine.restore(backup) != 0
    assert machine.calls() == []
    assert stored(machine.url) == before


@needs_sqlite3
@on_sqlite
def test_a_restore(machine, app, tmp_path):
    """The replaced file is kept, with the -wal that a killed service leaves."""
    _, backup = machine.back_up()
    restored = stored(machine.url)
    run(app, "create-account")
    replaced = stored(machine.url)
    killed = tmp_path / "killed"
    shutil.copytree(machine.state, killed)
    assert (killed / "profiles.db-wal").stat().st_size

    machine.state = killed
    assert machine.restore(backup) == 0
    assert stored(f"sqlite:///{killed}/profiles.db") == restored
    (kept,) = killed.glob("replaced-*")
    assert stored(f"sqlite:///{kept}/profiles.db") == replaced
    assert machine.calls() == [
        "systemctl stop profiles@*",
        "profiles-flask init-db",
        "profiles-restart",
    ]


@needs_sqlite3
@on_sqlite
def test_a_restore_of_a_file_that_was_lost(machine, app, tmp_path):
    _, backup = machine.back_up()
    restored = stored(machine.url)
    machine.state = tmp_path / "new"
    machine.state.mkdir()
    shutil.copy(backup, machine.state)
    assert machine.restore(backup) == 0
    assert stored(f"sqlite:///{machine.state}/profiles.db") == restored


@pytest.mark.parametrize(
    ("given", "used"),
    [
        pytest.param({}, "sqlite:////of/the/service.db", id="the service's"),
        pytest.param({"DATABASE_URL": "sqlite:///x"}, "sqlite:///x", id="given"),
    ],
)
def test_profiles_flask(machine, given, used):
    flask = machine.folder / "code" / ".venv" / "bin" / "flask"
    flask.parent.mkdir(parents=True)
    flask.write_text('#!/bin/sh\nprintf "%s|" "$PWD" "$APPID" "$DATABASE_URL" "$@"\n')
    flask.chmod(0o755)
    settings = "DATABASE_URL='sqlite:////of/the/service.db'\nAPPID='shop'\n"
    (machine.folder / "profiles.env").write_text(settings)
    call = script("profiles-flask").replace('"$@"', "find-accounts 'a b'")
    printed = machine.run(call, **given).stdout
    assert printed == f"{machine.folder}/code|shop|{used}|find-accounts|a b|"


def test_profiles_flask_without_settings(machine):
    done = machine.run(script("profiles-flask"))
    assert done.returncode != 0
    assert "profiles.env" in done.stderr


@pytest.mark.parametrize(
    ("health", "restarted"), [("true", ["8000", "8001"]), ("false", ["8000"])]
)
def test_profiles_restart(machine, health, restarted):
    """It stops at an instance that does not become healthy."""
    machine.add_program("curl", health)
    status = machine.run(script("profiles-restart")).returncode
    assert (status == 0) == (health == "true")
    assert machine.calls() == [f"systemctl restart profiles@{n}" for n in restarted]


@on_mysql
def test_the_rights_of_the_mysql_user_are_enough(make_app, empty_database_url):
    """For init-db, which needs the most."""
    rights = re.search("GRANT (.*) ON profiles", OPERATING)[1]
    with user_with(empty_database_url, rights) as url:
        app = make_app(DATABASE_URL=url)
        assert run(app, "init-db") == {"object": "database", "added": []}
        execute(empty_database_url, "ALTER TABLE profile DROP COLUMN website")
        added = {"object": "database", "added": ["profile.website"]}
        assert run(app, "init-db") == added
        close_connection()


@on_sqlite
def test_what_was_deleted_is_overwritten(make_app, tmp_path):
    """While the service has the file open."""
    file = tmp_path / "x.db"
    app = make_app(DATABASE_URL=f"sqlite:///{file}", USER_PROFILE_FIELDS="phone")
    user = sign_in(app)
    profileid = user.create({"phone": "secret"}).json["profileid"]
    user.update(profileid, {"phone": "secret" * 2_000})  # splits the page
    run(app, "delete-account", user.accountid)

    def content():
        return file.read_bytes() + tmp_path.joinpath("x.db-wal").read_bytes()

    assert b"secret" in content()
    line = re.search('sqlite3 .*profiles.db "(VACUUM; .*)"', OPERATING)[1]
    for statement in line.split("; "):
        rows = execute(f"sqlite:///{file}", statement)
    assert rows == [(0, 0, 0)]
    assert b"secret" not in content()


def log_lines():
    """The request and the error of the sample; then the same request as a failure."""
    request, error = re.findall("\n(time=.*)", OPERATING)
    return request, error, request.replace("=200 ", "=503 ").replace(" ms=", " ms=100")


@pytest.mark.parametrize(
    ("sample", "file", "pattern"),
    [
        (0, "gunicorn.conf.py", "([a-z_]+=){"),
        (1, "app.py", "([a-z_]+=)%"),
    ],
    ids=["request", "error"],
)
def test_names_in_the_log(sample, file, pattern):
    names = re.findall("[a-z_]+=", log_lines()[sample])
    assert names == re.findall(pattern, (ROOT / file).read_text())


@pytest.mark.parametrize("question", re.findall("\n(grep [^|\n]*)", OPERATING))
def test_questions_to_the_log(machine, question):
    """Each finds something."""
    created = log_lines()[0].replace("end-sessions", "create-session")
    (machine.folder / "log").write_text("\n".join([*log_lines(), created]))
    sessionid = re.search("session=([a-z_0-9]+)", created)[1]
    question = question.replace("SESSIONID", sessionid)
    assert machine.run(f"cd {machine.folder} && {question}").stdout


def test_the_lines_of_a_request(machine):
    (machine.folder / "log").write_text("\n".join(log_lines()) + "\n")
    question = re.search("\n(grep 'request_id=.*)", OPERATING)[1]
    found = machine.run(f"cd {machine.folder} && {question}").stdout
    assert found.splitlines() == [*log_lines()]


def test_sessions_that_a_leaked_token_created_are_ended(machine):
    """Each account's once, and none if there are none."""
    machine.add_program("flask", f'echo flask "$@" >> {machine.folder}/calls')
    request = log_lines()[0]
    created = request.replace("end-sessions", "create-session")
    other = created.replace(" session=sess_3", " session=sess_4")
    line = re.search("\n(grep .* flask end-sessions)", OPERATING)[1]
    line = line.replace("SESSIONID", re.search("session=([a-z_0-9]+)", created)[1])
    log = machine.folder / "log"
    log.write_text("\n".join([request, other]))
    machine.run(f"cd {machine.folder} && {line}")
    assert machine.calls() == []
    log.write_text("\n".join([request, other, created, created]))
    machine.run(f"cd {machine.folder} && {line}")
    accountid = re.search("target=([a-z_0-9]+)", created)[1]
    assert machine.calls() == [f"flask end-sessions {accountid}"]


@pytest.mark.long
def test_files_for_systemd_and_cron(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("there is no systemd")
    unit = re.search(r"(?s)\[Service\].*?=multi-user.target\n", OPERATING)[0]
    file = tmp_path / "profiles@.service"
    file.write_text(re.sub("=.*gunicorn", "=/bin/sh", unit))
    subprocess.check_call(["systemd-analyze", "verify", file])
    cron = r"\n(\S+ ){5}root systemctl .* && /usr/local/sbin/profiles-flask purge-s"
    assert re.search(cron, OPERATING)
