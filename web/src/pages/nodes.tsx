// Every node: a table for many, cards for few, and a heat map of the ways between them.
import { useMemo, useState } from "react";
import type { Links, NodeStatus, Privacy } from "../api";
import type { PageProps } from "../app";
import { bytes, count, loss } from "../format";
import { Badge, Card, Choice, Empty, Failure, Link, Loading, Rows, tone, useAnswer, type Column } from "../parts";
import { pathTo } from "../route";
import { extras, spent, trust } from "../vitals";

const ORDER = ["silent", "behind", "in", "next", "gone"];
const VIEWS = [["table", "Table"], ["cards", "Cards"], ["ways", "Latency"]] as const;

export function NodesPage({ picture, run }: PageProps) {
  const [view, setView] = useState(() => (innerWidth < 1000 ? "cards" : "table"));
  const [sought, setSought] = useState("");
  const nodes = useMemo(() => {
    const words = sought.toLowerCase();
    return [...picture.nodes.values()].filter((node) => !words || `${node.name} ${node.node} ${node.state} ${node.why} ${node.device}`.toLowerCase().includes(words));
  }, [picture.nodes, sought]);
  const privacy = picture.run?.privacy;
  const audited = nodes.some((node) => node.reputation != null);
  const judged = nodes.some((node) => extras(node).score >= 0);
  const shown = useMemo(() => columns(run, privacy, audited, judged), [run, privacy, audited, judged]);
  if (!picture.loaded) return <Loading what="the nodes" />;
  return (
    <>
      <div className="title">
        <h1>Nodes</h1>
        <p>{picture.nodes.size} ever joined, {picture.runs.get(run)?.nodes_live} live</p>
        <div className="tools">
          <input type="search" placeholder="Find" aria-label="Find nodes" value={sought} onChange={(event) => setSought(event.target.value)} />
          <Choice name="View" value={view} options={VIEWS} onChange={setView} />
        </div>
      </div>
      {picture.nodes.size === 0 ? (
        <Empty title="Nobody joined yet."><Link to={pathTo("join", run)} className="button">How to join</Link></Empty>
      ) : view === "table" ? (
        <Rows columns={shown} rows={nodes} id={(node) => node.node} caption="Nodes of the run" first="state" />
      ) : view === "cards" ? (
        <div className="grid cards">{nodes.slice(0, 200).map((node) => <NodeCard key={node.node} node={node} run={run} privacy={privacy} />)}</div>
      ) : <Ways run={run} nodes={picture.nodes} turn={picture.rounds.length} />}
    </>
  );
}

// What a run does not keep of its nodes has no column.
function columns(run: string, privacy: Privacy | null | undefined, audited: boolean, judged: boolean): Column<NodeStatus>[] {
  const reputation: Column<NodeStatus> = { key: "reputation", name: "reputation", cell: (node) => node.reputation ?? "–", order: (node) => node.reputation ?? -1, numeric: true };
  const health: Column<NodeStatus> = { key: "health", name: "health", cell: (node) => extras(node).health, order: (node) => extras(node).score, numeric: true };
  const tier: Column<NodeStatus> = { key: "tier", name: "tier", cell: (node) => extras(node).tier || "–", order: (node) => extras(node).tier };
  const epsilon: Column<NodeStatus> = { key: "epsilon", name: "privacy spent", cell: (node) => spent(node, privacy), order: (node) => node.epsilon ?? -1, numeric: true };
  return [
    { key: "state", name: "state", cell: (node) => <Badge state={node.state} />, order: (node) => ORDER.indexOf(node.state) },
    { key: "name", name: "name", cell: (node) => <Link to={pathTo("node", run, node.node)}>{node.name || node.node.slice(0, 8)}</Link>, order: (node) => node.name },
    { key: "why", name: "why", cell: (node) => <span title={node.why}>{node.why}</span>, wide: true },
    { key: "doing", name: "doing", cell: (node) => node.doing, order: (node) => node.doing },
    { key: "counted", name: "counted", cell: (node) => `${node.rounds_counted} of ${node.rounds_planned}`, order: (node) => node.rounds_counted, numeric: true },
    ...(judged ? [health, tier] : []),
    ...(audited ? [reputation] : []),
    ...(privacy ? [epsilon] : []),
    { key: "loss", name: "loss", cell: (node) => (node.loss ? loss(node.loss) : "–"), order: (node) => node.loss ?? 1e9, numeric: true },
    { key: "speed", name: "tokens/s", cell: (node) => count(node.tokens_per_s), order: (node) => node.tokens_per_s ?? -1, numeric: true },
    { key: "step", name: "step", cell: (node) => (node.step ? count(node.step) : "–"), order: (node) => node.step ?? -1, numeric: true },
    { key: "up", name: "sent", cell: (node) => bytes(node.up_bytes), order: (node) => node.up_bytes ?? -1, numeric: true },
    { key: "down", name: "received", cell: (node) => bytes(node.down_bytes), order: (node) => node.down_bytes ?? -1, numeric: true },
    { key: "device", name: "device", cell: (node) => node.device, order: (node) => node.device },
  ];
}

export function NodeCard({ node, run, privacy }: { node: NodeStatus; run: string; privacy: Privacy | null | undefined }) {
  const more = extras(node);
  return (
    <section className={`card node ${tone(node.state)}`}>
      <header><h2><Link to={pathTo("node", run, node.node)}>{node.name || node.node.slice(0, 8)}</Link></h2><Badge state={node.state} /></header>
      <p>{node.why}</p>
      <dl>
        <div><dt>doing</dt><dd>{node.doing || "–"}</dd></div>
        <div><dt>loss</dt><dd>{node.loss ? loss(node.loss) : "–"}</dd></div>
        <div><dt>tokens/s</dt><dd>{count(node.tokens_per_s)}</dd></div>
        <div><dt>rounds counted</dt><dd>{node.rounds_counted} of {node.rounds_planned}</dd></div>
        <div><dt>sent / received</dt><dd>{bytes(node.up_bytes)} / {bytes(node.down_bytes)}</dd></div>
        <div><dt>device</dt><dd>{node.device || "–"}</dd></div>
        {[...trust(node, privacy), ...more.rows].map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}
      </dl>
      {node.rejected && <p className="note">last rejected: {node.rejected}</p>}
    </section>
  );
}

function Ways({ run, nodes, turn }: { run: string; nodes: ReadonlyMap<string, NodeStatus>; turn: number }) {
  const { answer, error, retry } = useAnswer<Links>(`/runs/${run}/links`, turn);
  if (error != null && !answer) return <Failure error={error} retry={retry} />;
  if (!answer) return <Loading what="the ways" />;
  const known = answer.rtt_ms.flat().filter((rtt) => rtt !== null);
  if (!known.length) return <Empty title="No ways between nodes were measured yet."><p>Nodes measure them as they exchange updates.</p></Empty>;
  const most = Math.max(...known, 1);
  const name = (node: string) => nodes.get(node)?.name || node.slice(0, 8);
  const shade = (rtt: number | null | undefined) => (rtt == null ? undefined : { background: `color-mix(in srgb, var(--heat) ${Math.round((rtt / most) * 45) + 3}%, var(--panel))` });
  return (
    <Card title="Round trips between nodes, in ms">
      <div className="heat" tabIndex={0} role="region" aria-label="Round trips between nodes">
        <table>
          <caption className="visually-hidden">Round trip times from the node of each row to the node of each column</caption>
          <thead><tr><td />{answer.nodes.map((node) => <th key={node} scope="col">{name(node)}</th>)}</tr></thead>
          <tbody>
            {answer.nodes.map((from, row) => (
              <tr key={from}>
                <th scope="row">{name(from)}</th>
                {answer.nodes.map((to, column) => {
                  const rtt = answer.rtt_ms[row]?.[column];
                  return <td key={to} style={shade(rtt)}>{rtt == null ? "" : rtt < 10 ? rtt.toFixed(1) : Math.round(rtt)}</td>;
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}
