// Who is connected to whom: a force graph on a canvas, with the transfers of every sealed round moving along it.
import { useEffect, useMemo, useRef, useState } from "react";
import type { Links, NodeStatus, Round } from "../api";
import type { PageProps } from "../app";
import { bytes } from "../format";
import { Card, Empty, Link, Loading, tone, useAnswer } from "../parts";
import { pathTo } from "../route";
import { rttMs } from "../vitals";

const CENTRE = "coordinator";
const ROUNDS_COUNTED = 50;
const FLOW_MS = 1400;
const MOST_FLOWS = 300;
const REST = 0.01;

interface Body { id: string; x: number; y: number; vx: number; vy: number }
interface Edge { from: string; to: string; bytes: number; rtt: number | null }
interface Flow { from: string; to: string; began: number }

export function MapPage({ picture, run }: PageProps) {
  const [picked, setPicked] = useState<string | null>(null);
  const nodes = useMemo(() => [...picture.nodes.values()].filter((node) => node.state !== "gone"), [picture.nodes]);
  const { answer: links } = useAnswer<Links>(`/runs/${run}/links`, Math.floor(picture.rounds.length / 5));
  const edges = useMemo(() => edgesOf(nodes, picture.rounds, links), [nodes, picture.rounds, links]);
  if (!picture.loaded) return <Loading what="the map" />;
  const node = picked ? picture.nodes.get(picked) : undefined;
  const sent = edges.filter((edge) => edge.from !== CENTRE).reduce((sum, edge) => sum + edge.bytes, 0);
  return (
    <>
      <div className="title"><h1>Map</h1><p>{nodes.length} nodes, {edges.length} ways, {bytes(sent)} of updates exchanged in the last rounds</p></div>
      {nodes.length === 0 ? <Empty title="Nobody is here yet."><Link to={pathTo("join", run)} className="button">How to join</Link></Empty> : (
        <Card>
          <Graph nodes={nodes} edges={edges} rounds={picture.rounds} pick={setPicked} picked={picked} />
          <div className="legend">
            <span className="chip good">in the round</span><span className="chip calm">ready</span><span className="chip warn">behind</span><span className="chip bad">silent</span>
            <span>thicker: more bytes · redder: longer round trip · dots: updates as they were sent</span>
          </div>
          <p aria-live="polite">{node ? <><Link to={pathTo("node", run, node.node)}>{node.name}</Link>: {node.why}{node.doing && `, ${node.doing}`}</> : "Choose a node to see what it does."}</p>
          {links && links.regions.length > 0 && <Regions links={links} picture={picture} />}
          <ul className="visually-hidden">{nodes.slice(0, 200).map((item) => <li key={item.node}>{item.name}: {item.why}</li>)}</ul>
        </Card>
      )}
    </>
  );
}

function Regions({ links, picture }: { links: Links; picture: PageProps["picture"] }) {
  const name = (node: string) => picture.nodes.get(node)?.name || node.slice(0, 8);
  return (
    <ul className="regions">
      {links.regions.map((region, number) => (
        <li key={region.hub}><strong>Region {number + 1}</strong>, best hub {name(region.hub)}: {region.members.map(name).join(", ")} <span className="hint">{region.reason}</span></li>
      ))}
    </ul>
  );
}

// Everybody speaks with the coordinator; updates went where the receipts say.
function edgesOf(nodes: NodeStatus[], rounds: readonly Round[], links: Links | null): Edge[] {
  const here = new Set(nodes.map((node) => node.node));
  const byWay = new Map<string, Edge>();
  for (const node of nodes) byWay.set(`${CENTRE} ${node.node}`, { from: CENTRE, to: node.node, bytes: 0, rtt: rttMs(node) });
  for (const round of rounds.slice(-ROUNDS_COUNTED)) {
    for (const { node, holder, size } of transfers(round)) {
      if (!here.has(node) || (holder !== CENTRE && !here.has(holder))) continue;
      const [from, to] = holder === CENTRE ? [CENTRE, node] : node < holder ? [node, holder] : [holder, node];
      const key = `${from} ${to}`;
      const edge = byWay.get(key) ?? { from, to, bytes: 0, rtt: null };
      edge.bytes += size;
      byWay.set(key, edge);
    }
  }
  links?.nodes.forEach((one, row) => links.nodes.forEach((two, column) => {
    const edge = byWay.get(`${one} ${two}`);
    if (edge) edge.rtt = links.rtt_ms[row]?.[column] ?? null;
  }));
  return [...byWay.values()];
}

function transfers(round: Round): { node: string; holder: string; size: number }[] {
  const authors = new Set(round.planned);
  return round.accepted.flatMap((update) => update.holders.map((holder) => ({ node: update.node, holder: authors.has(holder) ? holder : CENTRE, size: update.size_bytes })));
}

function Graph({ nodes, edges, rounds, pick, picked }:
  { nodes: NodeStatus[]; edges: Edge[]; rounds: readonly Round[]; pick: (node: string | null) => void; picked: string | null }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const world = useRef({ bodies: new Map<string, Body>(), flows: [] as Flow[], heat: 1, seen: rounds.at(-1)?.seal ?? -1 });
  const latest = useRef({ nodes, edges, picked });
  latest.current = { nodes, edges, picked };
  useEffect(() => settle(world.current, nodes), [nodes]);
  useEffect(() => {
    const now = performance.now();
    for (const round of rounds.slice(-20)) {
      if ((round.seal ?? 0) <= world.current.seen) continue;
      world.current.flows.push(...transfers(round).map(({ node, holder }, index) => ({ from: node, to: holder, began: now + (index % 40) * 12 })));
    }
    world.current.flows = world.current.flows.slice(-MOST_FLOWS);
    world.current.seen = rounds.at(-1)?.seal ?? world.current.seen;
  }, [rounds]);
  useEffect(() => {
    const target = canvas.current!;
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    let frame = 0;
    let painted: unknown = null;
    const draw = () => {
      const moving = world.current.heat >= REST || world.current.flows.length > 0;
      if (moving || painted !== latest.current) {
        painted = latest.current;
        step(world.current, latest.current.edges);
        paint(target, world.current, latest.current, still);
      }
      frame = requestAnimationFrame(draw);
    };
    draw();
    return () => cancelAnimationFrame(frame);
  }, []);
  const choose = (event: React.MouseEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    pick(nearest(world.current.bodies, event.clientX - box.left - box.width / 2, event.clientY - box.top - box.height / 2, box));
  };
  const turn = (event: React.KeyboardEvent) => {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!move || !nodes.length) return;
    event.preventDefault();
    const place = nodes.findIndex((node) => node.node === picked);
    pick(nodes[(place + move + nodes.length) % nodes.length]!.node);
  };
  return <canvas ref={canvas} className="map" tabIndex={0} role="application" aria-label="Map of nodes; the arrow keys go from one to the next" onClick={choose} onKeyDown={turn} />;
}

function settle(world: { bodies: Map<string, Body>; heat: number }, nodes: NodeStatus[]): void {
  const wanted = [CENTRE, ...nodes.map((node) => node.node)];
  const known = new Set(wanted);
  for (const id of world.bodies.keys()) if (!known.has(id)) world.bodies.delete(id);
  wanted.forEach((id, index) => {
    if (world.bodies.has(id)) return;
    const angle = index * 2.399963;
    const radius = id === CENTRE ? 0 : 60 + 14 * Math.sqrt(index);
    world.bodies.set(id, { id, x: radius * Math.cos(angle), y: radius * Math.sin(angle), vx: 0, vy: 0 });
    world.heat = 1;
  });
}

// One step of the forces: all push one another apart, ways pull together. It cools down and then rests.
function step(world: { bodies: Map<string, Body>; heat: number }, edges: Edge[]): void {
  if (world.heat < REST) return;
  const bodies = [...world.bodies.values()];
  const few = bodies.length <= 250;
  for (const a of bodies) {
    const others = few ? bodies : sampleOf(bodies, 60);
    const scale = few ? 1 : bodies.length / 60;
    for (const b of others) {
      if (a === b) continue;
      const dx = a.x - b.x;
      const dy = a.y - b.y;
      const force = (scale * 900) / Math.max(60, dx * dx + dy * dy);
      a.vx += dx * force * 0.02;
      a.vy += dy * force * 0.02;
    }
    a.vx -= a.x * 0.003;
    a.vy -= a.y * 0.003;
  }
  for (const edge of edges) {
    const a = world.bodies.get(edge.from);
    const b = world.bodies.get(edge.to);
    if (!a || !b) continue;
    const wanted = edge.from === CENTRE ? 130 : 90;
    const length = Math.hypot(b.x - a.x, b.y - a.y) || 1;
    const pull = ((length - wanted) / length) * (edge.from === CENTRE ? 0.006 : 0.0015);
    a.vx += (b.x - a.x) * pull;
    a.vy += (b.y - a.y) * pull;
    b.vx -= (b.x - a.x) * pull;
    b.vy -= (b.y - a.y) * pull;
  }
  for (const body of bodies) {
    if (body.id === CENTRE) {
      body.x = body.y = body.vx = body.vy = 0;
      continue;
    }
    body.vx *= 0.85;
    body.vy *= 0.85;
    body.x += body.vx * world.heat * 3;
    body.y += body.vy * world.heat * 3;
  }
  world.heat *= 0.985;
}

function sampleOf<T>(items: T[], size: number): T[] {
  return Array.from({ length: size }, () => items[Math.floor(Math.random() * items.length)]!);
}

function scaleOf(bodies: Map<string, Body>, width: number, height: number): number {
  let most = 120;
  for (const body of bodies.values()) most = Math.max(most, Math.abs(body.x) / (width / height), Math.abs(body.y));
  return Math.min(1.6, (height / 2 - 34) / most);
}

function nearest(bodies: Map<string, Body>, x: number, y: number, box: DOMRect): string | null {
  const scale = scaleOf(bodies, box.width, box.height);
  let found: string | null = null;
  let best = 24;
  for (const body of bodies.values()) {
    const far = Math.hypot(body.x * scale - x, body.y * scale - y);
    if (body.id !== CENTRE && far < best) [found, best] = [body.id, far];
  }
  return found;
}

function paint(target: HTMLCanvasElement, world: { bodies: Map<string, Body>; flows: Flow[] },
  now: { nodes: NodeStatus[]; edges: Edge[]; picked: string | null }, still: boolean): void {
  const ratio = devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = target;
  if (target.width !== width * ratio || target.height !== height * ratio) {
    target.width = width * ratio;
    target.height = height * ratio;
  }
  const pen = target.getContext("2d")!;
  const style = getComputedStyle(document.documentElement);
  const colour = (name: string) => style.getPropertyValue(name);
  pen.setTransform(ratio, 0, 0, ratio, (width / 2) * ratio, (height / 2) * ratio);
  pen.clearRect(-width / 2, -height / 2, width, height);
  const scale = scaleOf(world.bodies, width, height);
  const at = (id: string) => {
    const body = world.bodies.get(id);
    return body ? ([body.x * scale, body.y * scale] as const) : null;
  };
  paintEdges(pen, now.edges, at, colour);
  if (!still) paintFlows(pen, world, at, colour("--accent"));
  paintNodes(pen, now, at, colour);
}

type Place = (id: string) => readonly [number, number] | null;

function paintEdges(pen: CanvasRenderingContext2D, edges: Edge[], at: Place, colour: (name: string) => string): void {
  const most = Math.max(1, ...edges.map((edge) => edge.bytes));
  const slowest = Math.max(1, ...edges.map((edge) => edge.rtt ?? 0));
  const lines = [colour("--line-strong"), colour("--bad"), colour("--warn")];
  for (const edge of edges) {
    const a = at(edge.from);
    const b = at(edge.to);
    if (!a || !b) continue;
    pen.strokeStyle = edge.rtt === null ? lines[0]! : edge.rtt > slowest * 0.66 ? lines[1]! : edge.rtt > slowest * 0.33 ? lines[2]! : lines[0]!;
    pen.globalAlpha = edge.bytes ? 0.75 : 0.3;
    pen.lineWidth = 0.8 + 4 * Math.sqrt(edge.bytes / most);
    pen.beginPath();
    pen.moveTo(...a);
    pen.lineTo(...b);
    pen.stroke();
  }
  pen.globalAlpha = 1;
}

function paintFlows(pen: CanvasRenderingContext2D, world: { flows: Flow[] }, at: Place, accent: string): void {
  const now = performance.now();
  pen.fillStyle = accent;
  world.flows = world.flows.filter((flow) => now - flow.began < FLOW_MS);
  for (const flow of world.flows) {
    const a = at(flow.from);
    const b = at(flow.to);
    const part = (now - flow.began) / FLOW_MS;
    if (!a || !b || part < 0) continue;
    pen.beginPath();
    pen.arc(a[0] + (b[0] - a[0]) * part, a[1] + (b[1] - a[1]) * part, 3, 0, 7);
    pen.fill();
  }
}

function paintNodes(pen: CanvasRenderingContext2D, now: { nodes: NodeStatus[]; picked: string | null }, at: Place, colour: (name: string) => string): void {
  const labels = now.nodes.length <= 60;
  pen.font = "12px system-ui";
  pen.textAlign = "center";
  const radius = labels ? 9 : 5;
  const [ink, ground] = [colour("--text"), colour("--panel")];
  // Readable on whatever lines run below it.
  const label = (text: string, x: number, y: number) => {
    [pen.strokeStyle, pen.lineWidth, pen.fillStyle] = [ground, 4, ink];
    pen.strokeText(text, x, y);
    pen.fillText(text, x, y);
  };
  const tones = Object.fromEntries(["good", "calm", "warn", "bad"].map((name) => [name, colour(`--${name}`)]));
  for (const node of now.nodes) {
    const place = at(node.node);
    if (!place) continue;
    pen.fillStyle = tones[tone(node.state)] ?? "gray";
    pen.beginPath();
    pen.arc(...place, radius, 0, 7);
    pen.fill();
    if (node.node === now.picked) {
      pen.strokeStyle = colour("--text");
      pen.lineWidth = 2;
      pen.stroke();
    }
    if (labels || node.node === now.picked) {
      label(node.name || node.node.slice(0, 6), place[0], place[1] + radius + 14);
    }
  }
  pen.fillStyle = colour("--text");
  pen.fillRect(-10, -10, 20, 20);
  label("coordinator", 0, 26);
}
