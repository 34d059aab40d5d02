"""The files of deploy/, and OPERATING's lines for one machine, run in a folder."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from secrets import token_hex
from zoneinfo import ZoneInfo, available_timezones

import pytest
from service import (
    PROCFILE,
    ROOT,
    Program,
    execute,
    named,
    new_database,
    on_sqlite,
    repeating,
    run,
    sign_in,
    stored,
    wait_until,
)

DEPLOY = ROOT / "deploy"
OPERATING = (ROOT / "docs" / "OPERATING.md").read_text()
FLASK = f'cd {ROOT} && exec {sys.executable} -m flask "$@"'
# Python ignores SIGXFSZ, so it meets a full disk; with the default, it is killed.
FULL_DISK = f"ulimit -f 8; {FLASK}"
KILLED = FULL_DISK.replace(
    "-m flask",
    "-c 'import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
    "from flask.cli import main; main()'",
)
DAYS = [f"01-{day:02}T05-05-00Z" for day in range(1, 21)]
PROGRAMS = {  # what stands for the machine's
    "chown": 'shift; exec ls "$@"',
    "flask": FLASK,
    "gunicorn": 'echo "$DATABASE_URL" "$@" >> "${0%/*}/calls"',
    "runuser": 'shift 3; exec "$@"',
    "systemctl": 'echo "$@" >> calls',
}

needs_systemd = pytest.mark.skipif(
    not shutil.which("systemd-socket-activate"), reason="there is no systemd"
)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only for Linux")


class Machine:
    """A folder that stands for those of the machine."""

    def __init__(self, folder, database_url):
        self.folder = folder
        self.backups = folder / "backups"
        self.backups.mkdir()
        self.url = database_url
        self.settings = folder / "profiles.env"
        self.settings.write_text(f"DATABASE_URL='{database_url}'\n")
        script = self.adapt((DEPLOY / "profiles-run").read_text())
        for name, lines in (PROGRAMS | {"profiles-run": script}).items():
            self.add_program(name, lines)

    def adapt(self, text):
        """Return the text with paths of this folder, and without the user."""
        text = text.replace("/srv/profiles/.venv/bin", str(self.folder))
        text = text.replace("/srv/profiles", str(ROOT))
        text = text.replace("/etc/profiles.env", str(self.settings))
        return text.replace("/var/lib/profiles", str(self.folder))

    def add_program(self, name, lines):
        file = self.folder / name
        file.write_text(f"#!/bin/sh\n{lines}")
        file.chmod(0o755)

    def run(self, *command, database_url=""):
        path = f"{self.folder}:{os.environ['PATH']}"
        return subprocess.run(
            command,
            cwd=self.folder,
            env=os.environ | {"PATH": path, "DATABASE_URL": database_url},
            capture_output=True,
            text=True,
        )

    def run_daily(self):
        """Run the lines of the daily service up to one that fails; return its status.

        The line that cleans up is left out, as by a power cut.
        """
        unit = self.adapt((DEPLOY / "profiles-daily.service").read_text())
        for line in re.findall("(?m)^ExecStart=(.*)", unit):
            command = shlex.split(line.replace("$$", "$").replace("%%", "%"))
            done = self.run(*command, database_url=self.url)
            if done.returncode:
                return done.returncode
        return 0

    def back_up(self):
        """Return the file of a new backup."""
        before = {*self.backups.iterdir()}
        assert self.run_daily() == 0
        (backup,) = {*self.backups.iterdir()} - before
        return backup


@pytest.fixture
def machine(empty_database_url, make_app, tmp_path):
    """A machine whose database has an account."""
    url = empty_database_url
    if url.startswith("sqlite"):
        url = f"sqlite:///{tmp_path}/profiles.db"
    run(make_app(DATABASE_URL=url), "create-account")
    return Machine(tmp_path, url)


@needs_systemd
@on_sqlite
def test_the_units(machine):
    units = []
    for file in DEPLOY.glob("profiles*.*"):
        units.append(machine.folder / file.name)
        text = file.read_text().replace("/srv/profiles/.venv/bin/", "/bin/env ")
        units[-1].write_text(text)
    done = machine.run("systemd-analyze", "verify", *units)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not available_timezones(), reason="there is no tzdata")
@pytest.mark.parametrize(
    "zone",  # where clocks are set forward at 0, 1, 2, 3, 22 and 23 o'clock
    "Africa/Cairo Europe/London Europe/Berlin Europe/Athens Pacific/Easter "
    "America/Nuuk".split(),
)
def test_no_clock_skips_the_time_of_the_daily_job(zone):
    timer = (DEPLOY / "profiles-daily.timer").read_text()
    (clock_time,) = re.findall("OnCalendar=(.*)", timer)
    first = datetime.fromisoformat(f"2027-01-01T{clock_time}")
    for days in range(365):
        local = (first + timedelta(days)).replace(tzinfo=ZoneInfo(zone))
        assert local.astimezone(UTC).astimezone(ZoneInfo(zone)) == local


@pytest.mark.parametrize("lines", re.findall("(?s)\n```sh\n(.*?)```", OPERATING))
def test_lines_of_the_page_are_shell(lines):
    subprocess.run(["bash", "-n"], input=lines, text=True, check=True)


@on_sqlite
@pytest.mark.parametrize(
    "settings, given, printed",
    [
        ("DATABASE_URL='a&b'\n", "", "a&b|find|a b|"),
        ("# one\n\nAPPID=a\nDATABASE_URL='a'\n", "given", "given|find|a b|"),
        ("APPID='a'\nDATABASE_URL=a&b\n", "", "in line 2\n"),
        ("DATABASE_URL=a b\n", "given", "in line 1\n"),
    ],
    ids=["quoted", "given", "ampersand", "blank"],
)
def test_profiles_run(machine, settings, given, printed):
    """The program gets a value as systemd reads it, or does not run."""
    machine.settings.write_text(settings)
    machine.add_program("flask", 'printf "%s|" "$DATABASE_URL" "$@"')
    done = machine.run("profiles-run", "flask", "find", "a b", database_url=given)
    assert (done.stdout or done.stderr).endswith(printed)
    assert done.returncode == printed.startswith("in line")


@pytest.mark.long
@needs_systemd
def test_restarts_beside_writers(empty_database_url, tmp_path):
    """No create fails or is doubled, because the port stays open."""
    service = Program(tmp_path, DATABASE_URL=empty_database_url)
    created = []

    def create():
        name = token_hex(4)
        assert administrator.create(named(name)).status_code == 201
        created.append(name)

    def start():
        # As systemd passes it: the socket is file 3, and LISTEN_PID the program's own.
        activate = "systemd-socket-activate --setenv=DATABASE_URL".split()
        program = shlex.join([*activate, *PROCFILE])
        lines = f"LISTEN_FDS=1 LISTEN_PID=$$ exec {program} 3<&{port.fileno()}"
        with service.log_file.open("ab") as log:
            service.process = subprocess.Popen(
                ["bash", "-c", lines],
                cwd=ROOT,
                env=service.environment,
                pass_fds=[port.fileno()],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    with ExitStack() as stack:
        stack.callback(service.kill)  # when the port is closed
        address = ("127.0.0.1", service.port)
        port = stack.enter_context(socket.create_server(address))
        start()
        service.wait_until_up()
        administrator = sign_in(service.app, administrator=True)
        with repeating(*[create] * 8):
            for _ in range(5):
                enough = len(created) + 50
                wait_until(lambda enough=enough: len(created) > enough)
                service.stop()
                start()
        names = [profile["fullName"] for profile in administrator.profiles()]
    assert sorted(names) == sorted(created)


def add_backups(machine, names):
    """Add files of long ago with these names; return their paths, sorted by name."""
    files = [machine.backups / name for name in sorted(names)]
    for file in files:
        file.touch()
        os.utime(file, (0, 0))
    return files


def test_a_backup(machine):
    backup = machine.back_up()
    assert re.fullmatch("[0-9-]{10}T[0-9-]{8}Z.db", backup.name)
    assert backup.stat().st_mode & 0o777 == 0o600
    assert stored(f"sqlite:///{backup}") == stored(machine.url)


@on_sqlite
@pytest.mark.parametrize(
    "year, new",
    [(2026, "2027"), (2026, "1970"), (2099, "2027")],
    ids=["failed nights", "clock back", "clock ahead"],
)
def test_the_newest_backups_are_kept(machine, year, new):
    """The new one and 13 others, however old they are, and files of other names."""
    older = add_backups(machine, [f"{year}-{day}.db" for day in DAYS])
    own = add_backups(machine, ["before-upgrade.db"])
    machine.add_program("date", f"echo {new}-01-01T05-05-00Z")
    backup = machine.back_up()
    assert backup.name == f"{new}-01-01T05-05-00Z.db"
    assert {*machine.backups.iterdir()} == {*older[-13:], *own, backup}


@pytest.mark.long
@on_sqlite
@pytest.mark.parametrize("flask", [FULL_DISK, KILLED], ids=["full disk", "killed"])
def test_a_backup_that_fails(machine, flask):
    """It deletes none, and what it leaves is no backup: the next one deletes that."""
    older = add_backups(machine, [f"2026-{day}.db" for day in DAYS])
    machine.add_program("flask", flask)
    assert machine.run_daily() != 0
    left = {*machine.backups.iterdir()} - {*older}
    assert {file.stem for file in left} == {"unfinished"}
    assert all(file.exists() for file in older)
    machine.add_program("flask", FLASK)
    assert machine.run_daily() == 0
    (backup,) = {*machine.backups.iterdir()} - {*older}
    assert stored(f"sqlite:///{backup}") == stored(machine.url)


@pytest.fixture
def new_url(machine, tmp_path):
    """The URL of a database to restore into, of the machine's kind."""
    kind = machine.url.partition(":")[0]
    with new_database(kind, tmp_path) as url:
        yield url


def run_block(machine, beginning, new_url, name=""):
    """Run the page's block for NEW and NAME; return its status and its calls."""
    (lines,) = re.findall(f"(?s)```sh\n({beginning}.*?)```", OPERATING)
    lines = machine.adapt(lines).replace("NAME.db", name).replace("NEW", new_url)
    calls = machine.folder / "calls"
    calls.write_text("")
    return machine.run("bash", "-c", lines).returncode, calls.read_text().splitlines()


def restore(machine, name, new_url):
    return run_block(machine, "cd /var/lib/profiles/backups", new_url, name)


def test_a_restore(machine, new_url):
    """Into a new database, which is then served on another port."""
    backup = machine.back_up()
    served = f"{new_url} --bind 127.0.0.1:8009 app:create_app()"
    assert restore(machine, backup.name, new_url) == (0, [served])
    assert stored(new_url) == stored(machine.url)
    # Not again, because the new database may be in use.
    assert restore(machine, backup.name, new_url) == (1, [])


@on_sqlite
def test_a_backup_of_an_older_version(machine, new_url):
    backup = machine.back_up()
    execute(f"sqlite:///{backup}", "ALTER TABLE profile DROP COLUMN website")
    assert restore(machine, backup.name, new_url)[0] == 0
    assert stored(new_url) == stored(machine.url)


@on_sqlite
def test_a_backup_that_is_not_whole(machine, new_url):
    """It is not served, nor is one that does not exist, which is not created."""
    backup = machine.back_up()
    os.truncate(backup, 20_000)
    for name in (backup.name, "missing.db"):
        status, calls = restore(machine, name, new_url)
        assert status and not calls
    assert [*machine.backups.glob("*.db")] == [backup]


def test_a_move(machine, new_url):
    """The service stays stopped, because its settings name the old database."""
    done = run_block(machine, "systemctl stop profiles.socket", new_url)
    assert done == (0, ["stop profiles.socket"])
    assert stored(new_url) == stored(machine.url)
