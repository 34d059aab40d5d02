"""A client for Profiles in Python. Copy it into your product and adapt it.

It reads these environment variables:

- PROFILES_URL: the address of the service, such as http://127.0.0.1:8000
- PROFILES_TOKEN: an administrator's token
- PROFILES_APPID: the service's APPID, by default "default"
- PROFILES_TIMEOUT: how many seconds a request may take with its retries, by default 30

You identify a user by your own id:

    user = sign_up("0f8fad5b-d9cb-469f-a165-70867728950e")  # once
    user.save_profile({"contact-email": "ada@example.com", "full-name": "Ada King"})

Keep user.token in your own session of the user, so that the user signs in once:

    user = User("0f8fad5b-d9cb-469f-a165-70867728950e", token)
"""

import os
import re
from hashlib import sha256
from time import monotonic, sleep
from urllib.parse import parse_qsl

import requests

DURATION = 28_800  # seconds that a user's session lasts
WAITS = (1, 2, 4)  # seconds before each retry, if the response has no Retry-After
TRY_SECONDS = 15  # seconds to wait for one response

http = requests.Session()
# Without an auth, requests would replace the token with a password from ~/.netrc.
http.auth = lambda request: request


class ServiceError(Exception):
    """A request failed. The code is one of API.md's, or one of these:

    unexpected-answer: the response is not the service's, but a proxy's page, say.
    no-answer: there was no response, so there is no status either.
    not-sent: the address, application id or token is malformed, so nothing was sent.
    """

    def __init__(self, code, status=None, request_id=None):
        super().__init__(code, status, request_id)
        self.code = code
        self.status = status
        self.request_id = request_id  # lets the operator find the request in the log
        self.retry_after = ""
        self.errors = {}  # of a profile's wrong fields: each field's code


class AdministratorTokenError(ServiceError):
    """PROFILES_TOKEN or PROFILES_APPID is wrong. Tell the operator, not the user."""


def send(method, path, token, body=None, key=None, **query):
    """Send a request and return the response. Raises ServiceError.

    After a 502, 503 or 504, or without a response, the request is sent again.
    """
    headers = {"Authorization": f"Bearer {token}", "X-Appid": appid()}
    if key is not None:
        headers["Idempotency-Key"] = key
    request = {"method": method, "params": query, "json": body, "headers": headers}
    deadline = monotonic() + float(os.environ.get("PROFILES_TIMEOUT") or 30)
    for wait in WAITS:
        try:
            return send_once(path, deadline, request)
        except ServiceError as error:
            if error.code != "no-answer" and error.status not in (502, 503, 504):
                raise
            if error.retry_after.isdecimal():
                wait = int(error.retry_after)
            if monotonic() + wait >= deadline:
                raise
        sleep(wait)
    return send_once(path, deadline, request)


def appid():
    return os.environ.get("PROFILES_APPID") or "default"


def send_once(path, deadline, request):
    url = os.environ["PROFILES_URL"] + "/api/" + path
    seconds = min(TRY_SECONDS, max(0.1, deadline - monotonic()))
    try:
        # A redirect is not followed, because it would turn a POST into a GET.
        response = http.request(
            url=url, timeout=seconds, allow_redirects=False, **request
        )
    except ValueError:  # its message may contain the token
        raise ServiceError("not-sent") from None
    except requests.RequestException as error:
        raise ServiceError("no-answer") from error
    try:
        content = response.json()
        if response.status_code in (200, 201):
            return response
        code = content["message"]
    except (ValueError, TypeError, KeyError):
        code = "unexpected-answer"
        content = {}
    request_id = response.headers.get("X-Request-Id")
    error = ServiceError(code, response.status_code, request_id)
    error.retry_after = response.headers.get("Retry-After", "")
    error.errors = content.get("errors", {})
    raise error


def administrate(method, path, **options):
    """Send a request with the administrator's token."""
    try:
        token = os.environ["PROFILES_TOKEN"]
        return send(method, f"administrator/{path}", token, **options)
    except ServiceError as error:
        if error.code in ("sign-in-required", "administrator-required"):
            raise AdministratorTokenError(*error.args) from error
        raise


def walk(send, path, **query):
    """Yield every row of a list, as in walk(administrate, "profiles", limit=100).

    Raises ServiceError("invalid-after") if the last row of a page was deleted before
    the next page was read. Start again then.
    """
    while True:
        response = send("GET", path, **query)
        yield from response.json() or []
        if "next" not in response.links:
            return
        link = response.links["next"]["url"]
        query = dict(parse_qsl(link.partition("?")[2]))


def accounts(limit=100):
    """Yield all accounts, each with its default profile, in the order of their ids."""
    return walk(administrate, "accounts", limit=limit)


def sign_up(user_id, duration=DURATION):
    """Create the account of a user and return the User, who is signed in.

    Calling it again is safe, because the same id always gives the same account.
    """
    compute_accountid(user_id)  # raises ValueError before anything is sent
    administrate("POST", "create-account", key=user_id)
    return User(user_id, duration=duration)


def compute_accountid(user_id):
    """Return the id that the service gives to the account of your user."""
    # HTTP strips whitespace around a header, so "x " and "x" would be one account.
    is_key = isinstance(user_id, str) and re.fullmatch("[ -~]{1,255}", user_id)
    if not is_key or user_id != user_id.strip():
        raise ValueError(f"not 1 to 255 ASCII characters, stripped: {user_id!r}")
    return "acct_" + sha256(f"{appid()} {user_id}".encode()).hexdigest()[:16]


class User:
    """A user who has signed up, by your own id.

    ``token`` is one that you have kept; without it, the user signs in. ``duration`` is
    that of a new session, in seconds. If the account was deleted, signing in raises
    ServiceError("invalid-accountid").
    """

    def __init__(self, user_id, token=None, duration=DURATION):
        self.accountid = compute_accountid(user_id)
        self.duration = duration
        self.token = token
        if token is None:
            self.sign_in()

    def sign_in(self):
        body = {"duration": self.duration}
        self.token = self.administrate("POST", "create-session", body=body)["token"]

    def administrate(self, method, path, **options):
        """Send an administrator's request about this account."""
        return administrate(method, path, accountid=self.accountid, **options).json()

    def send(self, method, path, **options):
        """Send a request of the user. If the token has expired, sign in and resend."""
        try:
            return send(method, f"user/{path}", self.token, **options)
        except ServiceError as error:
            if error.code != "sign-in-required":
                raise
        self.sign_in()
        return send(method, f"user/{path}", self.token, **options)

    def account(self):
        """Return the account; its ``profile`` is the default profile, or None."""
        return self.send("GET", "account", accountid=self.accountid).json()

    def profile(self, profileid):
        return self.send("GET", "profile", profileid=profileid).json()

    def profiles(self, limit=100):
        """Yield the profiles, newest first."""
        return walk(self.send, "profiles", accountid=self.accountid, limit=limit)

    def save_profile(self, fields, profileid=None):
        """Save the fields in a profile and return it.

        Without a profileid, this is the default profile or, if there is none, the
        newest one. If the user has no profile, create one and make it the default.
        """
        profileid = profileid or self.find_profileid()
        if not profileid:
            profile = self.create_profile({**fields, "default": "true"}, "first")
            if is_saved(profile, fields):
                return profile
            # A concurrent request created it first, and these values were ignored.
            profileid = profile["profileid"]
        query = {"profileid": profileid}
        return self.send("PATCH", "update-profile", body=fields, **query).json()

    def find_profileid(self):
        """Return the id of the default profile, else of the newest one, else None."""
        profileid = self.account()["profileid"]
        if profileid:
            return profileid
        newest = next(self.profiles(limit=1), None)
        return newest and newest["profileid"]

    def create_profile(self, fields, key):
        """Create a profile, or return the one that was created with the same key.

        Use a new UUID as the key of each profile.
        """
        query = {"accountid": self.accountid}
        return self.send("POST", "create-profile", body=fields, key=key, **query).json()

    def set_default_profile(self, profileid):
        """Make a profile the default; return the account."""
        return self.send("PATCH", "set-default-profile", profileid=profileid).json()

    def delete_profile(self, profileid):
        try:
            self.send("DELETE", "delete-profile", profileid=profileid)
        except ServiceError as error:
            if (error.code, error.status) != ("invalid-profileid", 404):
                raise  # otherwise it is deleted already

    def sign_out(self):
        """End this token's session. Drop the User then: it would sign in again."""
        try:
            send("PATCH", "user/end-session", self.token)
        except ServiceError as error:
            if error.code not in ("sign-in-required", "invalid-sessionid"):
                raise  # otherwise the session has ended, or was deleted

    def sign_out_everywhere(self):
        """End all sessions. Drop the User then: it would sign in again."""
        self.administrate("PATCH", "end-sessions")

    def delete(self):
        """Delete the account with its profiles and sessions."""
        try:
            self.administrate("DELETE", "delete-account")
        except ServiceError as error:
            if error.code != "invalid-accountid":
                raise  # otherwise it is deleted already


def is_saved(profile, fields):
    """Return whether the profile has these values. An empty one is stored as null."""
    for name, value in fields.items():
        first, *words = name.split("-")
        stored = profile.get(first + "".join(word.title() for word in words))
        if stored != (value or None):
            return False
    return True
