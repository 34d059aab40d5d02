"""Measures the service beside a bare Flask app; needs Linux and wrk. See --help."""

import argparse
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, closing, contextmanager, nullcontext
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from databases import database_at, mysql_database  # noqa: E402
from serving import CREATE, PROFILES, UPDATE, Person, Served  # noqa: E402

from models import Profile, timestamp  # noqa: E402
from tables import db  # noqa: E402

ACCOUNTS, OWN, BATCH = 3_000, 300, 3_000
"""Owners of the profiles, profiles of the user that updates them, profiles in one insert."""
FORM = "contact-email=ada.lovelace%40example.com&full-name=Ada+Lovelace"
BARE = """\
# What Flask and gunicorn cost by themselves.
from flask import Flask, jsonify, request

app = Flask(__name__)
app.get("/health")(lambda: jsonify(object="health", status="ok"))
app.patch("/", endpoint="patch")(lambda: jsonify(request.form.to_dict()))
app.post("/", endpoint="post")(lambda: (jsonify(request.form.to_dict()), 201))
"""
LUA = """\
wrk.method, wrk.body = "{method}", "{body}"
wrk.headers["Authorization"] = "Bearer {token}"
if wrk.body ~= "" then wrk.headers["Content-Type"] = "application/x-www-form-urlencoded" end
local made, turn = {{}}, 0
function init()
  for path in ("{paths}"):gmatch("%S+") do made[#made + 1] = wrk.format(nil, path) end
end
function request()
  turn = turn % #made + 1
  return made[turn]
end
"""
GOALS = [  # of the rates of two loads: at least so much on SQLite, and on MySQL
    ("list", "bare GET", 0.65, 0.33),
    ("update", "bare PATCH", 0.42, 0.3),
    ("create", "bare POST", 0.36, 0.3),
    ("half-way", "list", 0.8, 0.8),
]


# The services


@contextmanager
def running(service):
    """The service, until the block ends."""
    service.start()
    try:
        service.wait_until_up()
        yield
    finally:
        service.kill(signal.SIGTERM)
        service.kill()


def fill(url, rows, user):
    """Store so many profiles, a millisecond apart until now; some are the user's."""
    first, own = time.time_ns() - rows * 1_000_000, set(own_numbers(rows))
    with database_at(url):
        for start in range(0, rows, BATCH):
            batch = [
                new_profile(number, first + number * 1_000_000, user, number in own)
                for number in range(start, min(start + BATCH, rows))
            ]
            with db.atomic():
                Profile.insert_many(batch).execute()


def new_profile(number, moment, user, own):
    """A row, made at that nanosecond, of the user or of one of the other accounts."""
    return {
        "id": moment,
        "profileid": scattered("prof", number),
        "appid": user.appid,
        "accountid": user.accountid if own else scattered("acct", number % ACCOUNTS),
        "fullName": f"Augusta Ada Lovelace {number}",
        "contactEmail": f"ada.lovelace.{number}@example.com",
        "createdAt": timestamp(moment),
        "updatedAt": timestamp(moment),
    }


def own_numbers(rows):
    """The numbers of the user's profiles, some OWN of them, evenly spread over all."""
    return range(0, rows, max(rows // OWN, 1))


def scattered(prefix, number):
    """The identifier of a number, as random to an index as the service's own; none comes twice."""
    return f"{prefix}_{number * 0x9E3779B97F4A7C15 % 2**64:016x}"


# The measurements


class Load(NamedTuple):
    """A request that wrk repeats, over the paths in turn, from clients that keep connections."""

    port: int
    paths: list[str]
    token: str
    method: str = "GET"
    body: str = ""


def all_loads(administrator, user, bare, rows):
    """The requests that are measured, by their names."""
    port = user.client.port
    update = [f"{UPDATE}?profileid={scattered('prof', n)}" for n in own_numbers(rows)]
    get = Load(port, [PROFILES], administrator.token)
    patch = Load(port, update, user.token, "PATCH", FORM)
    post = Load(port, [f"{CREATE}?accountid={user.accountid}"], user.token, "POST", FORM)
    return {
        "bare GET": get._replace(port=bare.port, paths=["/health"]),
        "list": get,
        "half-way": get._replace(paths=[f"{PROFILES}?after={scattered('prof', rows // 2)}"]),
        "bare PATCH": patch._replace(port=bare.port, paths=["/"]),
        "update": patch,
        "bare POST": post._replace(port=bare.port, paths=["/"]),
        "create": post,
    }


def wrk(load, seconds, folder):
    """The requests per second. Raises SystemExit if any answer is an error or missing."""
    script = folder / "load.lua"
    script.write_text(LUA.format(**load._asdict() | {"paths": " ".join(load.paths)}))
    command = ["wrk", "-t1", "-c8", f"-d{seconds}s", "-s", script, f"http://127.0.0.1:{load.port}"]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout
    rate = re.search(r"Requests/sec: +([0-9.]+)", output)
    if not rate or rate[1] == "0.00" or re.search("Socket errors|Non-2xx", output):
        raise SystemExit(f"{load.method} {load.paths[0]} failed:\n{output}")
    return float(rate[1])


def seconds_of_all(administrator, rows):
    """How long an ``all`` takes on a new connection. It is seen to be whole."""
    began, count, last = time.perf_counter(), 0, b""
    with closing(HTTPConnection("127.0.0.1", administrator.client.port, timeout=600)) as wire:
        wire.request("GET", f"{PROFILES}?all=true", headers=administrator.headers)
        response = wire.getresponse()
        while chunk := response.read(65_536):
            count += (last[-11:] + chunk).count(b'"profileid"')
            last = chunk
    if count != rows:
        raise SystemExit(f"all answered {response.status} and {count} profiles of {rows}")
    return time.perf_counter() - began


def peaks(service):
    """The most memory that each worker had so far, in MiB."""
    pid = service.process.pid
    pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    texts = [Path(f"/proc/{each}/status").read_text() for each in sorted(pids, key=int)]
    return [int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) / 1024 for text in texts]


def print_line(name, result, sense, goal, plain):
    met = result >= goal if sense == "≥" else result <= goal
    print(f"{name:<26}{result:>12,.2f}  {sense} {goal:<9,}{'yes' if met else 'NO':<5}{plain}")


def measure(options, folder):
    """Measure, and print each line."""
    (folder / "bare.py").write_text(BARE)
    with ExitStack() as stack:
        own = mysql_database() if options.mysql else nullcontext(f"sqlite:///{folder}/profiles.db")
        url = stack.enter_context(own)
        service, bare = Served(folder, url), Served(folder, url, PYTHONPATH=str(folder))
        bare.command = [word.replace("app:create_app()", "bare:app") for word in bare.command]
        administrator, user = Person(service, administrator=True), Person(service)
        fill(url, options.rows, user)
        stack.enter_context(running(service))
        stack.enter_context(running(bare))
        before = peaks(service)  # before the loads have made the workers grow
        seconds = median(seconds_of_all(administrator, options.rows) for _ in range(5))
        growth = max(map(float.__sub__, peaks(service), before))
        loads = all_loads(administrator, user, bare, options.rows)
        rates = {name: [] for name in loads}
        for _ in range(options.rounds):  # so that a drift meets all loads
            for name, load in loads.items():
                rates[name].append(wrk(load, options.seconds, folder))
    plain = f"{options.rows:,} in {seconds:.2f} s"
    print_line("all, rows/s", options.rows / seconds, "≥", (200_000, 60_000)[options.mysql], plain)
    print_line("all, MiB more in a worker", growth, "≤", 16, "")
    for one, two, *goals in GOALS:
        ratio = median(a / b for a, b in zip(rates[one], rates[two], strict=True))
        plain = " / ".join(f"{median(rates[name]):,.0f}" for name in (one, two)) + " req/s"
        print_line(f"{one} / {two}", ratio, "≥", goals[options.mysql], plain)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="profiles in the database")
    parser.add_argument("--seconds", type=int, default=3, help="of each run of wrk")
    parser.add_argument("--rounds", type=int, default=3, help="of all runs; their median counts")
    server = "in a new database on the server of TEST_MYSQL_URL, instead of SQLite"
    parser.add_argument("--mysql", action="store_true", help=server)
    options = parser.parse_args()
    if not shutil.which("wrk"):
        sys.exit("wrk is not installed: apt-get install wrk")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # by every finally
    with TemporaryDirectory() as name:
        measure(options, Path(name).resolve())


if __name__ == "__main__":
    main()
