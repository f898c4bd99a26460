// Saved states and rewinds as a graph in time, to download and to export.
import { useState } from "react";
import { save } from "../api";
import type { PageProps } from "../app";
import { bytes, clock, day } from "../format";
import { Card, Empty, Failure, Loading, useAnswer } from "../parts";

interface Checkpoint { at: number; position: number; time_ms: number; round: number; parent: number | null; state: string; size_bytes: number; stands: boolean; here: boolean }
interface Rewind { position: number; time_ms: number; to: number; came_from: number; reason: string }
interface Answer { checkpoints: Checkpoint[]; rewinds: Rewind[] }

export function CheckpointsPage({ picture, run }: PageProps) {
  const { answer, error, retry } = useAnswer<Answer>(`/runs/${run}/checkpoints`, `${picture.run?.snapshot_at}/${picture.run?.at}`);
  const [busy, setBusy] = useState("");
  const [failed, setFailed] = useState<unknown>(null);
  const fetchIt = (what: string, at: number) => {
    setBusy(`${what}${at}`);
    save(`/runs/${run}/checkpoints/${at}/${what}`, `shoal-${at}`).then(() => setFailed(null), setFailed).finally(() => setBusy(""));
  };
  if (error != null && !answer) return <Failure error={error} retry={retry} page="Checkpoints" />;
  if (!answer) return <Loading what="the checkpoints" />;
  return (
    <>
      <div className="title"><h1>Checkpoints</h1><p>A checkpoint is a place in the log: a state that most nodes attested, and that is stored.</p></div>
      {failed != null && <Failure error={failed} />}
      <Card title="Graph">{answer.checkpoints.length ? <Graph answer={answer} /> : <Empty title="Nothing is saved yet." />}</Card>
      <Card title="Saved states">
        <div className="rows short" tabIndex={0} role="region" aria-label="Saved states">
          <table>
            <caption className="visually-hidden">Saved states, newest first</caption>
            <thead><tr><th scope="col">at</th><th scope="col">rounds</th><th scope="col">saved</th><th scope="col">size</th><th scope="col">state</th><th scope="col">take it</th></tr></thead>
            <tbody>
              {[...answer.checkpoints].reverse().map((item) => (
                <tr key={item.position} className={item.stands ? "" : "undone"}>
                  <td>{item.at}{!item.stands && " (undone)"}</td><td>{item.round}</td><td title={day(item.time_ms)}>{clock(item.time_ms)}</td>
                  <td>{bytes(item.size_bytes)}</td><td><code>{item.state.slice(0, 12)}</code></td>
                  <td>
                    {item.here ? (
                      <>
                        {picture.scope !== "view" && <button type="button" disabled={busy !== ""} onClick={() => fetchIt("export", item.at)} aria-label={`Export the state at ${item.at} as a model`}>{busy === `export${item.at}` ? "Exporting …" : "Export"}</button>}{" "}
                        <button type="button" disabled={busy !== ""} onClick={() => fetchIt("download", item.at)} aria-label={`Download the state at ${item.at}`}>Download</button>
                      </>
                    ) : "not kept any more"}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </Card>
    </>
  );
}

const STEP_X = 96;
const LANE_Y = 64;

// Time goes to the right; a rewind opens a lane below, which begins at the state that it went back to.
function Graph({ answer }: { answer: Answer }) {
  const points = place(answer);
  const width = Math.max(...points.map((point) => point.x)) + 70;
  const height = Math.max(...points.map((point) => point.y)) + 46;
  const at = (position: number) => points.findLast((point) => point.item.at === position);
  return (
    <div className="graph" tabIndex={0} role="region" aria-label="Graph of saved states">
      <svg width={width} height={height} role="img" aria-label={`${points.length} saved states, ${answer.rewinds.length} rewinds`}>
        {points.map(({ item, x, y }) => {
          const parent = points.findLast((other) => other.item.at === item.parent && other.item.position < item.position);
          return parent && <path key={`e${item.position}`} className={item.stands ? "edge" : "edge undone"} d={`M${parent.x} ${parent.y}C${parent.x + 40} ${parent.y} ${x - 40} ${y} ${x} ${y}`} />;
        })}
        {answer.rewinds.map((rewind) => {
          const to = at(rewind.to);
          return to && <text key={`r${rewind.position}`} className="rewind" x={to.x} y={to.y - 18}>↶ {rewind.reason.slice(0, 28)}<title>{rewind.reason}</title></text>;
        })}
        {points.map(({ item, x, y }) => (
          <g key={item.position} className={item.stands ? (item.here ? "kept" : "stands") : "undone"}>
            <circle cx={x} cy={y} r={9} /><title>{`state ${item.state.slice(0, 16)} at ${item.at}`}</title>
            <text x={x} y={y + 26}>{item.at === 0 ? "start" : `round ${item.round}`}</text>
          </g>
        ))}
      </svg>
    </div>
  );
}

function place(answer: Answer): { item: Checkpoint; x: number; y: number }[] {
  let lane = 0;
  const rewinds = [...answer.rewinds].sort((a, b) => a.position - b.position);
  return [...answer.checkpoints].sort((a, b) => a.position - b.position).map((item, index) => {
    while (rewinds[0] && rewinds[0].position < item.position) {
      rewinds.shift();
      lane += 1;
    }
    return { item, x: 40 + index * STEP_X, y: 40 + lane * LANE_Y };
  });
}
