/* A strict TypeScript program that uses client.mjs with client.d.mts beside it.
Each list of names must be complete for the compiler, and equal to the names
that client.mjs or the service really has. test_client_node.py runs it. */

import assert from "node:assert/strict";
import * as client from "./client.mjs";
import { ServiceError, SignedOut, User, signUp } from "./client.mjs";
import { toFields, walk } from "./client.mjs";
import type { Account, Profile, Session } from "./client.mjs";

function assertNames(names: Record<string, true>, actual: string[]): void {
  assert.deepEqual(Object.keys(names).sort(), actual.sort());
}

const exported: Record<keyof typeof client, true> = {
  ServiceError: true,
  AdministratorTokenError: true,
  SignedOut: true,
  sendRequest: true,
  administrate: true,
  readPage: true,
  walk: true,
  accounts: true,
  profiles: true,
  signUp: true,
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

const details: Record<
  Exclude<keyof ServiceError, "message" | "stack" | "cause">,
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
  assert.deepEqual([status, error.reason, error.errors], [401, "ended", {}]);
}
await kept.signOut();
await kept.delete();
