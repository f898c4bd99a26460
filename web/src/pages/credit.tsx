// Who contributed what, and what it came to.
import type { PageProps } from "../app";
import { count, credits, percent } from "../format";
import { Badge, Card, Empty, Failure, Link, Loading, Stat, useAnswer } from "../parts";
import { pathTo } from "../route";

interface Answer {
  position: number; unit: string; policy: string; total_micro: number; budget_micro: number | null; pages: number;
  nodes: { node: string; name: string; micro: number; by_role: Record<string, number>; share: number }[];
  settlement: Settlement | null;
}
interface Settlement {
  chain: string; chain_id: number; contract: string; job: number; mode: string; token: string | null; epochs: number;
  items: { epoch: number; position: number; total: string; added: string; addresses: number; state: string; transaction: string | null; block: number | null }[];
}
const ROLES = ["train", "hold", "audit", "coordinate"];
const TAKEN = "taken";

export function CreditPage({ picture, run }: PageProps) {
  const { answer, error, retry } = useAnswer<Answer>(`/runs/${run}/credit`, picture.rounds.at(-1)?.seal ?? 0);
  if (error != null && !answer) return <Failure error={error} retry={retry} page="Credit" />;
  if (!answer) return <Loading what="the credit" />;
  // What convictions took back is seldom there, and then worth a column.
  const roles = answer.nodes.some((line) => line.by_role[TAKEN]) ? [...ROLES, TAKEN] : ROLES;
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
              <thead><tr><th scope="col">who</th><th scope="col" className="numeric">credits</th><th scope="col">share</th>{roles.map((role) => <th key={role} scope="col" className="numeric">{role === TAKEN ? "taken back" : role}</th>)}</tr></thead>
              <tbody>
                {answer.nodes.map((line) => (
                  <tr key={line.node}>
                    <td>{picture.nodes.has(line.node) ? <Link to={pathTo("node", run, line.node)}>{line.name || line.node.slice(0, 8)}</Link> : line.name}</td>
                    <td className="numeric">{credits(line.micro)}</td>
                    <td><meter min={0} max={1} value={line.share} aria-label={`share of ${line.name}`}>{percent(line.share)}</meter> {percent(line.share)}</td>
                    {roles.map((role) => <td key={role} className="numeric">{line.by_role[role] ? credits(line.by_role[role]) : "–"}</td>)}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </Card>
      {answer.settlement && <OnChain settlement={answer.settlement} />}
      <Card title="Proof"><p>Everyone recomputes these numbers from the run's log: <code>shoal credit verify {run.slice(0, 12)}</code>. How they are settled on a chain: <code>shoal chain --help</code>.</p></Card>
    </>
  );
}

function OnChain({ settlement }: { settlement: Settlement }) {
  const unit = settlement.token ? "smallest units" : "coins";
  const amount = (text: string) => <span title={settlement.token ? undefined : `${text} wei`}>{settlement.token ? whole(text) : coins(text)}</span>;
  return (
    <Card title="Settled on the chain">
      <p>
        Job {settlement.job} on {settlement.chain} (chain {settlement.chain_id}), paid by {settlement.mode}
        {settlement.token && <> in the token <code>{settlement.token}</code></>}. Contract <code>{settlement.contract}</code>.
      </p>
      {settlement.items.length === 0 ? <Empty title="No epoch is recorded yet."><p><code>shoal chain settle</code> records and sends them.</p></Empty> : (
        <div className="rows short" tabIndex={0} role="region" aria-label="Settlements">
          <table>
            <caption className="visually-hidden">Epochs of the settlement, the newest first</caption>
            <thead><tr>
              <th scope="col" className="numeric">epoch</th><th scope="col">state</th><th scope="col" className="numeric">added, {unit}</th>
              <th scope="col" className="numeric">in all, {unit}</th><th scope="col" className="numeric">paid to</th>
              <th scope="col" className="numeric">up to entry</th><th scope="col">transaction</th>
            </tr></thead>
            <tbody>
              {settlement.items.map((item) => (
                <tr key={item.epoch}>
                  <td className="numeric">{item.epoch}</td>
                  <td><Badge state={item.state} /></td>
                  <td className="numeric">{amount(item.added)}</td>
                  <td className="numeric">{amount(item.total)}</td>
                  <td className="numeric">{item.addresses}</td>
                  <td className="numeric">#{item.position}</td>
                  <td>{item.transaction ? <code title={item.transaction}>{item.transaction.slice(0, 14)}…</code> : "–"}{item.block !== null && <> in block {count(item.block)}</>}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Card>
  );
}

// Amounts on a chain are longer than JavaScript's numbers are exact.
function whole(amount: string): string {
  return BigInt(amount).toLocaleString("en");
}

// A chain's own coin is 10^18 wei; a millionth of it is as much as people read.
function coins(wei: string): string {
  const micro = BigInt(wei) / 10n ** 12n;
  return `${(micro / 1_000_000n).toLocaleString("en")}.${String(micro % 1_000_000n).padStart(6, "0")}`;
}
