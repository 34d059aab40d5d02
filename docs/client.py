"""A client of Profiles for the life of a user. Copy it, and change it as you like.

PROFILES_URL is the service's address, such as http://127.0.0.1:8000. PROFILES_TOKEN is
the token of an administrator. A user is known by your own id:

    user = User("0f8fad5b-d9cb-469f-a165-70867728950e")
    user.save_profile({"contact-email": "ada@example.com", "full-name": "Ada King"})
"""

import os

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

API = os.environ["PROFILES_URL"] + "/api/"
ADMINISTRATOR = os.environ["PROFILES_TOKEN"]

# After a 503 or a lost answer, the same request is sent again, at most three times.
# allowed_methods=None means every method: each request below can be repeated.
retries = Retry(3, status_forcelist=[503], allowed_methods=None, backoff_factor=1)
http = requests.Session()
http.mount(API, HTTPAdapter(max_retries=retries))


class ServiceError(Exception):
    """The service refused a request. The message is the code of the error."""


def send(method, path, token=ADMINISTRATOR, body=None, key=None):
    headers = {"Authorization": f"Bearer {token}"}
    if key:
        headers["Idempotency-Key"] = key
    response = http.request(method, API + path, headers=headers, json=body, timeout=15)
    if not response.ok:
        raise ServiceError(response.json()["message"])
    return response.json()


class User:
    def __init__(self, user_id):
        account = send("POST", "administrator/create-account", key=user_id)
        self.accountid = account["accountid"]
        self.sign_in()

    def sign_in(self):
        path = f"administrator/create-session?accountid={self.accountid}"
        self.token = send("POST", path)["token"]

    def sign_out_everywhere(self):
        send("PATCH", f"administrator/end-sessions?accountid={self.accountid}")

    def newest_profile(self):
        path = f"administrator/profiles?accountid={self.accountid}&limit=1"
        profiles = send("GET", path)
        return profiles[0] if profiles else None

    def save_profile(self, fields):
        profile = self.newest_profile()
        if profile:
            path = f"user/update-profile?profileid={profile['profileid']}"
            return self.send_as_user("PATCH", path, fields)
        path = f"user/create-profile?accountid={self.accountid}"
        return self.send_as_user("POST", path, fields, key="first")

    def send_as_user(self, method, path, body, key=None):
        try:
            return send(method, path, self.token, body, key)
        except ServiceError as error:
            if str(error) != "sign-in-required":
                raise
        self.sign_in()  # since the session has ended
        return send(method, path, self.token, body, key)

    def delete(self):
        try:
            send("DELETE", f"administrator/delete-account?accountid={self.accountid}")
        except ServiceError as error:
            if str(error) != "invalid-accountid":  # it is deleted already
                raise
