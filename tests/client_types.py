"""What mypy accepts and refuses in a program that uses docs/client.py.

test_client_types.py runs mypy --strict, which also refuses a "type: ignore" on a line
that is right. Nothing runs this file.
"""

from collections.abc import Iterator

import client
from client import (
    Account,
    ListPath,
    Profile,
    Service,
    Session,
    User,
    administrate,
    read_page,
    sign_in,
    sign_up,
    to_fields,
    walk,
)

user: User = sign_up("Eve", duration=60)
kept = User("Eve", user.token, user.sessionid)
account: Account = kept.account()
default: Profile | None = account["profile"]
saved: Profile = kept.save_profile({"full-name": "a", "x-vat-id": None}, if_match="")
again = kept.save_profile({**to_fields(saved), "phone": "1"}, saved["profileid"])
print((again["fields"] or {}).get("x-vat-id"), saved["fullName"])
created: Profile = kept.create_profile({"full-name": "b", "default": "true"}, "k")
names: list[str | None] = [profile["fullName"] for profile in kept.profiles()]
ended: list[bool] = [session["ended"] for session in kept.sessions(limit=1)]
kept.sign_out_elsewhere()

service = Service("http://127.0.0.1:8000", "token", appid="shop", timeout=2.5)
other: User = service.user("Eve", "token", "sess_0", duration=60)
again_in: list[User] = [sign_in("Eve"), service.sign_in("Eve", 60), User("Eve")]
cookie: dict[str, str] = {}
lost = User("Eve", cookie.get("token"), cookie.get("sessionid"))
accounts: Iterator[Account] = service.accounts(accountid=account["accountid"])
sessions: Iterator[Session] = walk(other.send, "sessions", active="true", limit=5)
rows, next_query = read_page(service.administrate, "accounts", limit=3)
while next_query:
    rows, next_query = read_page(administrate, "accounts", **next_query)
    print(rows[0]["externalid"])
path: ListPath = "profiles" if names else "accounts"
query: dict[str, str | int] = {"limit": 5}
some, _ = read_page(administrate, path, **query)
print([row["accountid"] for row in some])
response = administrate("POST", "create-session", accountid="a", body={"duration": 1})
print(response.json()["token"])
row: client.Object = saved
try:
    user.sign_out()
except client.ServiceError as error:
    code: str = error.code
    stored: Profile | None = error.profile

account["profile"]["fullName"]  # type: ignore[index]
saved["fullNam"]  # type: ignore[typeddict-item]
user.save_profile({"full-name": 5})  # type: ignore[dict-item]
service.accounts(emial="a")  # type: ignore[call-arg]
read_page(administrate, "accuonts")  # type: ignore[call-overload]
read_page(administrate, "accounts", limt=3)  # type: ignore[call-overload]
walk(user.send, "sessions", sessionid="s")  # type: ignore[call-overload]
administrate("GET", "account")  # type: ignore[arg-type]
administrate("GET", "accounts", limt=3)  # type: ignore[call-arg]
administrate("post", "create-account")  # type: ignore[arg-type]
user.send("GET", "accounts")  # type: ignore[arg-type]
user.send("PATCH", "end-session", sessionId="s")  # type: ignore[call-arg]
user.call("GET", "profil", profileid="p")  # type: ignore[arg-type]
Service("http://127.0.0.1:8000")  # type: ignore[call-arg]
