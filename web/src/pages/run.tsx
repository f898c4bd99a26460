// One run: its losses against steps, time or bytes, its rounds, and how fast it goes.
import { useMemo, useState } from "react";
import { ask, type NodeStatus, type Round, type Summary } from "../api";
import type { PageProps } from "../app";
import { Chart, type Series } from "../chart";
import { bytes, clock, count, duration, loss, percent } from "../format";
import type { Picture } from "../live";
import { Badge, Card, Choice, Empty, Failure, Loading, Stat, useAnswer } from "../parts";
import { promise } from "../vitals";

const AXES = [["steps", "steps"], ["time", "time"], ["bytes", "bytes"]] as const;

export function RunPage({ picture, run }: PageProps) {
  const summary = picture.runs.get(run)!;
  const [axis, setAxis] = useState("steps");
  const [other, setOther] = useState("");
  const [naive, setNaive] = useState(false);
  const compared = useAnswer<{ items: Round[] }>(other ? `/runs/${other}/rounds?limit=2000` : null);
  const series = useMemo(() => {
    const mine = lossSeries(picture.rounds, axis, summary.name, 0);
    if (naive) mine.push(...naiveSeries(picture, axis));
    if (other && compared.answer) mine.push(...lossSeries(compared.answer.items, axis, picture.runs.get(other)?.name ?? "other", 2));
    return mine;
  }, [picture.rounds, axis, naive, other, compared.answer, summary.name]);
  const others = [...picture.runs.values()].filter((item) => item.run !== run);
  if (!picture.loaded) return <Loading what="the run" />;
  return (
    <>
      <Title summary={summary} picture={picture} />
      <Figures picture={picture} summary={summary} />
      <Card title="Loss" className="wide"
        aside={<Choice name="Horizontal axis" value={axis} options={AXES} onChange={setAxis} />}>
        {picture.rounds.length ? (
          <Chart series={series} xName={axis === "time" ? "minutes" : axis} yName="loss"
            xFormat={axis === "bytes" ? (value) => bytes(value) : undefined}
            label={`Training and validation loss against ${axis}; the last training loss is ${loss(summary.train_loss)}.`} />
        ) : <Empty title="No round is sealed yet."><p>{summary.waiting_for}</p></Empty>}
        <div className="tools">
          <label><input type="checkbox" checked={naive} onChange={(event) => setNaive(event.target.checked)} /> what sending every step whole would cost</label>
          {others.length > 0 && (
            <label>compare with <select value={other} onChange={(event) => setOther(event.target.value)}>
              <option value="">nothing</option>
              {others.map((item) => <option key={item.run} value={item.run}>{item.name} · {item.run.slice(0, 6)}</option>)}
            </select></label>
          )}
          {compared.error != null && <Failure error={compared.error} retry={compared.retry} />}
        </div>
      </Card>
      <Timeline picture={picture} />
      <div className="grid two">
        <Steering summary={summary} scope={picture.scope} />
        {picture.run?.text && <Samples run={run} scope={picture.scope} />}
      </div>
    </>
  );
}

function Title({ summary, picture }: { summary: Summary; picture: Picture }) {
  return (
    <div className="title">
      <h1>{summary.name}</h1>
      <Badge state={summary.state} />
      <p aria-live="polite">{summary.stopped ?? summary.waiting_for}{picture.run && <> · {picture.run.preset}, {count(picture.run.parameters)} parameters</>}</p>
      {picture.run?.privacy && <p>{promise(picture.run.privacy)}</p>}
    </div>
  );
}

function lossSeries(rounds: readonly Round[], axis: string, name: string, tone: number): Series[] {
  const standing = rounds.filter((item) => !item.undone);
  const first = standing[0]?.opened_ms ?? 0;
  let sent = 0;
  const x = standing.map((item) => {
    sent += item.update_bytes;
    return axis === "steps" ? item.steps : axis === "time" ? ((item.sealed_ms ?? 0) - first) / 60_000 : sent;
  });
  return [
    { name: `${name}: training`, x, y: standing.map((item) => item.train_loss), tone },
    { name: `${name}: validation`, x, y: standing.map((item) => item.validation_loss), tone: tone + 1 },
  ];
}

// The same losses, had every step sent every parameter in 32 bits, as plain data parallelism does.
function naiveSeries(picture: Picture, axis: string): Series[] {
  const standing = picture.rounds.filter((item) => !item.undone && item.accepted.length);
  let sent = 0;
  let before = 0;
  const x = standing.map((item) => {
    sent += item.dense_bytes * Math.max(1, item.steps - before);
    before = item.steps;
    return axis === "bytes" ? sent : axis === "steps" ? item.steps : ((item.sealed_ms ?? 0) - standing[0]!.opened_ms) / 60_000;
  });
  return [{ name: "every step whole", x, y: standing.map((item) => item.train_loss), tone: 5, dashed: true }];
}

function Figures({ picture, summary }: { picture: Picture; summary: Summary }) {
  const last = picture.rounds.slice(-8).filter((item) => item.sealed_ms);
  const nodes = [...picture.nodes.values()];
  const speed = sum(nodes.filter((node) => live(node)).map((node) => node.tokens_per_s ?? 0));
  const seconds = last.length ? sum(last.map((item) => (item.sealed_ms! - item.opened_ms) / 1000)) : 0;
  const tokens = sum(last.map((item) => item.tokens));
  const sent = sum(last.map((item) => item.update_bytes));
  const dense = sum(last.map((item) => item.dense_bytes));
  return (
    <dl className="stats">
      <Stat name="round" value={summary.rounds ? `${summary.round}/${summary.rounds}` : summary.round} />
      <Stat name="nodes" value={summary.nodes_live} hint="Nodes whose lease runs" />
      <Stat name="training" value={loss(summary.train_loss)} />
      <Stat name="validation" value={loss(summary.validation_loss)} />
      <Stat name="tokens/s" value={seconds ? count(tokens / seconds) : "–"} hint="In the last rounds, waiting counted" />
      <Stat name="utilisation" value={seconds && speed ? percent(Math.min(1, tokens / (speed * seconds))) : "–"} hint="What the nodes' own speed would come to without waiting" />
      <Stat name="compression" value={sent ? `${(dense / sent).toFixed(1)}×` : "–"} hint="Against 32-bit updates of every parameter" />
      <Stat name="left" value={summary.stopped ? "done" : duration(left(picture, summary))} hint="By the pace of the last rounds" />
    </dl>
  );
}

function live(node: NodeStatus): boolean {
  return node.state === "in" || node.state === "next" || node.state === "behind";
}

function left(picture: Picture, summary: Summary): number | null {
  const done = picture.rounds.filter((item) => item.sealed_ms).slice(-20);
  if (!summary.rounds || done.length < 2) return null;
  const pace = (done.at(-1)!.sealed_ms! - done[0]!.sealed_ms!) / (done.length - 1) / 1000;
  return pace * Math.max(0, summary.rounds - (picture.run?.rounds_done ?? summary.round));
}

function sum(values: number[]): number {
  return values.reduce((a, b) => a + b, 0);
}

const ROUNDS_SHOWN = 12;

function Timeline({ picture }: { picture: Picture }) {
  const shown = [...picture.rounds.slice(-ROUNDS_SHOWN).reverse()];
  if (picture.open) shown.unshift(picture.open);
  const name = (node: string) => picture.nodes.get(node)?.name || node.slice(0, 8);
  return (
    <Card title="Rounds">
      {shown.length === 0 ? <Empty title="No round was planned yet." /> : (
        <ol className="rounds">
          {shown.map((item) => (
            <li key={item.seal ?? "open"} className={item.undone ? "undone" : ""}>
              <div className="when">
                <strong>{item.round}</strong>
                <span>{item.sealed_ms ? `${clock(item.sealed_ms)} · ${duration((item.sealed_ms - item.opened_ms) / 1000)}` : `since ${clock(item.opened_ms)}`}</span>
              </div>
              <div className="who">
                {item.accepted.map((update) => <span key={update.node} className={`chip ${update.late ? "warn" : "good"}`} title={`counted, loss ${loss(update.loss)}, ${bytes(update.size_bytes)}`}>{name(update.node)}</span>)}
                {item.seal === null && item.planned.map((node) => <span key={node} className="chip calm">{name(node)}</span>)}
                {item.late.map((node) => <span key={node} className="chip warn" title="planned, but its update did not come in time">{name(node)}: late</span>)}
                {item.rejected.map((refused) => <span key={refused.node} className="chip bad" title={refused.reason}>{name(refused.node)}: {refused.reason}</span>)}
              </div>
              <div className="why">{item.undone ? "undone by a rewind" : item.why_sealed || item.why_planned}{item.train_loss != null && <> · loss {loss(item.train_loss)}</>}</div>
            </li>
          ))}
        </ol>
      )}
    </Card>
  );
}

function Steering({ summary, scope }: { summary: Summary; scope: string }) {
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const act = (path: string, json: unknown) => {
    setBusy(true);
    ask(`/runs/${summary.run}/${path}`, { method: "POST", json })
      .then(() => setError(null), setError)
      .finally(() => setBusy(false));
  };
  if (scope === "view") return <Card title="Steering"><p>A token of scope operate pauses, stops and changes this run.</p></Card>;
  if (summary.stopped) return <Card title="Steering"><p>The run is over: {summary.stopped}.</p></Card>;
  return (
    <Card title="Steering">
      <div className="tools">
        {summary.state === "paused"
          ? <button type="button" disabled={busy} onClick={() => act("resume", {})}>Go on</button>
          : <button type="button" disabled={busy} onClick={() => act("pause", {})}>Pause</button>}
        <button type="button" className="danger" disabled={busy} onClick={() => confirm("End this run for good?") && act("stop", {})}>Stop</button>
      </div>
      <Parameters run={summary.run} busy={busy} change={(changes) => act("parameters", { changes })} />
      {error != null && <Failure error={error} />}
    </Card>
  );
}

function Parameters({ run, busy, change }: { run: string; busy: boolean; change: (changes: Record<string, unknown>) => void }) {
  const { answer } = useAnswer<{ parameters: Record<string, number | boolean | null> }>(`/runs/${run}/parameters`, busy);
  const [path, setPath] = useState("budget.rounds");
  const [value, setValue] = useState("");
  if (!answer) return null;
  const submit = () => {
    change({ [path]: value === "" ? null : value === "true" ? true : value === "false" ? false : Number(value) });
    setValue("");
  };
  return (
    <form className="tools" onSubmit={(event) => (event.preventDefault(), submit())}>
      <label>change <select value={path} onChange={(event) => setPath(event.target.value)}>
        {Object.keys(answer.parameters).map((name) => <option key={name}>{name}</option>)}
      </select></label>
      <label>to <input value={value} size={10} placeholder={String(answer.parameters[path] ?? "none")} onChange={(event) => setValue(event.target.value)} /></label>
      <button type="submit" disabled={busy}>Change</button>
    </form>
  );
}

function Samples({ run, scope }: { run: string; scope: string }) {
  const [prompt, setPrompt] = useState("def ");
  const [said, setSaid] = useState<{ prompt: string; text: string; at: number } | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const write = () => {
    setBusy(true);
    ask<{ prompt: string; text: string; at: number }>(`/runs/${run}/samples`, { method: "POST", json: { prompt, tokens: 100 } })
      .then((found) => (setSaid(found), setError(null)), setError)
      .finally(() => setBusy(false));
  };
  return (
    <Card title="What it writes">
      {scope === "view" ? <p>A token of scope operate lets the model write.</p> : (
        <form className="tools" onSubmit={(event) => (event.preventDefault(), write())}>
          <label>after <input value={prompt} onChange={(event) => setPrompt(event.target.value)} /></label>
          <button type="submit" disabled={busy}>{busy ? "Writing …" : "Write"}</button>
        </form>
      )}
      {said && <pre className="sample" tabIndex={0} aria-label="What the model wrote"><b>{said.prompt}</b>{said.text}</pre>}
      {error != null && <Failure error={error} />}
    </Card>
  );
}
