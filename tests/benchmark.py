"""Measures this version beside another one, such as a worktree of the last commit; needs wrk.

python tests/benchmark.py ../before [--mysql]    # on the server of TEST_MYSQL_URL
"""

import argparse
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from databases import mysql_database, store  # noqa: E402
from serving import CREATE, PROFILES, UPDATE, Person, Served  # noqa: E402

from models import Profile, timestamp  # noqa: E402

ROWS, OWN, ROUNDS, SECONDS = 100_000, 333, 7, 3  # every 333rd profile is the user's
FORM = "contact-email=ada.lovelace%40example.com&full-name=Ada+Lovelace"
LUA = """
wrk.method, wrk.body = "{}", "{}"
wrk.headers["Authorization"] = "Bearer {}"
wrk.headers["Content-Type"] = "application/x-www-form-urlencoded"
local made, turn = {{}}, 0
function init() for p in ("{}"):gmatch("%S+") do made[#made + 1] = wrk.format(nil, p) end end
function request() turn = turn % #made + 1; return made[turn] end
"""


def scattered(prefix, number):
    """An identifier of the number, as random to an index as the service's own."""
    return f"{prefix}_{number * 0x9E3779B97F4A7C15 % 2**64:016x}"


def profiles(user):
    """The rows of 3,000 accounts, a millisecond apart."""
    names, start = Profile._meta.sorted_field_names, time.time_ns() - ROWS * 1_000_000
    for number in range(ROWS):
        moment = start + number * 1_000_000
        row = dict.fromkeys(names) | {
            "id": moment,
            "profileid": scattered("prof", number),
        }
        row |= {"appid": user.appid, "accountid": scattered("acct", number % 3_000)}
        row |= {"accountid": user.accountid} if number % OWN == 0 else {}
        row |= {
            "fullName": f"Augusta Ada Lovelace {number}",
            "contactEmail": "ada@example.com",
        }
        yield row | dict.fromkeys(("createdAt", "updatedAt"), timestamp(moment))


def wrk(port, folder, *load):
    """The requests per second of 8 clients, and p99 / p50 of an answer's time."""
    (folder / "load.lua").write_text(LUA.format(*load))
    words = ["-t1", "-c8", f"-d{SECONDS}s", "--latency", "-s", folder / "load.lua"]
    command = ["wrk", *words, f"http://127.0.0.1:{port}"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert not re.search("Socket errors|Non-2xx", text), text
    units = {"us": 1, "ms": 1_000, "s": 1_000_000}
    times = re.findall(r"(?:50|99)%\s+([0-9.]+)([mu]?s)", text)
    p50, p99 = (float(number) * units[unit] for number, unit in times)
    return float(re.search(r"Requests/sec: +([0-9.]+)", text)[1]), p99 / p50


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("--mysql", action="store_true")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder, loads = Path(stack.enter_context(TemporaryDirectory())), {}
        for name, root in {
            "before": options.other,
            "now": Path(__file__).parent.parent,
        }.items():
            url = f"sqlite:///{folder}/{name}.db"
            if options.mysql:
                url = stack.enter_context(mysql_database())
            service = Served(folder, url)
            user, administrator = Person(service), Person(service, administrator=True)
            store(url, Profile, list(profiles(user)))
            own = " ".join(
                f"{UPDATE}?profileid={scattered('prof', n)}"
                for n in range(0, ROWS, OWN)
            )
            stack.enter_context(service.start(cwd=root.resolve()))
            stack.callback(service.kill, signal.SIGTERM)
            service.wait_until_up()
            loads[name] = (
                service.port,
                {
                    "list": ("GET", "", administrator.token, PROFILES),
                    "update": ("PATCH", FORM, user.token, own),
                    "create": (
                        "POST",
                        FORM,
                        user.token,
                        f"{CREATE}?accountid={user.accountid}",
                    ),
                },
            )
        for load in ("list", "update", "create"):
            found = [
                [wrk(p, folder, *ls[load]) for p, ls in loads.values()]
                for _ in range(ROUNDS)
            ]
            before, now = (
                median(rate for rate, _ in each) for each in zip(*found, strict=True)
            )
            tail = median(now[1] for _, now in found)
            print(
                f"{load}: {now:.0f} / {before:.0f} = {now / before:.2f}; p99 / p50 = {tail:.1f}"
            )


if __name__ == "__main__":
    main()
