// What the coordinator tells as it happens, kept as one picture. The socket connects again by itself.
import { useSyncExternalStore } from "react";
import { token, type Happening, type NodeStatus, type Round, type RunFields, type Summary } from "./api";

export type Line = "idle" | "connecting" | "live" | "lost" | "denied";
export interface Picture {
  line: Line;
  scope: string;
  why: string;
  runs: ReadonlyMap<string, Summary>;
  watched: string | null;
  loaded: boolean;
  run: RunFields | null;
  nodes: ReadonlyMap<string, NodeStatus>;
  rounds: readonly Round[];
  open: Round | null;
  events: readonly Happening[];
}
interface Frame {
  type: "welcome" | "full" | "delta";
  scope?: string;
  runs?: Summary[];
  run?: Partial<RunFields>;
  nodes?: (Partial<NodeStatus> & { node: string })[];
  rounds?: Round[];
  rounds_anew?: boolean;
  open?: Round | null;
  events?: Happening[];
}

const EVENTS_KEPT = 1000;
const ROUNDS_KEPT = 4000;
const FIRST_WAIT_MS = 300;
const LONGEST_WAIT_MS = 5000;
const nothing = { loaded: false, run: null, nodes: new Map(), rounds: [], open: null, events: [] };

let picture: Picture = { line: "idle", scope: "", why: "", runs: new Map(), watched: null, ...nothing };
let socket: WebSocket | null = null;
let wait = FIRST_WAIT_MS;
let again = 0;
const listeners = new Set<() => void>();

// What is shown changes once for all frames that wait: a page that draws slowly skips pictures, not news.
const later = new MessageChannel();
let due = false;
later.port1.onmessage = () => {
  due = false;
  for (const tell of listeners) tell();
};

function show(changes: Partial<Picture>): void {
  picture = { ...picture, ...changes };
  if (due) return;
  due = true;
  later.port2.postMessage(0);
}

export function usePicture(): Picture {
  return useSyncExternalStore((tell) => (listeners.add(tell), () => listeners.delete(tell)), () => picture);
}

export function watch(run: string | null): void {
  if (run === picture.watched) return;
  show({ watched: run, ...nothing });
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ run }));
}

export function connect(): void {
  clearTimeout(again);
  if (socket) {
    socket.onclose = socket.onmessage = null;
    socket.close();
  }
  show({ line: picture.line === "live" ? "lost" : "connecting" });
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const opened = new WebSocket(`${scheme}://${location.host}/api/v1/live`);
  socket = opened;
  opened.onopen = () => opened.send(JSON.stringify({ token: token(), run: picture.watched }));
  opened.onmessage = (message) => take(JSON.parse(message.data as string) as Frame);
  opened.onclose = (event) => closed(event);
}

export function disconnect(): void {
  clearTimeout(again);
  if (socket) {
    socket.onclose = null;
    socket.close();
    socket = null;
  }
  show({ line: "idle", scope: "" });
}

function closed(event: CloseEvent): void {
  socket = null;
  if (event.code === 4401) {
    show({ line: "denied", why: event.reason });
    return;
  }
  show({ line: "lost", why: event.reason });
  again = window.setTimeout(connect, wait * (0.7 + 0.6 * Math.random()));
  wait = Math.min(LONGEST_WAIT_MS, wait * 1.6);
}

function take(frame: Frame): void {
  wait = FIRST_WAIT_MS;
  if (frame.type === "welcome") {
    show({ scope: frame.scope ?? "view", why: "" });
    return;
  }
  const full = frame.type === "full";
  show({
    line: "live",
    loaded: true,
    runs: merged(full ? new Map() : picture.runs, frame.runs, (item) => item.run),
    run: frame.run ? ({ ...(full ? {} : picture.run), ...frame.run } as RunFields) : full ? null : picture.run,
    nodes: merged(full ? new Map() : picture.nodes, frame.nodes as NodeStatus[] | undefined, (item) => item.node),
    rounds: rounds(full || frame.rounds_anew ? [] : picture.rounds, frame.rounds),
    open: "open" in frame ? (frame.open ?? null) : full ? null : picture.open,
    events: frame.events ? [...(full ? [] : picture.events), ...frame.events].slice(-EVENTS_KEPT)
      : full ? [] : picture.events,
  });
}

function merged<T>(before: ReadonlyMap<string, T>, news: T[] | undefined, key: (item: T) => string): ReadonlyMap<string, T> {
  if (!news?.length) return before;
  const after = new Map(before);
  for (const item of news) after.set(key(item), { ...(after.get(key(item)) as T), ...item });
  return after;
}

function rounds(before: readonly Round[], news: Round[] | undefined): readonly Round[] {
  if (!news?.length) return before;
  const bySeal = new Map(before.map((item) => [item.seal, item]));
  for (const item of news) bySeal.set(item.seal, item);
  return [...bySeal.values()].slice(-ROUNDS_KEPT);
}
