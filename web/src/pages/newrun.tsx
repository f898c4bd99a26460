// A new run: a recipe to begin with, a dataset, the fields of the schema, and what it would take.
import { useEffect, useMemo, useState, type ChangeEvent, type FormEvent } from "react";
import { ask, Refused } from "../api";
import type { PageProps } from "../app";
import { bytes, count, credits, duration } from "../format";
import { Card, Failure, Loading, Stat, useAnswer } from "../parts";
import { go, pathTo } from "../route";
import { Field, type Complaint, type Schema } from "../schema";

interface Forms { schema: Schema; presets: { name: string; pieces: Record<string, unknown> }[]; recipes: Record<string, Record<string, unknown>> }
interface Estimate { nodes: number; rounds: number | null; parameters: number | null; tokens: number | null; seconds: number | null; node_hours: number | null; update_bytes: number | null; upload_bytes_each: number | null; download_bytes_each: number | null; credits_micro: number | null; rests_on: string }
interface Check { ok: boolean; complaints: Complaint[]; estimate: Estimate | null }
interface Dataset { dataset: string; name: string; kind: string; size_bytes: number; data: Record<string, unknown> }
type Recipe = Record<string, unknown>;

const FIRST = ["name", "model", "inner", "budget"];
const CHECK_AFTER_MS = 250;

export function NewRunPage({ picture }: PageProps) {
  const allowed = picture.scope !== "view";
  const forms = useAnswer<Forms>(allowed ? "/recipes" : null);
  if (!allowed) return <><div className="title"><h1>New run</h1></div><Card><p>A token of scope operate starts runs. Sign in with one.</p></Card></>;
  if (forms.error != null) return <Failure error={forms.error} retry={forms.retry} page="New run" />;
  if (!forms.answer) return <Loading what="the form" />;
  return <Form forms={forms.answer} />;
}

function Form({ forms }: { forms: Forms }) {
  const names = Object.keys(forms.recipes);
  const [base, setBase] = useState(names.includes("stdlib-gpt") ? "stdlib-gpt" : names[0]!);
  const [recipe, setRecipe] = useState<Recipe>(forms.recipes[base]!);
  const [nodes, setNodes] = useState(4);
  const [check, setCheck] = useState<Check | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    const later = setTimeout(() => {
      ask<Check>(`/recipes/check?nodes=${nodes}`, { method: "POST", body: JSON.stringify(recipe) }).then((found) => (setCheck(found), setError(null)), setError);
    }, CHECK_AFTER_MS);
    return () => clearTimeout(later);
  }, [recipe, nodes]);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    ask<{ run: string }>("/runs", { method: "POST", body: JSON.stringify(recipe) })
      .then((made) => go(pathTo("run", made.run)), setError)
      .finally(() => setBusy(false));
  };
  const strategy = (recipe.strategy ?? {}) as Recipe;
  const sections = Object.keys(forms.schema.properties!).filter((name) => !["name", "seed", "data", "strategy"].includes(name));
  const complaints = check?.complaints ?? [];
  const field = (name: string) => (
    <Field schema={forms.schema.properties![name]!} root={forms.schema} path={name} value={recipe[name]} complaints={complaints}
      onChange={(value) => setRecipe((old) => ({ ...old, [name]: value }))} />
  );
  return (
    <form onSubmit={submit} className="newrun">
      <div className="title"><h1>New run</h1><p>Everything has a usual value; change what you mean to change.</p></div>
      <div className="grid form">
        <div>
          <Card title="Begin with">
            <div className="field">
              <label htmlFor="base">recipe</label>
              <select id="base" value={base} onChange={(event) => (setBase(event.target.value), setRecipe(forms.recipes[event.target.value]!))}>
                {names.map((name) => <option key={name}>{name}</option>)}
              </select>
            </div>
            {field("name")}
            <div className="field">
              <label htmlFor="preset">algorithm</label>
              <select id="preset" value={String(strategy.preset ?? "auto")} onChange={(event) => setRecipe((old) => ({ ...old, strategy: { preset: event.target.value } }))}>
                {forms.presets.map((preset) => <option key={preset.name}>{preset.name}</option>)}
              </select>
              <Wrong complaints={complaints} path="strategy.preset" />
            </div>
          </Card>
          <DataCard forms={forms} recipe={recipe} setRecipe={setRecipe} complaints={complaints} />
          {sections.map((name) => (
            <details key={name} className="card" open={FIRST.includes(name) || complaints.some((item) => item.path.split(".")[0] === name)}>
              <summary><h2>{name}</h2></summary>{field(name)}
            </details>
          ))}
          <details className="card" open={complaints.some((item) => item.path.split(".")[0] === "strategy")}><summary><h2>strategy</h2></summary>{field("strategy")}</details>
        </div>
        <aside>
          <Card title="What it would take">
            <div className="field"><label htmlFor="nodes">with nodes</label>
              <input id="nodes" type="number" min={1} max={10000} value={nodes} onChange={(event) => setNodes(Math.max(1, Number(event.target.value)))} /></div>
            {check?.estimate ? <Take estimate={check.estimate} /> : check ? <p>The recipe is not complete yet.</p> : <Loading what="the estimate" />}
          </Card>
          {complaints.filter((item) => !item.path).map((item) => <p key={item.message} className="failure" role="alert">{item.message}</p>)}
          {error != null && <Failure error={error} />}
          <button type="submit" className="primary" disabled={busy || check?.ok === false}>{busy ? "Preparing …" : "Start"}</button>
          {check?.ok === false && <p className="hint">{complaints.length === 1 ? "One field needs" : `${complaints.length} fields need`} another value: {complaints.map((item) => item.path || "the recipe").join(", ")}.</p>}
        </aside>
      </div>
    </form>
  );
}

function Wrong({ complaints, path }: { complaints: Complaint[]; path: string }) {
  return <>{complaints.filter((item) => item.path === path).map((item) => <p key={item.message} className="wrong" role="alert">{item.message}</p>)}</>;
}

function Take({ estimate }: { estimate: Estimate }) {
  return (
    <>
      <dl className="stats narrow">
        <Stat name="time" value={duration(estimate.seconds)} />
        <Stat name="node hours" value={estimate.node_hours === null ? "–" : estimate.node_hours.toFixed(2)} />
        <Stat name="parameters" value={count(estimate.parameters)} />
        <Stat name="tokens" value={count(estimate.tokens)} />
        <Stat name="an update" value={bytes(estimate.update_bytes)} />
        <Stat name="each node sends" value={bytes(estimate.upload_bytes_each)} />
        <Stat name="each receives" value={bytes(estimate.download_bytes_each)} />
        <Stat name="credits" value={credits(estimate.credits_micro)} />
      </dl>
      <p className="hint">By {estimate.rests_on}.</p>
    </>
  );
}

function DataCard({ forms, recipe, setRecipe, complaints }:
  { forms: Forms; recipe: Recipe; setRecipe: (change: (old: Recipe) => Recipe) => void; complaints: Complaint[] }) {
  const [sent, setSent] = useState<Dataset | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const data = (recipe.data ?? {}) as Recipe;
  const uploaded = useMemo(() => typeof data.path === "string" && data.path.startsWith("upload:"), [data]);
  const upload = (event: ChangeEvent<HTMLInputElement>) => {
    const file = event.target.files?.[0];
    if (!file) return;
    setBusy(true);
    ask<Dataset>(`/datasets?name=${encodeURIComponent(file.name)}`, { method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" } })
      .then((found) => {
        setSent(found);
        setError(null);
        const text = found.data.source !== "npz";
        setRecipe((old) => ({ ...old, ...fitting(forms, old, text), data: { ...kept(old.data as Recipe, text), ...found.data } }));
      })
      .catch((reason: unknown) => setError(reason instanceof Refused ? reason : new Error("the file could not be sent")))
      .finally(() => setBusy(false));
  };
  return (
    <Card title="data">
      <div className="field">
        <label htmlFor="file">upload</label>
        <input id="file" type="file" onChange={upload} accept=".txt,.md,.py,.jsonl,.ndjson,.parquet,.npz,.csv,.zip" disabled={busy} aria-describedby="file-said" />
        <div id="file-said" className="said" aria-live="polite">
          {busy && <p className="hint">Sending …</p>}
          {sent && uploaded && <p className="hint">{sent.name}: {bytes(sent.size_bytes)} of {sent.kind}</p>}
          {error != null && <Failure error={error} />}
          <p className="hint">Text, JSONL, Parquet, NPZ with x and y, a CSV of path and label, or a zip of such a CSV and its images.</p>
        </div>
      </div>
      <Field schema={forms.schema.properties!.data!} root={forms.schema} path="data" value={data} complaints={complaints}
        onChange={(value) => setRecipe((old) => ({ ...old, data: value }))} />
    </Card>
  );
}

// Text wants a language model and images want a net for them: a model of the other kind is exchanged.
function fitting(forms: Forms, old: Recipe, text: boolean): Recipe {
  const kind = String((old.model as Recipe | undefined)?.kind ?? "gpt");
  if (text === ["gpt", "transformers"].includes(kind)) return {};
  const donor = Object.values(forms.recipes).find((recipe) => text === ((recipe.model as Recipe).kind === "gpt"));
  return donor ? { model: donor.model, inner: donor.inner } : { model: { kind: text ? "gpt" : "cnn" } };
}

// What of the old data section still says something: how text is cut.
function kept(data: Recipe | undefined, text: boolean): Recipe {
  return text && data ? Object.fromEntries(["tokenizer", "context"].filter((name) => name in data).map((name) => [name, data[name]])) : {};
}
