"""Measures this version beside another one, such as a worktree of the last commit.

python tools/benchmark.py ../before [--clients 64] [--mysql]

With --mysql, on the server of TEST_MYSQL_URL. Needs wrk.
"""

import argparse
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT), f"{ROOT}/tests"]

from service import (  # noqa: E402
    CREATE,
    PROFILES,
    UPDATE,
    Program,
    close_connection,
    fill,
    new_database,
    run,
    sign_in,
)

from app import create_app  # noqa: E402
from models import Profile  # noqa: E402

ROUNDS = 7
SECONDS = 3  # of each round
LUA = """
wrk.method = "{method}"
wrk.body = "{body}"
wrk.headers["Authorization"] = "Bearer {token}"
wrk.headers["X-Appid"] = "{appid}"
wrk.headers["Content-Type"] = "application/x-www-form-urlencoded"
local paths = {{}}
for path in ("{paths}"):gmatch("%S+") do
  table.insert(paths, path)
end
local turn = 0
function request()
  turn = turn % #paths + 1
  return wrk.format(nil, paths[turn])
end
"""
FORM = "contact-email=ada.lovelace%40example.com&full-name=Ada+Lovelace"
UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000}


def script(client, method, *paths, body=""):
    """What wrk sends: the requests of a client, in turn."""
    return LUA.format(
        method=method,
        body=body,
        token=client.token,
        appid=client.appid,
        paths=" ".join(paths),
    )


def make_loads(app, url):
    """Store 100,000 profiles, 300 of them a user's; return the script of each load."""
    run(app, "init-db")  # adds what tables of an older version lack
    administrator = sign_in(app, administrator=True)
    user = sign_in(app)
    small = sign_in(app, administrator=True, appid="small")
    own = []
    with create_app({"DATABASE_URL": url}).app_context():
        for _ in range(100):
            fill(Profile, "default", 1_000)
            own += fill(Profile, "default", 3, accountid=user.accountid)
        fill(Profile, "small", 2_000)
        close_connection()
    updates = [f"{UPDATE}?profileid={profile['profileid']}" for profile in own]
    create = f"{CREATE}?accountid={user.accountid}"
    return {
        "list": script(administrator, "GET", PROFILES),
        "update": script(user, "PATCH", *updates, body=FORM),
        "update one profile": script(user, "PATCH", updates[0], body=FORM),
        "create": script(user, "POST", create, body=FORM),
        "all": script(small, "GET", f"{PROFILES}?all=all"),
    }


def start(stack, root, folder, mysql):
    """Serve a version until the end of the stack; return its port and its loads."""
    kind = "mysql" if mysql else "sqlite"
    url = stack.enter_context(new_database(kind, folder))
    service = Program(folder, DATABASE_URL=url)
    stack.callback(service.kill)
    service.start(cwd=root)
    service.wait_until_up()  # it has made its tables by then
    return service.port, make_loads(service.app, url)


def measure(port, file, clients):
    """The requests per second, and p99 / p50 of an answer's time."""
    options = [f"-c{clients}", "-t1", f"-d{SECONDS}s", "--latency", "-s", file]
    command = ["wrk", *options, f"http://127.0.0.1:{port}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not re.search("Socket errors|Non-2xx", done.stdout), done.stdout
    found = re.findall(r"(?:50|99)%\s+([0-9.]+)([mu]?s)", done.stdout)
    p50, p99 = [float(number) * UNITS[unit] for number, unit in found]
    rate = re.search(r"Requests/sec: +([0-9.]+)", done.stdout)[1]
    return float(rate), p99 / p50


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, help="the folder of the other version")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--mysql", action="store_true")
    options = parser.parse_args()
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        roots = options.other.resolve(), ROOT
        versions = [start(stack, root, folder, options.mysql) for root in roots]
        for load in versions[0][1]:
            rounds = []
            for _ in range(ROUNDS):
                for port, scripts in versions:
                    file = folder / "load.lua"
                    file.write_text(scripts[load])
                    rounds.append(measure(port, file, options.clients))
            before = median(rate for rate, _ in rounds[::2])
            now = median(rate for rate, _ in rounds[1::2])
            tail = median(tail for _, tail in rounds[1::2])
            ratio = f"{now:.0f} / {before:.0f} = {now / before:.2f}"
            print(f"{load}: {ratio}; p99 / p50 = {tail:.1f}", flush=True)


if __name__ == "__main__":
    main()
