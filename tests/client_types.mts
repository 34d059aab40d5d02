/* A strict TypeScript program that uses client.mjs with client.d.mts beside it.
Each list of names must be complete for the compiler, and equal to the names
that client.mjs or the service really has. test_client_node.py runs it. */

import assert from "node:assert/strict";
import * as client from "./client.mjs";
import { Service, ServiceError, SignedOut, User } from "./client.mjs";
import { administrate, readPage, signUp, toFields, walk } from "./client.mjs";
import type { Account, Code, Profile, Send, Session } from "./client.mjs";

function assertNames(names: Record<string, true>, actual: string[]): void {
  assert.deepEqual(Object.keys(names).sort(), actual.sort());
}

const exported: Record<keyof typeof client, true> = {
  ServiceError: true,
  AdministratorTokenError: true,
  SignedOut: true,
  Service: true,
  sendRequest: true,
  administrate: true,
  readPage: true,
  walk: true,
  accounts: true,
  profiles: true,
  signUp: true,
  signIn: true,
  computeAccountid: true,
  toFields: true,
  User: true,
};
assertNames(exported, Object.keys(client));

const user = await signUp("Eve", 60);
const members: Record<keyof User, true> = {
  accountid: true,
  duration: true,
  token: true,
  sessionid: true,
  signIn: true,
  send: true,
  call: true,
  account: true,
  profile: true,
  profiles: true,
  saveProfile: true,
  createProfile: true,
  setDefaultProfile: true,
  deleteProfile: true,
  sessions: true,
  endSession: true,
  signOut: true,
  signOutElsewhere: true,
  signOutEverywhere: true,
  delete: true,
};
const [, ...methods] = Object.getOwnPropertyNames(User.prototype);
assertNames(members, [...methods, ...Object.keys(user)]);

const kept = new User("Eve", user.token, user.sessionid);
const fields = { "full-name": "a", "contact-email": "a@example.com" };
const saved: Profile = await kept.saveProfile(fields, null, "");
const profile: Record<keyof Profile, true> = {
  profileid: true,
  object: true,
  appid: true,
  accountid: true,
  fullName: true,
  contactEmail: true,
  displayEmail: true,
  displayName: true,
  companyName: true,
  dob: true,
  phone: true,
  occupation: true,
  location: true,
  website: true,
  fields: true,
  createdAt: true,
  updatedAt: true,
};
assertNames(profile, Object.keys(saved));
const again: Profile = await kept.saveProfile(
  { ...toFields(saved), phone: null },
  saved.profileid,
  saved.updatedAt,
);
const postalAddress: string | undefined = again.fields?.["x-postal-address"];
assert.equal(postalAddress, undefined);

const account: Record<keyof Account, true> = {
  accountid: true,
  object: true,
  appid: true,
  externalid: true,
  administrator: true,
  profileid: true,
  createdAt: true,
  updatedAt: true,
  profile: true,
};
const { accountid } = kept;
for await (const row of client.accounts({ accountid })) {
  const name: string | null | undefined = row.profile?.fullName;
  assert.equal(name, "a");
  assertNames(account, Object.keys(row));
}
for await (const row of client.profiles({ email: "a@example.com" })) {
  assert.deepEqual(row, await kept.profile(row.profileid));
}
const page = await client.readPage<Account>(client.administrate, "accounts");
const next: string | undefined = page.nextQuery?.["after"];
assert.equal(next, undefined);
assert.ok(page.rows.some((row) => row.accountid === accountid));
for await (const row of walk<Profile>(kept.send, "profiles", { accountid })) {
  const changed: Account = await kept.setDefaultProfile(row.profileid);
  assert.equal(changed.profileid, row.profileid);
}

const session: Record<keyof Session, true> = {
  sessionid: true,
  object: true,
  appid: true,
  accountid: true,
  duration: true,
  csrfToken: true,
  expiresAt: true,
  lastVerifiedAt: true,
  ended: true,
  createdAt: true,
  updatedAt: true,
};
for await (const row of kept.sessions()) {
  assert.equal(row.duration, 60);
  assertNames(session, Object.keys(row));
  await kept.endSession(row.sessionid);
}

const url = process.env["PROFILES_URL"] ?? "";
const token = process.env["PROFILES_TOKEN"] ?? "";
const service = new Service({ url, token, appid: "default", timeout: 20 });
const serviceMembers: Record<keyof Service, true> = {
  sendRequest: true,
  administrate: true,
  accounts: true,
  profiles: true,
  signUp: true,
  signIn: true,
  user: true,
  computeAccountid: true,
};
assertNames(serviceMembers, ["user", ...Object.keys(service)]);
await service.user("Eve", { duration: 60 }).signIn();
const lost: { token?: string; sessionid?: string } = {};
service.user("Eve", { token: lost.token, sessionid: lost.sessionid });
new User("Eve", lost.token, lost.sessionid);
const other: User = await service.signIn("Eve", 60);
const { sessionid } = other;
const sameUser: User = service.user("Eve", { token: other.token, sessionid });
await sameUser.signOutElsewhere();
const lists: Send[] = [sameUser.send, service.administrate];
for (const send of lists) {
  for await (const row of walk(send, "sessions", { accountid, active: true })) {
    assert.equal(row.sessionid, sessionid);
  }
}
const path: "accounts" | "profiles" = "accounts" as "accounts" | "profiles";
const anyPage = await readPage(administrate, path, { accountid });
assert.equal(anyPage.rows[0]?.accountid, accountid);
for (
  let query: object | null = { limit: 1 }, found;
  query;
  query = found.nextQuery
) {
  found = await readPage(service.administrate, "accounts", query);
  const [row]: Account[] = found.rows;
  assert.equal(row?.object, "account");
}
const reply = await administrate("POST", "create-session", {
  accountid,
  body: { duration: 1 },
});
const newToken: string = reply.content.token;
assert.equal(newToken.length, 64);
const own = await other.call("GET", "account", { accountid });
assert.equal(own.profile?.fullName, "a");
const asked = await client.sendRequest("GET", "user/profiles", other.token, {
  accountid,
});
assert.equal(asked.content?.[0]?.fullName, "a");
await other.createProfile({ ...fields, default: "true" }, "other");

/** Nothing calls it: it shows what does not compile. */
export function wrong(error: ServiceError): void {
  // @ts-expect-error
  void saved.fullNam;
  // @ts-expect-error
  void kept.saveProfile({ "full-nam": "a" });
  // @ts-expect-error
  void kept.saveProfile({ default: "true" });
  // @ts-expect-error
  void kept.createProfile({ fullName: "a" }, "k");
  // @ts-expect-error
  void readPage(administrate, "accuonts");
  // @ts-expect-error
  void readPage(administrate, "accounts", { limt: 3 });
  // @ts-expect-error
  void readPage(kept.send, "accounts");
  // @ts-expect-error
  void readPage<Account>(administrate, "profiles");
  // @ts-expect-error
  void walk(administrate, "accounts", { limit: true });
  // @ts-expect-error
  void administrate("POST", "account");
  // @ts-expect-error
  void administrate("post", "create-account");
  // @ts-expect-error
  void kept.send("GET", "create-account");
  // @ts-expect-error
  void kept.send("PATCH", "end-session", { sessionId: "s" });
  // @ts-expect-error
  void kept.call("PATCH", "update-profile", { body: { fullName: "a" } });
  // @ts-expect-error
  void client.sendRequest("GET", "user/accounts", "t");
  // @ts-expect-error
  void new Service({ url });
  // @ts-expect-error
  const code: Code = error.code;
  // @ts-expect-error
  const dob: string = error.errors.dob;
  // @ts-expect-error
  const content: string = reply.content;
  void [code, dob, content];
}

const details: Record<
  Exclude<keyof ServiceError, "message" | "stack" | "cause" | "profile">,
  true
> = {
  name: true,
  code: true,
  status: true,
  requestId: true,
  reason: true,
  errors: true,
  retryAfter: true,
  detail: true,
};
try {
  await kept.createProfile(fields, "k");
  assert.fail("the session has ended");
} catch (error) {
  assert.ok(error instanceof SignedOut);
  assertNames(details, Object.keys(error));
  const status: number | null = error.status;
  const dob: Code | undefined = error.errors.dob;
  const stored: Profile | null = error.profile;
  const other: string | undefined = error.errors["x-vat-id"];
  assert.deepEqual([dob, stored, other], [undefined, null, undefined]);
  assert.deepEqual([status, error.reason, error.errors], [401, "ended", {}]);
}
await kept.signOut();
await kept.delete();
