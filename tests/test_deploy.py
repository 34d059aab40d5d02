"""The files of deploy/, run as they stand in a folder that stands for the machine."""

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from functools import partial

import pytest
from service import (
    ROOT,
    at_once,
    close_connection,
    execute,
    new_database,
    on_mysql,
    on_sqlite,
    run,
    stored,
)

SCRIPTS = [file for file in (ROOT / "deploy").iterdir() if not file.suffix]
PATHS = {  # of the machine, and what stands for them in its folder
    "/etc/cron.d": "cron.d",
    "/etc/profiles.env": "profiles.env",
    "/etc/systemd/system": "units",
    "/run/profiles.lock": "lock",
    "/srv/profiles": "code",
    "/usr/local/sbin": "sbin",
    "/var/lib/profiles": "state",
}
LOG = 'echo "{name} $*" >> {folder}/calls\n'
PROGRAMS = {  # what the tests replace
    "id": '[ "$1" = -u ] || exec [ -e {folder}/user ]; echo 0',
    "chown": LOG,
    "pip": LOG,
    "systemctl": LOG,
    "useradd": LOG + "touch {folder}/user",
    "curl": LOG
    + """for url; do port=${{url#*:}}; done
[ ! -e {folder}/unhealthy-${{port%/health}} ]""",
    "runuser": """shift 3
[ "$1" != test ] || exec [ "$(stat -c %A "$3" | cut -c 8)" = r ]
exec "$@" """,
    "python3": """[ "$1" = -m ] || exec {python} "$@"
mkdir -p .venv/bin
ln -sf {folder}/bin/flask {folder}/bin/pip .venv/bin/""",
    "flask": """echo "flask $1" >> {folder}/calls
cd {root}
{python} -m flask "$@"
status=$?
echo "end of flask $1" >> {folder}/calls
exit $status""",
}
# A program that kills the script that calls it, and all that the script has started.
KILL = "kill -9 0"
FULL_DISK = 'cd {root}; ulimit -f 8; exec {python} -m flask "$@"'
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only for Linux"),
    pytest.mark.skipif(not shutil.which("sqlite3"), reason="install sqlite3"),
]


class Machine:
    """A folder with a clone of a repository, and programs for what it cannot run."""

    def __init__(self, folder, database_url):
        self.folder = folder
        self.url = f"sqlite:///{folder}/state/profiles.db"
        if "mysql" in database_url:
            self.url = database_url
        for name in ("bin", "cron.d", "origin", "sbin", "state", "units"):
            (folder / name).mkdir()
        names = {"folder": folder, "root": ROOT, "python": sys.executable}
        for name, lines in PROGRAMS.items():
            self.add_program(name, lines.format(name=name, **names))
        self.git("init", "-q", "-b", "main", ".")
        self.commit("first")
        self.git("clone", "-q", folder / "origin", folder / "code")

    def add_program(self, name, lines):
        file = self.folder / "bin" / name
        file.write_text(f"#!/bin/sh\n{lines}")
        file.chmod(0o755)

    def git(self, *words, cwd="origin"):
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
        command = ["git", *identity, *words]
        done = subprocess.check_output(command, cwd=self.folder / cwd, text=True)
        return done.strip()

    def commit(self, version):
        """Commit deploy/, with the paths of this folder; return the commit."""
        origin = self.folder / "origin"
        for file in (ROOT / "deploy").iterdir():
            text = file.read_text()
            for path, own in PATHS.items():
                text = text.replace(path, f"{self.folder}/{own}")
            target = origin / "deploy" / file.name
            target.parent.mkdir(exist_ok=True)
            target.write_text(text)
            target.chmod(file.stat().st_mode)
        (origin / "app.py").write_text(version)
        (origin / ".gitignore").write_text(".venv\n")
        self.git("add", ".")
        self.git("commit", "-q", "-m", version)
        return self.git("rev-parse", "HEAD")

    def start(self, script, *words, **variables):
        """Start a script in a process group of its own."""
        path = f"{self.folder}/bin:{self.folder}/sbin:{os.environ['PATH']}"
        return subprocess.Popen(
            [script, *words],
            cwd=self.folder,
            env=os.environ | variables | {"PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, script, *words, **variables):
        """Run a script; return what became of it."""
        with self.start(script, *words, **variables) as process:
            output = process.communicate()
        return subprocess.CompletedProcess(script, process.returncode, *output)

    def install(self):
        done = self.run(self.folder / "code" / "deploy" / "install")
        assert done.returncode == 0, done.stderr
        return done

    @contextmanager
    def program(self, name, lines):
        """Replace a program until the end of the block."""
        file = self.folder / "bin" / name
        before = file.read_text() if file.exists() else None
        self.add_program(name, lines.format(root=ROOT, python=sys.executable))
        yield
        file.unlink()
        if before:
            self.add_program(name, before.removeprefix("#!/bin/sh\n"))

    def calls(self):
        """What was called since the last time."""
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.write_text("")
        return lines

    def backups(self):
        return sorted((self.folder / "state" / "backups").iterdir())

    def back_up(self):
        assert self.run("profiles-backup").returncode == 0
        return self.backups()[-1]

    def refs(self):
        show = ["for-each-ref", "--format=%(refname) %(objectname)", "refs/profiles"]
        lines = self.git(*show, cwd="code").splitlines()
        return dict(line.removeprefix("refs/profiles/").split() for line in lines)


@pytest.fixture
def new_machine(empty_database_url, tmp_path):
    """A machine that has only the clone."""
    return Machine(tmp_path, empty_database_url)


@pytest.fixture
def machine(new_machine, tmp_path):
    """A machine that is set up. Running deploy/install for each test would be slow."""
    for script in (tmp_path / "code" / "deploy").glob("profiles-*"):
        shutil.copy(script, tmp_path / "sbin")
    settings = f"DATABASE_URL='{new_machine.url}'\n"
    (tmp_path / "profiles.env").write_text(settings)
    virtual_environment = tmp_path / "code" / ".venv"
    virtual_environment.mkdir()
    (virtual_environment / "bin").symlink_to(tmp_path / "bin")
    (tmp_path / "user").touch()
    return new_machine


@pytest.fixture
def app(machine, make_app):
    """The service with the machine's database and an account, in its context."""
    app = make_app(DATABASE_URL=machine.url)
    with app.app_context():
        run(app, "create-account")
        yield app


# install


def files_of(machine):
    """The files that deploy/install makes, with their modes and contents."""
    files = [machine.folder / "profiles.env"]
    for name in ("cron.d", "sbin", "units"):
        files += (machine.folder / name).iterdir()
    return {file.name: (file.stat().st_mode, file.read_text()) for file in files}


@on_sqlite
def test_install(new_machine, tmp_path):
    machine = new_machine
    machine.install()
    files = files_of(machine)
    assert files.keys() == {
        "profiles.env",
        "profiles@.service",
        "profiles-backup.service",
        "profiles-backup.timer",
        "profiles-purge.service",
        "profiles-purge.timer",
        *(file.name for file in SCRIPTS if file.name != "install"),
    }
    settings = f"DATABASE_URL='{machine.url}'\n"
    assert files["profiles.env"] == (0o100600, settings)
    assert files["profiles-flask"][0] == 0o100755
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert stored(machine.url) == {"account": [], "profile": [], "session": []}
    calls = machine.calls()
    assert "useradd --system profiles" in calls
    assert [call for call in calls if call.startswith("systemctl")] == [
        "systemctl daemon-reload",
        "systemctl enable --quiet --now profiles-backup.timer profiles-purge.timer"
        " profiles@8000 profiles@8001",
    ]
    assert [call[-12:] for call in calls[-2:]] == [":8000/health", ":8001/health"]
    assert machine.refs() == {"running": machine.git("rev-parse", "HEAD")}


@on_sqlite
def test_a_second_install_changes_nothing(new_machine):
    """It also keeps the settings, and takes 3.2's jobs for cron and its backup away."""
    machine = new_machine
    machine.install()
    settings = machine.folder / "profiles.env"
    settings.write_text(f"{settings.read_text()}APPID='shop'\n")
    before = files_of(machine)
    for name in ("profiles", "profiles-backup"):
        (machine.folder / "cron.d" / name).write_text("5 3 * * * profiles false\n")
    (machine.folder / "sbin" / "profiles-backup").write_text("#!/bin/sh\nfalse\n")
    machine.install()
    assert files_of(machine) == before
    assert not [call for call in machine.calls() if "restart" in call]


MODES = {"app.py": 0o644, "deploy": 0o755, "deploy/install": 0o755, "secret.db": 0o600}


@on_sqlite
def test_install_of_a_clone_with_a_strict_umask(new_machine):
    machine = new_machine
    code = machine.folder / "code"
    (code / "secret.db").write_text("")
    subprocess.check_call(["chmod", "-R", "go=", code])
    assert "become readable" in machine.install().stdout
    modes = {name: (code / name).stat().st_mode & 0o777 for name in MODES}
    assert modes == MODES


@pytest.mark.long
@on_sqlite
@pytest.mark.parametrize(
    ("program", "lines", "message"),
    [
        ("id", "echo 1", "run this as root"),
        ("python3", "false", "Python 3.11 or newer is needed"),
        ("curl", "false", "profiles@8000 isn't healthy; see journalctl"),
    ],
)
def test_install_that_fails(new_machine, program, lines, message):
    new_machine.add_program(program, lines)
    done = new_machine.run(new_machine.folder / "code" / "deploy" / "install")
    assert done.returncode == 1
    assert f"install: {message}" in done.stderr


# profiles-flask


def add_flask(machine):
    """Replace flask by a program that prints what it was given."""
    machine.add_program("flask", 'printf "%s|" "$PWD" "$APPID" "$DATABASE_URL" "$@"')
    settings = "DATABASE_URL='sqlite:////of/the/service.db'\nAPPID='shop'\n"
    (machine.folder / "profiles.env").write_text(settings)


@on_sqlite
@pytest.mark.parametrize(
    ("given", "used", "warning"),
    [
        pytest.param({}, "sqlite:////of/the/service.db", "", id="the service's"),
        pytest.param(
            {"DATABASE_URL": "sqlite:///x"},
            "sqlite:///x",
            "profiles-flask: using your own DATABASE_URL, not the service's\n",
            id="one's own",
        ),
    ],
)
def test_profiles_flask(machine, given, used, warning):
    add_flask(machine)
    done = machine.run("profiles-flask", "find-accounts", "a b", **given)
    assert done.stdout == f"{machine.folder}/code|shop|{used}|find-accounts|a b|"
    assert done.stderr == warning


@on_sqlite
def test_profiles_flask_without_settings(machine):
    (machine.folder / "profiles.env").unlink()
    done = machine.run("profiles-flask", "list-administrators")
    assert done.returncode != 0
    assert "profiles.env" in done.stderr


USAGES = {
    "profiles-flask": [],
    "profiles-restart": ["x"],
    "profiles-upgrade": ["x", "y"],
    "profiles-backup": ["x"],
    "profiles-restore": [],
}


@on_sqlite
def test_usages(machine):
    """Each script tells how it is called."""
    for script, words in USAGES.items():
        done = machine.run(script, *words)
        assert done.returncode != 0
        assert f"sage: {script}" in done.stderr
    assert machine.calls() == []


# profiles-restart


def systemctl_calls(machine):
    calls = machine.calls()
    return [call[10:] for call in calls if call.startswith("systemctl ")]


@on_sqlite
@pytest.mark.parametrize(
    ("unhealthy", "status", "calls"),
    [
        ([], 0, ["restart profiles@8000", "restart profiles@8001"]),
        ([8000], 1, ["restart profiles@8000", "stop profiles@8000"]),
        (
            [8001],
            1,
            ["restart profiles@8000", "restart profiles@8001", "stop profiles@8001"],
        ),
        pytest.param([8000, 8001], 1, ["restart profiles@8000"], id="an outage"),
    ],
)
def test_profiles_restart(machine, unhealthy, status, calls):
    """Of two that are not healthy, none is stopped."""
    for port in unhealthy:
        (machine.folder / f"unhealthy-{port}").touch()
    done = machine.run("profiles-restart")
    assert done.returncode == status, done.stderr
    assert systemctl_calls(machine) == calls


@on_sqlite
@pytest.mark.parametrize(
    "setting", ["DATABASE_URL='sqlite:////missing/x.db'", "PAGE_SIZE='0'"]
)
def test_a_wrong_setting_restarts_nothing(machine, setting):
    """Even if root's own DATABASE_URL is right."""
    (machine.folder / "profiles.env").write_text(f"{setting}\n")
    done = machine.run("profiles-restart", DATABASE_URL=machine.url)
    assert done.returncode == 1
    assert "Error: " in done.stderr
    assert "nothing was restarted" in done.stderr
    assert systemctl_calls(machine) == []


# profiles-upgrade


def version(machine):
    return (machine.folder / "code" / "app.py").read_text()


@pytest.mark.long
@on_sqlite
def test_an_upgrade_and_the_way_back(machine, app):
    first = machine.git("rev-parse", "HEAD")
    second = machine.commit("second")
    done = machine.run("profiles-upgrade")
    assert done.stdout.endswith(f"To go back: profiles-upgrade {first}\n")
    assert version(machine) == "second"
    assert machine.refs() == {"running": second, "before": first}
    assert len(machine.backups()) == 1
    calls = machine.calls()
    steps = ["flask copy-database", "pip install", "flask init-db", "systemctl restart"]
    places = [
        next(place for place, call in enumerate(calls) if call.startswith(step))
        for step in steps
    ]
    assert places == sorted(places)

    done = machine.run("profiles-upgrade")  # again: the way back is the same
    assert done.stdout.endswith(f"To go back: profiles-upgrade {first}\n")
    assert machine.refs() == {"running": second, "before": first}

    os.utime(machine.folder / "code" / "app.py", (0, 0))
    done = machine.run("profiles-upgrade", first)
    assert done.stdout.endswith(f"To go back: profiles-upgrade {second}\n")
    assert version(machine) == "first"
    assert machine.git("branch", "--show-current", cwd="code") == "main"

    machine.run("profiles-upgrade")  # and forward again
    assert version(machine) == "second"
    assert machine.refs() == {"running": second, "before": first}


@pytest.mark.long
@on_sqlite
def test_going_back_to_a_version_without_install(machine):
    """The scripts stay, and the packages are those of that version."""
    machine.git("rm", "-q", "-r", "deploy")
    machine.git("commit", "-q", "-m", "without")
    machine.run("profiles-upgrade", machine.git("rev-parse", "HEAD"))
    assert machine.refs()["running"] == machine.git("rev-parse", "HEAD")
    assert "pip install -q -r requirements.txt" in machine.calls()
    machine.commit("next")
    assert machine.run("profiles-upgrade").returncode == 0
    assert version(machine) == "next"


@pytest.mark.long
@on_sqlite
@pytest.mark.parametrize("program", ["df", "git", "pip", "flask", "curl"])
def test_an_upgrade_that_fails(machine, app, program):
    """It prints the way back, and a repetition ends it."""
    first = machine.git("rev-parse", "HEAD")
    second = machine.commit("second")
    with machine.program(program, 'case "$*" in rev-parse*) ;; *) false ;; esac'):
        done = machine.run("profiles-upgrade")
    assert done.returncode != 0
    if program != "git":
        assert done.stdout.endswith(f"To go back: profiles-upgrade {first}\n")
        assert machine.refs() == {"running": first}
    assert machine.run("profiles-upgrade").returncode == 0
    assert machine.refs() == {"running": second, "before": first}


# profiles-backup


def test_a_backup(machine, app):
    """While the service has the database open."""
    before = stored(machine.url)
    done = machine.run("profiles-backup")
    counts = '{"object": "copy", "accounts": 1, "profiles": 0, "sessions": 0}'
    (backup,) = machine.backups()
    assert done.stdout == f"{backup}: {counts}\n"
    assert re.fullmatch("[0-9-]{10}T[0-9.-]{12}Z.db", backup.name)
    assert backup.stat().st_mode & 0o777 == 0o600
    assert stored(f"sqlite:///{backup}") == before


@pytest.mark.long
@on_sqlite
@pytest.mark.parametrize(
    ("program", "lines"),
    [
        pytest.param("df", "echo 1000", id="no space"),
        pytest.param("flask", "false", id="no database"),
        pytest.param("sqlite3", "echo damaged", id="damaged"),
        pytest.param("flask", FULL_DISK, id="full disk"),
        pytest.param("sync", "false", id="not written"),
    ],
)
def test_a_backup_that_fails(machine, app, program, lines):
    """It leaves nothing."""
    earlier = machine.back_up()
    with machine.program(program, lines):
        assert machine.run("profiles-backup").returncode != 0
    assert machine.backups() == [earlier]


@on_sqlite
def test_only_nightly_backups_push_out_nightly_ones(machine, app):
    folder = machine.back_up().parent
    for day in range(1, 16):
        (folder / f"2026-01-{day:02}T03-05-00.000Z-nightly.db").touch()
    (folder / "2025-12-31T12-00-00.000Z.db").touch()
    machine.back_up()
    assert len(machine.backups()) == 18
    assert machine.run("profiles-backup", "--nightly").returncode == 0
    names = [file.name for file in machine.backups()]
    nightly = [name for name in names if "nightly" in name]
    assert len(nightly) == 14
    assert nightly[0].startswith("2026-01-03")
    assert len(names) == 14 + 3


# profiles-restore


def make_empty(backup):
    backup.write_bytes(b"")


def cut(backup):
    backup.write_bytes(backup.read_bytes()[:20_000])


def delete_accounts(backup):
    execute(f"sqlite:///{backup}", "DELETE FROM account")


def remove(backup):
    backup.unlink()


@on_sqlite
@pytest.mark.parametrize("spoil", [make_empty, cut, delete_accounts, remove])
def test_a_bad_backup_stops_nothing(machine, app, spoil):
    backup = machine.back_up()
    spoil(backup)
    before = stored(machine.url)
    done = machine.run("profiles-restore", backup)
    assert done.returncode == 1
    assert systemctl_calls(machine) == []
    assert stored(machine.url) == before
    assert not [*(machine.folder / "state").glob("restored*")]


STARTED = ["stop profiles@*", "restart profiles@8000", "restart profiles@8001"]


@on_sqlite
def test_a_restore(machine, app):
    """What is replaced is kept, with what is still in the -wal of a killed service."""
    backup = machine.back_up()
    restored = stored(machine.url)
    run(app, "create-account")
    replaced = stored(machine.url)
    state = machine.folder / "state"
    wal = state / "profiles.db-wal"
    killed = [(file, file.read_bytes()) for file in (state / "profiles.db", wal)]
    close_connection()
    for file, content in killed:
        file.write_bytes(content)
    assert wal.stat().st_size

    done = machine.run("profiles-restore", backup)
    assert done.returncode == 0, done.stderr
    assert "has this many accounts: 1." in done.stdout
    assert "profiles-flask end-sessions ACCOUNTID\n" in done.stdout
    assert systemctl_calls(machine) == STARTED
    assert stored(machine.url) == restored
    (kept,) = state.glob("replaced-*")
    assert str(kept) in done.stdout
    assert stored(f"sqlite:///{kept}/profiles.db") == replaced
    assert backup.exists()


@pytest.mark.long
@on_sqlite
@pytest.mark.parametrize("lose", [remove, make_empty, cut])
def test_a_restore_of_a_file_that_is_lost_or_damaged(machine, app, lose):
    backup = machine.back_up()
    restored = stored(machine.url)
    close_connection()
    lose(machine.folder / "state" / "profiles.db")
    assert machine.run("profiles-restore", backup).returncode == 0
    assert stored(machine.url) == restored


@pytest.mark.long
@on_sqlite
def test_a_restore_of_a_backup_of_an_older_version(machine, app):
    backup = machine.back_up()
    execute(f"sqlite:///{backup}", "ALTER TABLE profile DROP COLUMN phone")
    assert machine.run("profiles-restore", backup).returncode == 0
    assert execute(machine.url, "SELECT phone FROM profile") == []


@on_mysql
def test_a_restore_into_a_new_mysql_database(machine, app, tmp_path):
    """The database that is in use is refused, because it has rows."""
    backup = machine.back_up()
    restored = stored(machine.url)
    run(app, "create-account")
    done = machine.run("profiles-restore", backup)
    assert done.returncode == 1
    assert "Error: the target already has rows" in done.stderr
    assert systemctl_calls(machine) == []
    with new_database("mysql", tmp_path) as url:
        (machine.folder / "profiles.env").write_text(f"DATABASE_URL='{url}'\n")
        done = machine.run("profiles-restore", backup)
        assert done.returncode == 0, done.stderr
        assert systemctl_calls(machine) == STARTED
        assert stored(url) == restored


# Killed halfway, and two at once


@pytest.mark.long
@on_sqlite
@pytest.mark.parametrize("program", ["find", "df", "flask", "sqlite3", "sync", "mv"])
def test_a_backup_that_is_killed(machine, app, program):
    with machine.program(program, KILL):
        assert machine.run("profiles-backup").returncode == -9
    machine.back_up()
    (backup,) = machine.backups()
    assert stored(f"sqlite:///{backup}") == stored(machine.url)


@pytest.mark.long
@on_sqlite
@pytest.mark.parametrize(
    "program", "cp flask sqlite3 systemctl mktemp ln mv sync curl".split()
)
def test_a_restore_that_is_killed(machine, app, program):
    """At each moment the path has a whole database. Nothing is lost."""
    backup = machine.back_up()
    restored = stored(machine.url)
    run(app, "create-account")
    replaced = stored(machine.url)
    close_connection()
    with machine.program(program, KILL):
        assert machine.run("profiles-restore", backup).returncode == -9
    assert stored(machine.url) in (restored, replaced)
    assert machine.run("profiles-restore", backup).returncode == 0
    assert stored(machine.url) == restored
    state = machine.folder / "state"
    kept = [stored(f"sqlite:///{file}") for file in state.glob("replaced-*/*.db")]
    assert replaced in kept
    assert not [*state.glob("restored*")]


@pytest.mark.long
@on_sqlite
@pytest.mark.parametrize("program", "df git pip flask install systemctl curl".split())
def test_an_upgrade_that_is_killed(machine, app, program):
    first = machine.git("rev-parse", "HEAD")
    second = machine.commit("second")
    with machine.program(program, KILL):
        assert machine.run("profiles-upgrade").returncode == -9
    done = machine.run("profiles-upgrade")
    assert done.returncode == 0, done.stderr
    assert version(machine) == "second"
    assert machine.refs() == {"running": second, "before": first}


@on_sqlite
def test_two_scripts_at_once(machine, app):
    """One begins when the other has ended."""
    done = at_once(*[partial(machine.run, "profiles-backup")] * 2)
    assert [each.returncode for each in done] == [0, 0]
    copy = ["flask copy-database", "end of flask copy-database"]
    assert [call for call in machine.calls() if "copy" in call] == copy * 2


@on_sqlite
@pytest.mark.parametrize("script", ["restart", "upgrade", "backup", "restore"])
def test_a_script_that_waits_says_so(machine, script):
    words = [machine.folder / "profiles.env"] * (script == "restore")
    with (machine.folder / "lock").open("w") as lock:
        flock(lock, LOCK_EX)
        with machine.start(f"profiles-{script}", *words) as process:
            line = process.stderr.readline()
            os.killpg(process.pid, signal.SIGKILL)
    assert line == f"profiles-{script}: waiting for another script\n"
    assert machine.calls() == []


# The units


@pytest.mark.long
@pytest.mark.parametrize("file", [*(ROOT / "deploy").glob("*.[st]*[er]")], ids=str)
def test_a_unit(file, tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("there is no systemd")
    unit = tmp_path / file.name
    for other in file.parent.glob("*.service"):  # that of a timer, too
        text = re.sub(r"(?m)^(Exec\w+=).*", r"\1/bin/true", other.read_text())
        (tmp_path / other.name).write_text(text)
    if file.suffix == ".timer":
        shutil.copy(file, unit)
    subprocess.check_call(["systemd-analyze", "verify", unit])
