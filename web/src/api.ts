// The REST API: one function that asks, the token it asks with, and the shapes of the answers.

export interface Summary {
  run: string; name: string; state: string; waiting_for: string; round: number; rounds: number | null;
  nodes_live: number; train_loss: number | null; validation_loss: number | null; stopped: string | null;
  paused: string | null;
}
export interface RunFields {
  run: string; term: number; head: number; at: number; members: number; parameters: number; tokens: number;
  rounds_done: number; began_ms: number; snapshot_at: number; preset: string; text: boolean;
  budget: { rounds: number | null; tokens: number | null; seconds: number | null };
  privacy: Privacy | null;
}
export interface Privacy { unit: string; epsilon: number | null; delta: number; clip: number; noise: number; releases: number | null }
export interface Health { score: number; parts?: Record<string, number | string> }
export interface NodeStatus {
  node: string; name: string; state: "in" | "next" | "behind" | "silent" | "gone" | string; why: string; doing: string;
  at: number | null; step: number | null; loss: number | null; tokens_per_s: number | null;
  up_bytes: number | null; down_bytes: number | null; device: string; reachable: boolean; rejected: string | null;
  rounds_planned: number; rounds_counted: number;
  epsilon: number | null; reputation: number | null; audits_passed: number | null; convictions: number | null;
  key: "first" | "replaced" | "revoked";
  [more: string]: unknown;
}
export interface Update {
  node: string; weight: number; steps: number; samples: number; tokens: number; size_bytes: number;
  loss: number | null; late: boolean; holders: string[];
}
export interface Round {
  round: number; plan: number; seal: number | null; opened_ms: number; sealed_ms: number | null; planned: string[];
  accepted: Update[]; rejected: { node: string; reason: string }[]; late: string[]; why_planned: string;
  why_sealed: string; steps: number; tokens: number; update_bytes: number; dense_bytes: number;
  train_loss: number | null; validation_loss: number | null; undone: boolean;
}
export interface Happening {
  id: number; time_ms: number; kind: string; level: "info" | "warning" | "error"; text: string; reason: string;
  round: number | null; node: string | null; position: number | null;
}
export interface Links { nodes: string[]; rtt_ms: (number | null)[][]; regions: { members: string[]; hub: string; reason: string }[] }
export interface Problem { title: string; status: number; detail: string; code?: string; next_step?: string }

export class Refused extends Error {
  constructor(readonly problem: Problem) {
    super(problem.detail);
  }
}

const KEY = "shoal-token";

export function takeTokenFromAddress(): void {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (found) {
    setToken(found);
    history.replaceState(null, "", location.pathname + location.search);
  }
}

export function token(): string {
  return localStorage.getItem(KEY) ?? "";
}

export function setToken(value: string): void {
  if (value) localStorage.setItem(KEY, value.trim());
  else localStorage.removeItem(KEY);
}

export async function ask<T>(path: string, options: RequestInit & { json?: unknown } = {}): Promise<T> {
  const answer = await fetchApi(path, options);
  return (await answer.json()) as T;
}

export async function fetchApi(path: string, options: RequestInit & { json?: unknown } = {}): Promise<Response> {
  const headers = new Headers(options.headers);
  headers.set("Authorization", `Bearer ${token()}`);
  let body = options.body;
  if (options.json !== undefined) {
    headers.set("Content-Type", "application/json");
    body = JSON.stringify(options.json);
  }
  let answer: Response;
  try {
    answer = await fetch(`/api/v1${path}`, { ...options, headers, body });
  } catch {
    throw new Refused({ title: "no answer", status: 0, detail: "The coordinator does not answer.",
      next_step: "It is tried again by itself." });
  }
  if (!answer.ok) throw new Refused(await problemIn(answer));
  return answer;
}

async function problemIn(answer: Response): Promise<Problem> {
  try {
    return (await answer.json()) as Problem;
  } catch {
    return { title: answer.statusText, status: answer.status, detail: `The coordinator answered ${answer.status}.` };
  }
}

export async function save(path: string, fallback: string): Promise<void> {
  const answer = await fetchApi(path);
  const named = /filename="([^"]+)"/.exec(answer.headers.get("Content-Disposition") ?? "");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = named?.[1] ?? fallback;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
