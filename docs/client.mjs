/* A client for Profiles 5.0.0 in JavaScript, for Node 20 and newer. Copy it into your product and adapt it.
Set PROFILES_URL to the address of the service, such as http://127.0.0.1:8000, and PROFILES_TOKEN to an
administrator's token. PROFILES_APPID is the service's APPID, by default "default". PROFILES_TIMEOUT is how
many seconds all tries and the whole response may take together, by default 5 for a GET and 15 for a change.

You identify a user by your own id for the user:
    const user = await signUp(userId); // once
    const user = await new User(userId).signIn(); // each time the user signs in
    const user = new User(userId, token, sessionid); // in later requests
Store user.token and user.sessionid in your own session after each use, because both change when an expired
session is renewed. If a call throws SignedOut, end your own session too, and show your sign-in page. */
import { createHash } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
/** @typedef {Record<string, any>} Row an account, a profile or a session, as API.md shows it */
/** @typedef {Record<string, string | null>} Fields such as {"full-name": "Ada King"} */
/** @typedef {{status: number, headers: Headers, content: any}} Reply */
/** @typedef {(method: string, path: string, options?: any) => Promise<Reply>} Send */
const WAITS = [0, 1, 2, 4]; // seconds before each retry, if the response has no Retry-After
const FIELDS = `full-name contact-email display-email display-name company-name dob phone
  occupation location website default duration`.split(/\s+/);
const OPTIONS = `token key ifMatch accountid profileid sessionid email active
  limit offset after all`.split(/\s+/);
const appid = () => process.env.PROFILES_APPID || "default";
/** A request failed. The code is one of API.md's, or unexpected-answer (the response is a proxy's page, say),
 * no-answer (there was no complete response), or not-sent (the address, a token or a key is malformed). */
export class ServiceError extends Error {
  /** @param {string} code @param {any} details */
  constructor(code, { status, errors = {}, requestId, reason, retryAfter, detail }) {
    const fields = Object.entries(errors).map((pair) => pair.join(": "));
    const request = requestId && `request ${requestId}`;
    super([code, detail, status && `status ${status}`, ...fields, request].filter(Boolean).join(", "));
    this.name = new.target.name;
    this.code = code;
    this.status = status;
    this.errors = errors; // each wrong field's code
    this.requestId = requestId; // lets the operator find the request in the log
    this.reason = reason; // of a 401: ended, expired, or undefined for an unknown token
    this.retryAfter = retryAfter;
  }
}
/** PROFILES_TOKEN or PROFILES_APPID is wrong. Tell the operator, not the user. */
export class AdministratorTokenError extends ServiceError {}
/** The user must sign in again. If the account was deleted, the code is invalid-accountid. */
export class SignedOut extends ServiceError {}
/** Send a request: again once, if there is no response, and up to four times after a 502, 503 or 504. Throws
 * TypeError for an unknown name or an empty parameter: without an accountid, a list may have all users' rows.
 * @param {string} method @param {string} path @param {string | undefined} token @param {any} [options] */
export async function sendRequest(method, path, token, options = {}) {
  const [url, request] = makeRequest(method, path, { token, ...options });
  const seconds = Number(process.env.PROFILES_TIMEOUT || (method === "GET" ? 5 : 15));
  const deadline = performance.now() + 1000 * seconds;
  for (let retries = 0, losses = 0; ; retries++) {
    const reply = await sendOnce(url, request, deadline);
    if (!(reply instanceof ServiceError)) return reply;
    if (reply.code === "no-answer") losses++;
    const isTemporary = losses < 2 && [undefined, 502, 503, 504].includes(reply.status);
    const wait = 1000 * (Number(reply.retryAfter) || (WAITS[retries] ?? 0));
    if (!isTemporary || retries === WAITS.length || performance.now() + wait >= deadline) throw reply;
    await sleep(wait);
  }
}

/** @param {string} method @param {string} path @param {any} options @returns {[URL, RequestInit]} */
function makeRequest(method, path, { body, ...options }) {
  for (const name in body) if (!FIELDS.includes(name)) throw new TypeError(`unknown field: ${name}`);
  for (const [name, value] of Object.entries(options)) {
    if (!OPTIONS.includes(name)) throw new TypeError(`unknown parameter: ${name}`);
    if (value === undefined || value === null || value === "") throw new TypeError(`${name} has no value`);
  }
  const { token, key, ifMatch, ...query } = options;
  const address = process.env.PROFILES_URL ?? "";
  const isValid = /^https?:/.test(address) && URL.canParse(address);
  if (!isValid) throw new ServiceError("not-sent", { detail: "malformed PROFILES_URL" });
  const { origin, pathname } = new URL(address); // without a password, which fetch() refuses
  const url = new URL(`${origin}${pathname.replace(/\/+$/, "")}/api/${path}?${new URLSearchParams(query)}`);
  const headers = new Map([["Authorization", `Bearer ${token}`], ["X-Appid", appid()]]);
  if (body) headers.set("Content-Type", "application/json");
  if (key) headers.set("Idempotency-Key", key);
  if (ifMatch) headers.set("If-Match", `"${ifMatch}"`);
  const malformed = [...headers].find(([, value]) => /[^ -~]/.test(value));
  if (malformed) throw new ServiceError("not-sent", { detail: `${origin}, malformed ${malformed[0]}` });
  return [url, { method, headers: [...headers], body: JSON.stringify(body) }];
}

/** Return the reply or the error. @param {URL} url @param {RequestInit} request @param {number} deadline */
async function sendOnce(url, request, deadline) {
  const timeLeft = Math.max(1, Math.ceil(deadline - performance.now()));
  const signal = AbortSignal.timeout(Math.min(timeLeft, 15_000)); // one try may take 15 seconds
  let response, text;
  try {
    response = await fetch(url, { ...request, signal, redirect: "manual" }); // else a POST becomes a GET
    text = await response.text();
  } catch (/** @type {any} */ error) {
    const { message, code } = error.cause ?? error; // the error itself says only "fetch failed"
    const cause = String(message || code).trim().replace(/\s+/g, " ");
    return new ServiceError("no-answer", { detail: `${url.origin}, ${cause}` });
  }
  const { status, headers } = response;
  const content = await new Response(text).json().catch(() => undefined); // a proxy's page, say
  if (content !== undefined && (status === 200 || status === 201)) return { status, headers, content };
  const { message = "unexpected-answer", errors, reason } = content?.object === "error" ? content : {};
  const [requestId, retryAfter] = [headers.get("X-Request-Id"), headers.get("Retry-After")];
  const TokenError = url.pathname.includes("/api/administrator/") ? AdministratorTokenError : SignedOut;
  const ErrorType = /^(sign-in|administrator)-required$/.test(message) ? TokenError : ServiceError;
  return new ErrorType(message, { status, errors, requestId, reason, retryAfter });
}

/** Send a request with the administrator's token. @type {Send} */
export const administrate = (method, path, options) =>
  sendRequest(method, `administrator/${path}`, process.env.PROFILES_TOKEN, options);

/** Yield every row of a list. If this throws invalid-after, start again: a row has been deleted meanwhile.
 * @param {Send} send @param {string} path @param {any} query @returns {AsyncGenerator<Row, void>} */
export async function* walk(send, path, query) {
  for (;;) {
    const { headers, content } = await send("GET", path, query);
    yield* content ?? [];
    const next = /\?([^>]*)>; rel="next"/.exec(headers.get("Link") ?? "");
    if (!next) return;
    query = Object.fromEntries(new URLSearchParams(next[1]));
  }
}
/** Yield all accounts, each with its default profile, in the order of their ids. @param {any} [query] */
export const accounts = (query) => walk(administrate, "accounts", { limit: 100, ...query });
/** Yield all profiles, newest first, or with `email` those with this address. @param {any} [query] */
export const profiles = (query) => walk(administrate, "profiles", { limit: 100, ...query });

/** Create the user's account, if necessary, and sign in. @param {string} userId @param {number} [duration] */
export async function signUp(userId, duration) {
  const user = new User(userId, undefined, undefined, duration);
  await administrate("POST", "create-account", { key: userId });
  return user.signIn();
}
/** Return the id of a user's account. @param {string} userId without spaces around it: HTTP strips them */
export function computeAccountid(userId) {
  const isKey = typeof userId === "string" && /^(?! )[ -~]{1,255}(?<! )$/.test(userId);
  if (!isKey) throw new TypeError(`not 1 to 255 ASCII characters, stripped: ${JSON.stringify(userId)}`);
  return `acct_${createHash("sha256").update(`${appid()} ${userId}`).digest("hex").slice(0, 16)}`;
}
/** Ignore errors with these codes: another request has done the same. @param {string[]} codes */
const skip = (...codes) => (/** @type {any} */ error) => codes.includes(error.code) || Promise.reject(error);

/** A user who has signed up, by your id for the user, with the token and sessionid that you have kept. */
export class User {
  /** @param {string} userId @param {string} [token] @param {string} [sessionid] @param {number} [duration] */
  constructor(userId, token, sessionid, duration = 28_800) {
    if (!token !== !sessionid) throw new TypeError("the token and its sessionid belong together");
    this.accountid = computeAccountid(userId);
    this.token = token;
    this.sessionid = sessionid;
    this.duration = duration; // seconds that a session lasts
  }
  /** Start a session, use its token from now on, and return the User. */
  async signIn() {
    const body = { duration: this.duration };
    const { content } = await administrate("POST", "create-session", { accountid: this.accountid, body });
    ({ token: this.token, sessionid: this.sessionid } = content);
    return this;
  }
  /** Send a request of the user. If the session has expired, renew it and resend. @type {Send} */
  send = async (method, path, options) => {
    const { accountid } = this;
    const send = () => sendRequest(method, `user/${path}`, this.token, { accountid, ...options });
    try {
      return await send();
    } catch (error) {
      if (!(error instanceof SignedOut)) throw error;
      // The token is unknown if the account or the session was deleted, or if PROFILES_APPID is wrong.
      const exists = error.reason || (await administrate("GET", "accounts", { accountid })).content;
      if (!exists) throw new SignedOut("invalid-accountid", { status: 404 });
      if (error.reason !== "expired") throw error;
    }
    await this.signIn();
    return send();
  };
  /** @param {string} method @param {string} path @param {any} [options] @returns {Promise<Row>} */
  call = async (method, path, options) => (await this.send(method, path, options)).content;
  /** Return the account; its `profile` is the default profile, or null. */
  account = () => this.call("GET", "account");
  /** Return a profile of the user. @param {string} profileid */
  profile = (profileid) => this.call("GET", "profile", { profileid });
  /** Yield the profiles, newest first. */
  profiles = (limit = 100) => walk(this.send, "profiles", { limit });
  /** Save a profile and return it: by default the default one or, if there is none, the one that has the key
   * `first` and becomes the default. Throws profile-changed if its `updatedAt` is no longer `ifMatch`.
   * @type {(fields: Fields, options?: {profileid?: string, ifMatch?: string}) => Promise<Row>} */
  saveProfile = async (fields, options = {}) => {
    if ("profileid" in options) return this.call("PATCH", "update-profile", { ...options, body: fields });
    const { profileid } = await this.account();
    const saving = profileid && this.saveProfile(fields, { ...options, profileid });
    const saved = await saving?.catch(skip("invalid-profileid")); // true, if it was just deleted
    if (saved && saved !== true) return saved;
    if (options.ifMatch) throw new ServiceError("profile-changed", { status: 412 }); // it was deleted
    const body = { ...fields, default: "true" };
    const { status, content } = await this.send("POST", "create-profile", { ...options, key: "first", body });
    if (status === 201) return content;
    await this.setDefaultProfile(content.profileid); // it existed, and has other values yet
    return this.saveProfile(fields, { profileid: content.profileid });
  };
  /** Create a profile, once for each key, such as a UUID. @param {Fields} fields @param {string} key */
  createProfile = (fields, key) => this.call("POST", "create-profile", { key, body: fields });
  /** Make a profile the default; return the account. @param {string} profileid */
  setDefaultProfile = (profileid) => this.call("PATCH", "set-default-profile", { profileid });
  /** Delete a profile. If it was the default, the user has none afterwards. @param {string} profileid */
  deleteProfile = (profileid) =>
    this.send("DELETE", "delete-profile", { profileid }).catch(skip("invalid-profileid"));
  /** Yield the running sessions, newest first: where the user is signed in. */
  sessions = (limit = 100) => walk(this.send, "sessions", { active: "true", limit });
  /** End one of the user's sessions, to sign the user out on another device. @param {string} sessionid */
  endSession = (sessionid) =>
    this.send("PATCH", "end-session", { sessionid }).catch(skip("invalid-sessionid"));
  /** End this token's session. Discard the User: another call throws SignedOut. */
  signOut = () =>
    sendRequest("PATCH", "user/end-session", this.token).catch(skip("sign-in-required", "invalid-sessionid"));
  /** End all sessions. Discard the User: another call throws SignedOut. */
  signOutEverywhere = () => administrate("PATCH", "end-sessions", { accountid: this.accountid });
  /** Delete the account with its profiles and sessions. */
  delete = () =>
    administrate("DELETE", "delete-account", { accountid: this.accountid }).catch(skip("invalid-accountid"));
}
