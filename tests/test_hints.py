"""What a type checker says of a program that calls the operations."""

import os
import re
import subprocess
import sys

import pytest
from service import ROOT

pytestmark = pytest.mark.long
PROGRAM = """
import accounts
import operations
from app import create_app
from errors import ServiceError
from models import Account

caller = accounts.authenticate(None, "default")
user = Account.get_by_id("acct_0123456789abcdef")
operations.list_profiles(caller)
operations.list_profiles(user, all=True, limit="1", after=None)
operations.create_profile(user, user.accountid, {"phone": "1"})["profileid"].lower()
operations.update_profile(caller, "x", None, if_match=["x"], user_profile_fields=("x",))
accounts.create_account(accountid=None)["accountid"].lower()
ServiceError("x").errors.items()
create_app({"PORT": 8000}).app_context()
"""
MISTAKES = """
operations.list_profiles(user, limt=3)
operations.list_profiles(user, limit=[3])
operations.list_own_profiles(user, "x")[0]
operations.create_profile(user)
operations.create_profile("ada", "x", {})
operations.create_profile(user, 5, {})
operations.create_profile(user, "x", {}, idempotency_key=1)
operations.update_profile(user, "x", "body")
operations.update_profile(user, "x", {}, user_profile_fields=5)
accounts.create_account(administratr=True)
accounts.create_session("x", "y")
accounts.end_sessions()
ServiceError()
create_app(1)
"""


def test_it_finds_each_wrong_call_and_no_other(tmp_path):
    pytest.importorskip("mypy")
    file = tmp_path / "program.py"
    file.write_text(PROGRAM + MISTAKES)
    config = ROOT / "pyproject.toml"
    command = [sys.executable, "-m", "mypy", "--config-file", config, file]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    found = [int(line) for line in re.findall(r"program\.py:(\d+): error", done.stdout)]
    begin = PROGRAM.count("\n") + 2  # the line of the first mistake
    assert found == [*range(begin, begin + len(MISTAKES.split("\n")) - 2)], done.stdout
