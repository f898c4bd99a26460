// Who contributed what, and what it came to.
import type { PageProps } from "../app";
import { count, credits, percent } from "../format";
import { Card, Empty, Failure, Link, Loading, Stat, useAnswer } from "../parts";
import { pathTo } from "../route";

interface Answer {
  position: number; unit: string; policy: string; total_micro: number; budget_micro: number | null; pages: number;
  nodes: { node: string; name: string; micro: number; by_role: Record<string, number>; share: number }[];
}
const ROLES = ["train", "hold", "audit", "coordinate"];

export function CreditPage({ picture, run }: PageProps) {
  const { answer, error, retry } = useAnswer<Answer>(`/runs/${run}/credit`, picture.rounds.at(-1)?.seal ?? 0);
  if (error != null && !answer) return <Failure error={error} retry={retry} />;
  if (!answer) return <Loading what="the credit" />;
  return (
    <>
      <div className="title"><h1>Credit</h1><p>{answer.policy}</p></div>
      <dl className="stats">
        <Stat name="earned" value={credits(answer.total_micro)} />
        <Stat name="budget" value={answer.budget_micro === null ? "no bound" : credits(answer.budget_micro)} />
        <Stat name="earners" value={answer.nodes.length} />
        <Stat name="ledger pages" value={count(answer.pages)} hint="Signed by the coordinator, each chained to the one before" />
        <Stat name="counted up to" value={`#${answer.position}`} />
      </dl>
      <Card title="Balances">
        {answer.nodes.length === 0 ? <Empty title="Nothing was earned yet."><p>The first sealed round pays for its work.</p></Empty> : (
          <div className="rows short" tabIndex={0} role="region" aria-label="Balances">
            <table>
              <caption className="visually-hidden">Balances, the largest first</caption>
              <thead><tr><th scope="col">who</th><th scope="col" className="numeric">credits</th><th scope="col">share</th>{ROLES.map((role) => <th key={role} scope="col" className="numeric">{role}</th>)}</tr></thead>
              <tbody>
                {answer.nodes.map((line) => (
                  <tr key={line.node}>
                    <td>{picture.nodes.has(line.node) ? <Link to={pathTo("node", run, line.node)}>{line.name || line.node.slice(0, 8)}</Link> : line.name}</td>
                    <td className="numeric">{credits(line.micro)}</td>
                    <td><meter min={0} max={1} value={line.share} aria-label={`share of ${line.name}`}>{percent(line.share)}</meter> {percent(line.share)}</td>
                    {ROLES.map((role) => <td key={role} className="numeric">{line.by_role[role] ? credits(line.by_role[role]) : "–"}</td>)}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </Card>
      <Card title="Proof"><p>Everyone recomputes these numbers from the run's log: <code>shoal credit verify {run.slice(0, 12)}</code>. How they are settled on a chain: <code>shoal chain --help</code>.</p></Card>
    </>
  );
}
