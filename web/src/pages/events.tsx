// The log as people read it: what happened, and why it was decided so.
import { memo, useMemo, useState } from "react";
import { ask, type Happening } from "../api";
import type { PageProps } from "../app";
import { clock, day } from "../format";
import { Card, Choice, Empty, Failure, Link, Loading } from "../parts";
import { pathTo } from "../route";

const LEVELS = [["", "All"], ["warning", "Warnings"], ["error", "Errors"]] as const;
const SHOWN = 200;
interface Page { items: Happening[]; next: number | null }

export function EventsPage({ picture, run }: PageProps) {
  const [level, setLevel] = useState("");
  const [kind, setKind] = useState("");
  const [words, setWords] = useState("");
  const [older, setOlder] = useState<Happening[]>([]);
  const [more, setMore] = useState(true);
  const [error, setError] = useState<unknown>(null);
  const all = useMemo(() => {
    const first = picture.events[0]?.id ?? Infinity;
    return [...older.filter((event) => event.id < first), ...picture.events];
  }, [older, picture.events]);
  const kinds = useMemo(() => [...new Set(all.map((event) => event.kind))].sort(), [all]);
  const shown = useMemo(() => all.filter((event) =>
    (!level || event.level === level) && (!kind || event.kind === kind) &&
    (!words || `${event.text} ${event.reason}`.toLowerCase().includes(words.toLowerCase()))).reverse(), [all, level, kind, words]);
  const load = () => {
    const before = all[0]?.id;
    ask<Page>(`/runs/${run}/events?limit=300${before ? `&before=${before}` : ""}`)
      .then((page) => {
        setOlder((known) => [...page.items.reverse(), ...known]);
        setMore(page.next !== null);
        setError(null);
      }, setError);
  };
  if (!picture.loaded) return <Loading what="the events" />;
  return (
    <>
      <div className="title">
        <h1>Events</h1>
        <div className="tools">
          <input type="search" placeholder="Find" aria-label="Find events" value={words} onChange={(event) => setWords(event.target.value)} />
          <label><span className="visually-hidden">Kind</span>
            <select value={kind} onChange={(event) => setKind(event.target.value)}>
              <option value="">every kind</option>
              {kinds.map((name) => <option key={name} value={name}>{name.replaceAll("_", " ")}</option>)}
            </select>
          </label>
          <Choice name="Level" value={level} options={LEVELS} onChange={setLevel} />
        </div>
      </div>
      <Card>
        {shown.length ? <EventList events={shown.slice(0, SHOWN)} run={run} /> : <Empty title={all.length ? "Nothing like this happened." : "Nothing happened yet."} />}
        {more && all.length > 0 && <div className="tools"><button type="button" onClick={load}>Older</button></div>}
        {error != null && <Failure error={error} retry={load} />}
      </Card>
    </>
  );
}

export function EventList({ events, run }: { events: readonly Happening[]; run: string }) {
  if (!events.length) return <Empty title="Nothing happened yet." />;
  return (
    <ol className="events">
      {events.map((event) => <EventRow key={event.id} event={event} run={run} />)}
    </ol>
  );
}

// An event never changes, so that its row is drawn once.
const EventRow = memo(function EventRow({ event, run }: { event: Happening; run: string }) {
  return (
    <li className={event.level}>
      <time title={day(event.time_ms)}>{clock(event.time_ms)}</time>
      <div>
        <span>{event.text}</span>
        {event.reason && <span className="reason">{event.reason}</span>}
      </div>
      {event.node && <Link to={pathTo("node", run, event.node)} label={`Node ${event.node.slice(0, 8)}`}>node</Link>}
      {event.position !== null && <code title="Position in the log">#{event.position}</code>}
    </li>
  );
});
