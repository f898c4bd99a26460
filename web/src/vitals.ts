// What a coordinator knows of a node beyond the basics: health, tier, its line. Absent fields are left out, and fields of
// later versions are shown as they come.
import type { NodeStatus, Privacy } from "./api";
import { bytes, plural } from "./format";

const BASIC = new Set(["node", "name", "state", "why", "doing", "at", "step", "loss", "tokens_per_s", "up_bytes",
  "down_bytes", "device", "reachable", "rejected", "planned", "rounds_planned", "rounds_counted", "epsilon", "reputation", "audits_passed", "convictions", "key"]);
const SHOWN: Record<string, (value: number) => string> = {
  health: share, speed: share, network: share, quality: share, uptime: share, delivered: share, loss: share, failed: share,
  rtt_s: milliseconds, jitter_s: milliseconds, step_s: milliseconds,
  up_bytes_s: (value) => `${bytes(value)}/s`, down_bytes_s: (value) => `${bytes(value)}/s`, memory_bytes: bytes,
};
const NAMES: Record<string, string> = {
  rtt_s: "round trip", jitter_s: "jitter", step_s: "one step", up_bytes_s: "can send", down_bytes_s: "can receive",
  memory_bytes: "free memory", loss: "sent again", failed: "requests failed",
};

export interface Extras { health: string; score: number; tier: string; rows: [string, string][] }
type Measured = Record<string, number | string | null>;

export function extras(node: NodeStatus): Extras {
  const measured = (node.measured ?? {}) as Measured;
  const rows: [string, string][] = [];
  for (const [name, value] of Object.entries(measured)) {
    if (value === null || value === undefined || value === "") continue;
    rows.push([NAMES[name] ?? words(name), typeof value === "number" ? (SHOWN[name] ?? plain)(value) : value]);
  }
  if (typeof node.planned === "string") rows.push(["planned so", node.planned]);
  for (const [name, value] of Object.entries(node)) {
    if (!BASIC.has(name) && value !== null && value !== "" && typeof value !== "object") rows.push([words(name), plain(value)]);
  }
  const score = typeof measured.health === "number" ? measured.health : null;
  return { health: score === null ? "–" : share(score), score: score ?? -1, tier: String(measured.tier ?? ""), rows };
}

// What a run that audits, that is private, or that saw other keys knows of a node besides; nothing of other runs.
export function trust(node: NodeStatus, privacy: Privacy | null | undefined): [string, string][] {
  const rows: [string, string][] = [];
  if (node.reputation != null) {
    const told = [`${node.reputation} of 1000`, `${plural(node.audits_passed ?? 0, "audit")} passed`];
    if (node.convictions) told.push(plural(node.convictions, "conviction"));
    rows.push(["reputation", told.join(", ")]);
  }
  if (node.epsilon != null) rows.push(["privacy spent", `epsilon ${spent(node, privacy)}`]);
  if (node.key === "replaced") rows.push(["key", "replaced by a later one"]);
  if (node.key === "revoked") rows.push(["key", "revoked: it cannot come back"]);
  return rows;
}

export function spent(node: NodeStatus, privacy: Privacy | null | undefined): string {
  if (node.epsilon == null) return "–";
  return node.epsilon.toPrecision(3) + (privacy?.epsilon == null ? "" : ` of ${privacy.epsilon}`);
}

export function promise(privacy: Privacy): string {
  const most = privacy.epsilon === null ? "epsilon counted" : `epsilon at most ${privacy.epsilon} for each node`;
  return `private by ${privacy.unit}: ${most}, delta ${privacy.delta}, noise ${privacy.noise.toPrecision(3)} × clip ${privacy.clip}`;
}

export function rttMs(node: NodeStatus): number | null {
  const measured = node.measured as Measured | null | undefined;
  return typeof measured?.rtt_s === "number" ? measured.rtt_s * 1000 : null;
}

function words(name: string): string {
  return name.replaceAll("_", " ");
}

function share(part: number): string {
  return `${Math.round(part * 100)}%`;
}

function milliseconds(seconds: number): string {
  return seconds < 10 ? `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms` : `${seconds.toFixed(1)} s`;
}

function plain(value: unknown): string {
  return typeof value === "number" && !Number.isInteger(value) ? value.toPrecision(3) : String(value);
}
