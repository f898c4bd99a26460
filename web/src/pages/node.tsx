// One node and its history.
import { useMemo } from "react";
import type { Happening, NodeStatus } from "../api";
import type { PageProps } from "../app";
import { Chart, type Series } from "../chart";
import { bytes, clock, count, loss, percent } from "../format";
import { Badge, Card, Empty, Failure, Link, Loading, Stat, useAnswer } from "../parts";
import { pathTo } from "../route";
import { extras, spent, trust } from "../vitals";
import { EventList } from "./events";

interface Answer {
  node: NodeStatus;
  contribution: { planned: number; accepted: number; late: number; rejected: number; tokens: number; update_bytes: number };
  fates: { round: number; fate: string; why: string; tokens: number; loss: number | null; sealed_ms: number | null }[];
  trail: { time_ms: number; loss: number | null; tokens_per_s: number | null }[];
  events: Happening[];
}

export function NodePage({ picture, run, item }: PageProps) {
  const last = picture.rounds.at(-1)?.seal ?? 0;
  const { answer, error, retry } = useAnswer<Answer>(`/runs/${run}/nodes/${item}`, last);
  const node = picture.nodes.get(item) ?? answer?.node;
  const series = useMemo<Series[]>(() => {
    const done = (answer?.fates ?? []).filter((fate) => fate.loss !== null);
    return [{ name: "loss of its updates", x: done.map((fate) => fate.round), y: done.map((fate) => fate.loss), tone: 0 }];
  }, [answer]);
  const speed = useMemo<Series[]>(() => {
    const trail = answer?.trail ?? [];
    return [{ name: "tokens/s", x: trail.map((point) => (point.time_ms - trail[0]!.time_ms) / 60_000), y: trail.map((point) => point.tokens_per_s), tone: 2 }];
  }, [answer]);
  if (error != null && !answer) return <Failure error={error} retry={retry} page="Node" />;
  if (!node || !answer) return <Loading what="the node" />;
  const sum = answer.contribution;
  return (
    <>
      <div className="title">
        <h1>{node.name || item.slice(0, 8)}</h1>
        <Badge state={node.state} />
        <p>{node.why}</p>
        <Link to={pathTo("nodes", run)}>all nodes</Link>
      </div>
      <dl className="stats">
        <Stat name="doing" value={node.doing || "–"} />
        <Stat name="step" value={node.step ? count(node.step) : "–"} />
        <Stat name="loss" value={node.loss ? loss(node.loss) : "–"} />
        <Stat name="tokens/s" value={count(node.tokens_per_s)} />
        <Stat name="sent" value={bytes(node.up_bytes)} />
        <Stat name="received" value={bytes(node.down_bytes)} />
        <Stat name="delivered" value={sum.planned ? percent(sum.accepted / sum.planned) : "–"} hint="Updates that counted, of the rounds it was planned in" />
        <Stat name="tokens trained" value={count(sum.tokens)} />
        {node.reputation != null && <Stat name="reputation" value={node.reputation} hint="What audits of its work have come to, of 1000" />}
        {node.epsilon != null && <Stat name="privacy spent" value={spent(node, picture.run?.privacy)} hint="Epsilon: how much its updates can tell of its data, of what it may" />}
      </dl>
      <div className="grid two">
        <Card title="Loss by round">{series[0]!.x.length ? <Chart series={series} xName="round" yName="loss" label="Loss of this node's updates by round" /> : <Empty title={sum.accepted ? "Its updates do not tell their losses." : "None of its updates counted yet."} />}</Card>
        <Card title="Speed">{speed[0]!.x.length > 1 ? <Chart series={speed} xName="minutes" yName="tokens/s" label="Tokens a second over the last minutes" /> : <Empty title="Not heard for long enough." />}</Card>
      </div>
      <div className="grid two">
        <Card title="Facts">
          <dl className="facts">
            <div><dt>id</dt><dd><code>{item}</code></dd></div>
            <div><dt>device</dt><dd>{node.device || "–"}</dd></div>
            <div><dt>peers</dt><dd>{node.reachable ? "can fetch from it" : "cannot reach it; it reaches them"}</dd></div>
            <div><dt>state at</dt><dd>{node.at ?? "nowhere yet"}</dd></div>
            <div><dt>rounds</dt><dd>{sum.accepted} counted, {sum.late} late, {sum.rejected} rejected, of {sum.planned}</dd></div>
            <div><dt>updates</dt><dd>{bytes(sum.update_bytes)}</dd></div>
            {trust(node, picture.run?.privacy).map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}
            {extras(node).rows.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}
            {node.rejected && <div><dt>last rejected</dt><dd>{node.rejected}</dd></div>}
          </dl>
        </Card>
        <Card title="Its rounds">
          {answer.fates.length === 0 ? <Empty title="It was in no round yet." /> : (
            <ol className="fates" tabIndex={0} aria-label="What became of its last rounds">
              {answer.fates.slice(-60).reverse().map((fate) => (
                <li key={`${fate.round}-${fate.sealed_ms}`}><strong>{fate.round}</strong> <Badge state={fate.fate} /> {fate.why} {fate.sealed_ms && <time>{clock(fate.sealed_ms)}</time>}</li>
              ))}
            </ol>
          )}
        </Card>
      </div>
      <Card title="Events"><EventList events={answer.events.slice(0, 50)} run={run} /></Card>
    </>
  );
}
